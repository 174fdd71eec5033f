package replication

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/decoder"
)

// I3: the slot is the only checkpoint. The grammar of replication commands folds a name that has no quotes of its own.
func TestReplicationStartsWhereTheSlotIs(t *testing.T) {
	for publication, literal := range map[string]string{
		"pombo":      `'"pombo"'`,
		"MyPub":      `'"MyPub"'`,
		"my pub":     `'"my pub"'`,
		"a.b":        `'"a.b"'`,
		"a,b":        `'"a,b"'`,
		`say "hi"`:   `'"say ""hi"""'`,
		"o'clock":    `'"o''clock"'`,
		`back\slash`: `'"back\slash"'`,
	} {
		t.Run(publication, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakePostgres(t)
				src := f.source()
				src.Publication = publication
				s, err := f.open(t.Context(), src)
				require.NoError(t, err)
				t.Cleanup(func() { _ = s.Close() })
				require.Equal(t, `START_REPLICATION SLOT "orders" LOGICAL 0/0 (proto_version '1', publication_names `+literal+`)`,
					f.awaitRequest(requestStart))
			})
		})
	}
}

// I2
func TestAStreamKnowsTheSlotsPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakePostgres(t)
		f.confirmed = 0x16_B374_D848
		require.Equal(t, pglogrepl.LSN(0x16_B374_D848), f.mustOpen().Confirmed())
		f.awaitRequest(requestStart)
		f.awaitRequest(requestConfirmed) // only now does the position stand still
	})
}

// I2: zero would be no position, and pglogrepl would replace it in two of three places.
func TestZeroIsNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakePostgres(t)
		require.Error(t, f.mustOpen().report(t.Context(), 0, false))
		synctest.Wait()
		require.Empty(t, f.newReports())
	})
}

// What a role or database has set must not change the text of values, and a character that cannot be converted would
// stop the slot for good.
func TestTheSessionFixesTheFormOfValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakePostgres(t)
		f.mustOpen()
		parameters := await(t, f.startup, "the startup message")
		for name, value := range map[string]string{
			"replication": "database", "client_encoding": "UTF8", "DateStyle": "ISO", "bytea_output": "hex", "idle_session_timeout": "0",
		} {
			require.Equal(t, value, parameters[name], name)
		}
	})
}

func TestATemporaryStreamStartsWhereItsSlotIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakePostgres(t)
		s, err := OpenTemporary(t.Context(), f.source())
		require.NoError(t, err)
		require.Equal(t, slotPosition, s.Confirmed())
		require.Contains(t, f.awaitRequest("CREATE_REPLICATION_SLOT"), " TEMPORARY ")
		require.Contains(t, f.awaitRequest(requestStart), `SLOT "pombo_tail_4711" LOGICAL 0/0`)
		require.NoError(t, s.Close())
		await(t, f.gone, "the end of the connection")
	})
}

func TestAStartThatPostgresRefusesSaysWhatToDo(t *testing.T) {
	for name, c := range map[string]struct {
		code, message string
		action        string // what an ActionError says; empty: it may pass
		inUse         bool
	}{
		"slot in use":       {code: "55006", message: `replication slot "orders" is active for PID 4711`, inUse: true},
		"slot missing":      {code: "42704", message: `replication slot "orders" does not exist`, action: `slot "orders" does not exist: run`},
		"slot lost":         {code: "55000", message: `cannot read from logical replication slot "orders"`, action: `slot "orders" is lost`},
		"slot lost, in 18":  {code: "55000", message: `can no longer access replication slot "orders"`, action: `slot "orders" is lost`},
		"another state":     {code: "55000", message: "logical decoding requires wal_level >= logical"},
		"starting up":       {code: "57P03", message: "the database system is starting up"},
		"no more walsender": {code: "53300", message: "number of requested standby connections exceeds max_wal_senders"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakePostgres(t)
				f.refusal = &pgproto3.ErrorResponse{Severity: "ERROR", Code: c.code, Message: c.message}
				_, err := f.open(t.Context(), f.source())
				require.Error(t, err)
				require.Equal(t, c.inUse, errors.Is(err, ErrSlotInUse))
				var action *ActionError
				require.Equal(t, c.action != "", errors.As(err, &action))
				require.ErrorContains(t, err, c.action)
				await(t, f.gone, "the end of the connection")
			})
		})
	}
}

func TestOpenEndsWithItsContextHoweverSilentPostgresIs(t *testing.T) {
	for _, request := range []string{requestStartup, requestTimeout, requestStart, requestConfirmed} {
		t.Run(request, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakePostgres(t)
				f.silentAt = request
				ctx, cancel := context.WithCancelCause(t.Context())
				result := make(chan error, 1)
				go func() {
					_, err := f.open(ctx, f.source())
					result <- err
				}()
				f.awaitRequest(request)
				synctest.Wait()
				require.Empty(t, result)
				cancelled := time.Now()
				cancel(errTest)
				require.ErrorIs(t, await(t, result, "the end of Open"), context.Canceled)
				require.Equal(t, cancelled, time.Now())
				await(t, f.gone, "the end of the connection")
			})
		})
	}
}

