package replication

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/decoder"
)

func TestAStopReceivesTheOpenTransactionWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		s.send(begin(0x6000), outbox(), event("a", 0))
		s.settle()
		s.stop()
		a := s.batch()
		s.pass(3 * time.Second)
		s.send(event("b", 0), commit(0x6000))
		s.send(transaction(0x7000, "of the next transaction")...)
		b := s.batch()
		require.Equal(t, []string{"b"}, ids(b))
		s.requireClosed()

		s.newReports()
		s.pass(3 * statusInterval)
		require.Len(t, s.newReports(), 3, "until all is released, the connection is kept alive")
		s.release(a)
		s.pass(statusInterval)
		s.release(b)
		require.NoError(t, s.wait())
		require.Equal(t, pglogrepl.LSN(0x6000), s.lastReport())
		s.awaitRequest(requestCopyDone)
	})
}

// After a clean stop nothing is sent again, so the connection must not be closed before the last report is read.
func TestAStopEndsTheStreamBeforeItClosesTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakePostgres(t)
		f.silentAt = requestCopyDone
		s := receive(f, largeArena)
		s.send(transaction(0x6000, "a")...)
		s.release(s.batch())
		s.stop()
		f.awaitRequest(requestCopyDone)
		require.Equal(t, pglogrepl.LSN(0x6000), s.lastReport())
		s.send(transaction(0x7000, "on its way already")...)
		s.pass(closeTimeout - 1)
		requireOpen(t, f.gone)
		f.sendRaw(copyDone...)
		require.NoError(t, s.wait())
		await(t, f.gone, "the end of the connection")
	})
}

func requireOpen(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
		require.Fail(t, "closed already")
	default:
	}
}

func TestAStopWhenIdleTakesNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		s.send(keepalive(0x6000, false))
		s.pass(statusInterval / 2)
		stopped := time.Now()
		s.stop()
		require.NoError(t, s.wait())
		require.Equal(t, stopped, time.Now())
		require.Equal(t, pglogrepl.LSN(0x6000), s.lastReport())
		require.Equal(t, decoder.Batches, s.pool.Available())
	})
}

func TestAStopHandsOverWhatLingers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		s.send(transaction(0x6000, "a")...)
		s.settle()
		s.send(transaction(0x7000, "b")...)
		s.settle()
		require.Len(t, s.filled, 1)
		s.stop()
		s.release(s.batch())
		b := s.batch()
		require.Equal(t, []string{"b"}, ids(b))
		s.release(b)
		require.NoError(t, s.wait())
		require.Equal(t, pglogrepl.LSN(0x7000), s.lastReport())
	})
}

// The causes of an end, in each state that a Receiver can be in.
var states = map[string]func(s *session){
	"idle": func(*session) {},
	"inside a transaction": func(s *session) {
		s.send(begin(0x7000), outbox(), event("a", 0))
	},
	"inside a message": func(s *session) {
		s.send(begin(0x7000), outbox())
		s.out <- frame(event("a", 100))[:50]
	},
	"waiting for a free batch": func(s *session) {
		s.send(begin(0x7000), outbox())
		for range 2 * decoder.Batches {
			s.send(event("a", 600))
		}
	},
	"draining": func(s *session) {
		s.send(transaction(0x7000, "a")...)
		s.settle()
		s.stop()
	},
}

func TestACancelEndsARunAtOnceAndConfirmsWhatIsFlushed(t *testing.T) {
	for name, reach := range states {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := receive(newFakePostgres(t), 1000)
				s.send(transaction(0x6000, "before")...)
				s.release(s.batch())
				reach(s)
				s.settle()
				cancelled := time.Now()
				s.cancel(errTest)
				require.ErrorIs(t, s.wait(), errTest)
				if name != "inside a message" { // the answer comes after the rest of it
					require.Less(t, time.Since(cancelled), closeTimeout/10)
				}
				require.Equal(t, pglogrepl.LSN(0x6000), s.lastReport())
			})
		})
	}
}

func TestACancelEndsSoonThoughPostgresIsSilent(t *testing.T) {
	for name, reach := range states {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakePostgres(t)
				f.silentAt = requestCopyDone
				s := receive(f, 1000)
				reach(s)
				s.settle()
				cancelled := time.Now()
				s.cancel(errTest)
				require.ErrorIs(t, s.wait(), errTest)
				require.Less(t, time.Since(cancelled), closeTimeout+closeTimeout/10)
			})
		})
	}
}

func TestAStopEndsSoonThoughPostgresIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakePostgres(t)
		f.silentAt = requestCopyDone
		s := receive(f, largeArena)
		s.settle()
		stopped := time.Now()
		s.stop()
		require.ErrorContains(t, s.wait(), "no answer from Postgres")
		require.Equal(t, closeTimeout, time.Since(stopped))
	})
}

func TestAStopAndACancelAtOnceEndARun(t *testing.T) {
	for name, reach := range states {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := receive(newFakePostgres(t), 1000)
				reach(s)
				s.settle()
				s.stop()
				s.cancel(errTest)
				if name == "idle" { // all is done that a stop asks for
					require.NoError(t, s.wait())
					return
				}
				require.ErrorIs(t, s.wait(), errTest)
			})
		})
	}
}

// An interrupt moves the read deadline from another goroutine, which may come late: when the stream is being ended.
func TestALateInterruptDoesNotSpoilTheEndOfTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakePostgres(t)
		f.silentAt = requestCopyDone
		stream := f.mustOpen()
		result := make(chan error, 1)
		go func() { result <- stream.finish() }()
		f.awaitRequest(requestCopyDone)
		synctest.Wait()
		require.NoError(t, stream.conn.Conn().SetReadDeadline(past))
		synctest.Wait()
		f.sendRaw(copyDone...)
		require.NoError(t, await(t, result, "the end of the stream"))
	})
}

func TestRunOverTCP(t *testing.T) {
	f := newFakePostgres(t)
	f.tcp = true
	s := receive(f, 1000)
	for i := range 1000 {
		s.send(transaction(0x6000+pglogrepl.LSN(i), "a")...)
	}
	for n := 0; n < 1000; {
		b := s.batch()
		n += b.Len()
		s.release(b)
	}
	s.stop()
	require.NoError(t, s.wait())
	require.Equal(t, pglogrepl.LSN(0x6000+999), s.lastReport())
}
