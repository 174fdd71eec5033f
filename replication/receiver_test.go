package replication

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/checkpoint"
	"github.com/pombo-cdc/pombo/decoder"
)

// session is a Receiver on a fake server. The test is the sender.
type session struct {
	*fakePostgres
	pool    *decoder.Pool
	filled  chan *decoder.Batch
	flushed *checkpoint.Position
	stop    context.CancelFunc
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed when Run has returned and the connection is closed
	err     error         // what it returned
}

// largeArena has room for all the events of a test.
const largeArena = 1 << 16

// receive starts a session whose batches have arena bytes each.
func receive(f *fakePostgres, arena int) *session {
	f.t.Helper()
	layout := decoder.NewLayout("public", "outbox_event")
	stream := f.mustOpen()
	ctx, cancel := context.WithCancelCause(f.t.Context())
	stop, stopNow := context.WithCancel(f.t.Context())
	s := &session{
		fakePostgres: f,
		pool:         decoder.NewPool(arena*decoder.Batches, layout),
		filled:       make(chan *decoder.Batch, decoder.Batches),
		flushed:      new(checkpoint.Position),
		stop:         stopNow,
		cancel:       cancel,
		done:         make(chan struct{}),
	}
	r := NewReceiver(stream, f.source(), layout, s.pool, s.filled, s.flushed)
	go func() {
		defer close(s.done)
		s.err = r.Run(ctx, stop)
		_ = stream.Close()
	}()
	f.t.Cleanup(func() {
		cancel(errTest)
		<-s.done
	})
	return s
}

// batch awaits a batch.
func (s *session) batch() *decoder.Batch {
	s.t.Helper()
	b := await(s.t, s.filled, "a batch")
	require.NotNil(s.t, b, "filled is closed")
	return b
}

// requireClosed checks that no more batches come.
func (s *session) requireClosed() {
	s.t.Helper()
	require.Nil(s.t, await(s.t, s.filled, "the end of the batches"))
}

// release does what the sender does when a batch and all before it are acknowledged.
func (s *session) release(b *decoder.Batch) {
	s.flushed.Advance(b.LSN)
	s.pool.Recycle(b)
}

// wait awaits the end of Run and returns its error.
func (s *session) wait() error {
	s.t.Helper()
	await(s.t, s.done, "the end of Run")
	return s.err
}

// ids are the identities of a batch's events.
func ids(b *decoder.Batch) []string {
	var all []string
	for i := range b.Len() {
		all = append(all, string(b.Event(i).Column(decoder.ID)))
	}
	return all
}

// settle lets everything happen that does not take time.
func (s *session) settle() { synctest.Wait() }

// pass lets time pass, and everything happen that is due by then.
func (s *session) pass(d time.Duration) {
	pass(d)
	synctest.Wait()
}

// reported lets a status interval pass and returns the last position that was reported.
func (s *session) reported() pglogrepl.LSN {
	s.t.Helper()
	s.pass(statusInterval)
	return s.lastReport()
}

// lastReport is the last position that was reported since the last look.
func (s *session) lastReport() pglogrepl.LSN {
	s.t.Helper()
	all := s.newReports()
	require.NotEmpty(s.t, all, "no report")
	return all[len(all)-1].lsn
}

// I1, I4
func TestTheEndOfATransactionIsReportedOnceItsBatchIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		s.send(transaction(0x6000, "a", "b")...)
		b := s.batch()
		require.Equal(t, []string{"a", "b"}, ids(b))
		require.Equal(t, slotPosition, s.reported(), "not acknowledged")
		s.release(b)
		require.Equal(t, pglogrepl.LSN(0x6000), s.reported())
	})
}

// I1
func TestABatchThatIsNotFlushedHoldsBackThePosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		s.send(transaction(0x6000, "a")...)
		a := s.batch()
		s.send(transaction(0x7000, "b")...)
		b := s.batch()
		s.send(keepalive(0x8000, true)) // all of this has been received, and says nothing of what is flushed
		require.Equal(t, slotPosition, s.reported())
		s.release(a)
		require.Equal(t, pglogrepl.LSN(0x6000), s.reported())
		s.release(b)
		require.Equal(t, pglogrepl.LSN(0x8000), s.reported(), "nothing is in flight any more")
	})
}

// I1: nobody but the receiver knows of a batch that is not handed over yet.
func TestABatchBeingFilledHoldsBackThePosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakePostgres(t)
		f.senderTimeout = 6 * time.Millisecond // a report every 2 ms, sooner than the linger
		s := receive(f, largeArena)
		s.send(transaction(0x6000, "a")...)
		s.settle()
		s.send(transaction(0x7000, "b")...)
		s.settle()
		s.release(s.batch())
		s.pass(2 * time.Millisecond)
		require.Empty(t, s.filled, "the second batch lingers")
		require.Equal(t, pglogrepl.LSN(0x6000), s.lastReport())
	})
}

// I4: in the middle of a transaction a keepalive has that transaction's own commit LSN.
func TestAKeepaliveInsideATransactionIsNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		s.send(keepalive(0x5800, false), begin(0x7000), keepalive(0x7000-commitRecord, true))
		require.Equal(t, pglogrepl.LSN(0x5800), s.reported(), "what came before is not part of it")
		s.send(outbox(), event("a", 0), keepalive(0x7000-commitRecord, true))
		require.Equal(t, pglogrepl.LSN(0x5800), s.reported())
		s.release(s.batch())
		require.Equal(t, pglogrepl.LSN(0x5800), s.reported())
		s.send(commit(0x7000))
		require.Equal(t, pglogrepl.LSN(0x7000), s.reported())
	})
}