// A stream that ends or makes no sense ends the session, and nothing that was not acknowledged is confirmed.
func TestABrokenStreamEndsTheRun(t *testing.T) {
	shutdown := &pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P01", Message: "terminating connection due to administrator command"}
	noPublication := &pgproto3.ErrorResponse{Severity: "ERROR", Code: "42704", Message: "no existe la publicación «pombo»"}
	for name, c := range map[string]struct {
		breaks func(f *fakePostgres)
		check  func(t *testing.T, err error)
	}{
		"error":               {sends(shutdown), isCode("57P01")},
		"publication missing": {sends(noPublication), isAction(`publication "pombo" did not exist`)},
		"connection lost":     {(*fakePostgres).hangUp, is(io.ErrUnexpectedEOF)},
		"copy done":           {sends(copyDone...), is(errEnded)},
		"unexpected kind":     {sends(&pgproto3.DataRow{}), says("unexpected message *pgproto3.DataRow")},
		"unknown kind":        {sendsBytes("?\x00\x00\x00\x04"), says("unknown message type")},
		"length too small":    {sendsBytes("d\x00\x00\x00\x03"), says("invalid message length")},
		"empty copy data":     {sendsBytes("d\x00\x00\x00\x04"), says("empty message")},
		"unknown copy data":   {sendsBytes("d\x00\x00\x00\x05z"), says("unexpected message 'z'")},
		"short keepalive":     {sendsBytes("d\x00\x00\x00\x05k"), says("read replication stream: PrimaryKeepaliveMessage")},
		"short XLogData":      {sendsBytes("d\x00\x00\x00\x05w"), says("read replication stream: XLogData")},
		"unknown pgoutput":    {func(f *fakePostgres) { f.send(xlog([]byte("?"))) }, is(decoder.ErrProtocol)},
		"column missing":      {func(f *fakePostgres) { f.send(relation("id", "payload")) }, isMissing("aggregate_type")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := receive(newFakePostgres(t), largeArena)
				s.send(transaction(0x6000, "acknowledged")...)
				s.release(s.batch())
				s.send(transaction(0x7000, "in flight")...)
				s.batch()
				s.settle()
				broken := time.Now()
				c.breaks(s.fakePostgres)
				c.check(t, s.wait())
				require.Equal(t, broken, time.Now())
				s.requireClosed()
				await(t, s.gone, "the end of the connection")
				for _, r := range s.newReports() {
					require.LessOrEqual(t, r.lsn, pglogrepl.LSN(0x6000))
				}
			})
		})
	}
}

func sends(messages ...pgproto3.BackendMessage) func(*fakePostgres) {
	return func(f *fakePostgres) { f.sendRaw(messages...) }
}

func sendsBytes(b string) func(*fakePostgres) {
	return func(f *fakePostgres) { f.out <- []byte(b) }
}

func is(target error) func(*testing.T, error) {
	return func(t *testing.T, err error) { require.ErrorIs(t, err, target) }
}

func says(text string) func(*testing.T, error) {
	return func(t *testing.T, err error) { require.ErrorContains(t, err, text) }
}

func isCode(code string) func(*testing.T, error) {
	return func(t *testing.T, err error) {
		var pgErr *pgconn.PgError
		require.ErrorAs(t, err, &pgErr)
		require.Equal(t, code, pgErr.Code)
	}
}

func isAction(problem string) func(*testing.T, error) {
	return func(t *testing.T, err error) {
		var action *ActionError
		require.ErrorAs(t, err, &action)
		require.Contains(t, action.Problem, problem)
	}
}

func isMissing(column string) func(*testing.T, error) {
	return func(t *testing.T, err error) {
		var missing *decoder.MissingColumnsError
		require.ErrorAs(t, err, &missing)
		require.Contains(t, missing.Columns, column)
	}
}

func TestNoticesAreNoConcernOfTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		s.sendRaw(
			&pgproto3.NoticeResponse{Severity: "WARNING", Message: "a notice"},
			&pgproto3.ParameterStatus{Name: "TimeZone", Value: "UTC"},
		)
		s.send(transaction(0x6000, "a")...)
		require.Equal(t, []string{"a"}, ids(s.batch()))
	})
}

// The wake time comes many times within each message.
func TestAMessageThatComesByteByByteIsWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		for _, msg := range transaction(0x6000, "a", "b") {
			for _, b := range frame(msg) {
				s.out <- []byte{b}
				s.pass(3 * statusInterval / 2)
			}
		}
		s.settle()
		var all []string
		for len(s.filled) > 0 {
			b := <-s.filled
			all = append(all, ids(b)...)
			s.release(b)
		}
		require.Equal(t, []string{"a", "b"}, all)
		require.Equal(t, pglogrepl.LSN(0x6000), s.reported())
	})
}

func TestASilentPostgresIsGivenUp(t *testing.T) {
	for senderTimeout, limit := range map[time.Duration]time.Duration{
		0:               silenceLimit,
		time.Second:     silenceLimit,
		5 * time.Minute: 5 * time.Minute, // it may be busy with a transaction of other tables for half of that
	} {
		t.Run(senderTimeout.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakePostgres(t)
				f.senderTimeout = senderTimeout
				s := receive(f, largeArena)
				s.send(keepalive(0x6000, false))
				heard := time.Now()
				require.ErrorContains(t, s.wait(), "no answer from Postgres")
				require.InDelta(t, limit.Seconds(), time.Since(heard).Seconds(), 2)
			})
		})
	}
}

// While nothing is read, silence is no fault of Postgres.
func TestAnOutageOfKafkaIsNoSilenceOfPostgres(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), 1000)
		s.send(begin(0x7000), outbox())
		for range decoder.Batches + 1 {
			s.send(event("a", 600))
		}
		s.pass(time.Hour)
		s.newReports()
		s.release(s.batch())
		s.pass(silenceLimit / 2)
		require.NotEmpty(t, s.newReports())
		requireOpen(t, s.done)
	})
}