// I4
func TestABatchCutInsideATransactionKeepsTheStampBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), 1000)
		s.send(transaction(0x6000, "a")...)
		s.release(s.batch())
		s.send(begin(0x7000), outbox(), event("b", 600), event("c", 600), event("d", 600), commit(0x7000))
		b, c, d := s.batch(), s.batch(), s.batch()
		require.Equal(t, pglogrepl.LSN(0x6000), b.LSN)
		require.Equal(t, pglogrepl.LSN(0x6000), c.LSN)
		require.Equal(t, pglogrepl.LSN(0x7000), d.LSN)
		s.release(b)
		s.release(c)
		require.Equal(t, pglogrepl.LSN(0x6000), s.reported())
		s.release(d)
		require.Equal(t, pglogrepl.LSN(0x7000), s.reported())
	})
}

// I4: the first transaction of a session has no stamp before it.
func TestABatchCutInsideTheFirstTransactionConfirmsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		s.send(begin(0x7000), outbox(), event("a", 0))
		b := s.batch()
		require.Zero(t, b.LSN)
		s.release(b)
		require.Equal(t, slotPosition, s.reported())
	})
}

// I2: a transaction that was in flight when the slot was confirmed may end before keepalives of that session, and
// positions that the stream starts with lie before the slot's.
func TestThePositionStartsFromTheSlotsAndIsNeverTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		require.Equal(t, slotPosition, s.nextReport().lsn, "before anything is received")
		s.send(keepalive(slotPosition-0x1000, true))
		require.Equal(t, slotPosition, s.reported())
		s.send(transaction(slotPosition-0x800, "a")...)
		s.release(s.batch())
		require.Equal(t, slotPosition, s.reported())
		s.send(keepalive(0x9000, false))
		require.Equal(t, pglogrepl.LSN(0x9000), s.reported())
		s.send(keepalive(0x8000, true))
		require.Equal(t, pglogrepl.LSN(0x9000), s.reported())
	})
}

// I5
func TestAnIdleSlotAdvancesOnOurOwnTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		for end := pglogrepl.LSN(0x6000); end < 0x10000; end += 0x1000 {
			s.send(keepalive(end, false))
			require.Equal(t, end, s.reported())
		}
	})
}

// I5: with wal_sender_timeout=0 the server says nothing by itself.
func TestASilentServerIsAskedForItsPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakePostgres(t)
		f.senderTimeout = 0
		s := receive(f, largeArena)
		position := slotPosition
		for started, asked := time.Now(), time.Now(); time.Since(started) < time.Hour; {
			r := s.nextReport()
			require.Equal(t, position, r.lsn)
			require.LessOrEqual(t, r.at.Sub(asked), 2*statusInterval)
			if r.reply {
				position, asked = position+1, r.at
				s.send(keepalive(position, false))
			}
		}
	})
}

// I6
func TestReportsGoOnWhileNoBatchIsFree(t *testing.T) {
	const rows = 3 * decoder.Batches
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), 1000)
		s.send(begin(0x7000), outbox())
		for i := range rows {
			s.send(event(string(rune('A'+i)), 600))
		}
		s.send(commit(0x7000))
		var held []*decoder.Batch
		for range decoder.Batches {
			held = append(held, s.batch())
		}
		s.settle()
		s.newReports()

		const outage = 10 * time.Minute
		s.pass(outage)
		reports := s.newReports()
		require.Len(t, reports, int(outage/statusInterval))
		for _, r := range reports {
			require.Equal(t, slotPosition, r.lsn)
		}
		require.Empty(t, s.filled)

		for i := range rows { // one is freed, one more is received
			b := held[0]
			require.Equal(t, []string{string(rune('A' + i))}, ids(b))
			s.release(b)
			if held = held[1:]; i+decoder.Batches < rows {
				held = append(held, s.batch())
			}
		}
		require.Equal(t, pglogrepl.LSN(0x7000), s.reported())
	})
}

// I6
func TestAShortWalSenderTimeoutShortensTheInterval(t *testing.T) {
	for timeout, interval := range map[time.Duration]time.Duration{
		0:                       time.Second,
		time.Hour:               time.Second,
		3 * time.Second:         time.Second,
		1500 * time.Millisecond: 500 * time.Millisecond,
		60 * time.Millisecond:   20 * time.Millisecond,
	} {
		t.Run(timeout.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakePostgres(t)
				f.senderTimeout = timeout
				s := receive(f, largeArena)
				last := s.nextReport()
				for range 10 {
					r := s.nextReport()
					require.Equal(t, interval, r.at.Sub(last.at))
					last = r
				}
				s.send(keepalive(0x6000, true))
				require.LessOrEqual(t, s.nextReport().at.Sub(last.at), interval, "a request does not delay a report")
			})
		})
	}
}

func TestAReplyRequestIsAnsweredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		s.nextReport()
		s.pass(statusInterval / 2)
		asked := time.Now()
		s.send(keepalive(0x6000, true))
		r := s.nextReport()
		require.Equal(t, asked, r.at)
		require.Equal(t, pglogrepl.LSN(0x6000), r.lsn)
	})
}

// A server that shuts down asks without a pause as long as something is not confirmed.
func TestAStormOfReplyRequestsIsAnswered10TimesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		s.nextReport()
		const storm = 10 * time.Second
		for started := time.Now(); time.Since(started) < storm; {
			s.send(keepalive(0x6000, true))
			pass(time.Millisecond)
		}
		s.settle()
		n := len(s.newReports())
		require.LessOrEqual(t, n, int(storm/answerInterval)+1)
		require.GreaterOrEqual(t, n, int(storm/answerInterval)-1)
	})
}
