package connector

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// D06: from then on the stream is silent, and nothing that Postgres says tells it from an outbox in which nobody writes.
func TestASessionEndsWhenThePublicationNoLongerServesIt(t *testing.T) {
	for name, c := range map[string]struct {
		change string
		says   string
		since  int // the version that knows the change
	}{
		"table dropped and created again": {
			`CREATE TABLE again (LIKE outbox_event INCLUDING ALL); DROP TABLE outbox_event; ALTER TABLE again RENAME TO outbox_event`, "lacks table", 0,
		},
		"table swapped by renaming": {
			`CREATE TABLE again (LIKE outbox_event INCLUDING ALL); ALTER TABLE outbox_event RENAME TO old; ALTER TABLE again RENAME TO outbox_event`, "it has public.old", 0,
		},
		"table taken out":  {`ALTER PUBLICATION pombo DROP TABLE outbox_event`, "lacks table", 0},
		"inserts left out": {`ALTER PUBLICATION pombo SET (publish = 'update')`, "does not publish inserts", 0},
		"rows left out":    {`ALTER PUBLICATION pombo SET TABLE outbox_event WHERE (aggregate_type = 'x')`, "leaves out rows", 150000},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if f.version() < c.since {
				return // there is no such thing to go wrong
			}
			f.cfg.watch = 50 * time.Millisecond
			f.start()
			f.awaitLog("streaming")
			end := f.insert()
			_, err := f.db.Exec(t.Context(), c.change, pgx.QueryExecModeSimpleProtocol)
			require.NoError(t, err)
			err = await(t, f.stopped, "the end of Run")
			require.True(t, NeedsOperator(err), err)
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, "rows written before that are not in the stream")
			require.GreaterOrEqual(t, f.confirmed(), end, "it ends as a stop does")
			require.NotContains(t, f.log.rest(), resent)
		})
	}
}

func (f *fixture) version() (version int) {
	f.t.Helper()
	require.NoError(f.t, f.db.QueryRow(f.t.Context(), `SELECT current_setting('server_version_num')::int`).Scan(&version))
	return version
}

func TestWhatIsInFlightWhenTheWatchFindsSomethingGetsTheGracePeriod(t *testing.T) {
	f := newFixture(t)
	f.cfg.watch = 50 * time.Millisecond
	held := f.holdProduce()
	f.start()
	end := f.insert()
	answer := await(t, held, "a produce request")
	_, err := f.db.Exec(t.Context(), `ALTER PUBLICATION pombo DROP TABLE outbox_event`)
	require.NoError(t, err)
	f.awaitLog("stopping")
	f.awaitReport()
	require.Empty(t, f.stopped)
	answer()
	require.True(t, NeedsOperator(await(t, f.stopped, "the end of Run")))
	require.GreaterOrEqual(t, f.confirmed(), end)
}

// D10
func TestAWarningIsLoggedOnceASession(t *testing.T) {
	f := newFixture(t)
	f.cfg.watch = 20 * time.Millisecond
	checks := f.count()
	f.start()
	f.awaitLog("streaming")
	_, err := f.db.Exec(t.Context(), `CREATE TABLE child () INHERITS (outbox_event)`)
	require.NoError(t, err)
	f.awaitLog("children by inheritance (child)")
	f.awaitMore(checks, 5)
	f.stop()
	require.NoError(t, await(t, f.stopped, "the end of Run"))
	require.NotContains(t, f.log.rest(), "inheritance")
}

// count counts the connections to Postgres.
func (f *fixture) count() *atomic.Int64 {
	connections := new(atomic.Int64)
	f.dial(func(dial dialFunc) dialFunc {
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			connections.Add(1)
			return dial(ctx, network, address)
		}
	})
	return connections
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// dial changes how connections to Postgres are made.
func (f *fixture) dial(change func(dialFunc) dialFunc) {
	cfg := f.cfg.Source.Postgres.Copy()
	cfg.DialFunc = change(dialFunc(cfg.DialFunc))
	f.cfg.Source.Postgres = cfg
}

func (f *fixture) awaitMore(count *atomic.Int64, n int64) {
	f.t.Helper()
	before := count.Load()
	require.Eventually(f.t, func() bool { return count.Load() >= before+n }, awaitLimit, 10*time.Millisecond)
}

// refuse has Postgres refuse new connections with an error while it is told to.
func (f *fixture) refuse(code, message string) (refuse func(bool), refused *atomic.Int64) {
	var refusing atomic.Bool
	refused = new(atomic.Int64)
	f.dial(func(dial dialFunc) dialFunc {
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			if !refusing.Load() {
				return dial(ctx, network, address)
			}
			refused.Add(1)
			client, server := net.Pipe()
			go func() {
				defer func() { _ = server.Close() }()
				backend := pgproto3.NewBackend(server, server)
				if _, err := backend.ReceiveStartupMessage(); err != nil {
					return
				}
				backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: code, Message: message})
				_ = backend.Flush()
			}()
			return client, nil
		}
	})
	return refusing.Store, refused
}

// A server that lets nobody in may be busy. The stream is the proof that it works.
func TestASessionLastsThoughPostgresCannotBeAsked(t *testing.T) {
	f := newFixture(t)
	f.cfg.watch = 20 * time.Millisecond
	refuse, refused := f.refuse("53300", "sorry, too many clients already")
	f.start()
	f.awaitLog("streaming")
	refuse(true)
	f.awaitLog("too many clients")
	f.awaitMore(refused, 5)
	end := f.insert()
	require.Eventually(t, func() bool { return f.confirmed() >= end }, awaitLimit, 10*time.Millisecond)
	require.Empty(t, f.stopped)
	log := f.log.rest()
	require.NotContains(t, log, "session ended")
	require.NotContains(t, log, "too many clients", "once a minute")
}

// F09
func TestASessionDoesNotHoldUpAShutdownOfPostgres(t *testing.T) {
	f := newFixture(t)
	f.cfg.watch = 50 * time.Millisecond
	refuse, _ := f.refuse("57P03", "the database system is shutting down")
	f.holdProduce()
	f.start()
	f.awaitLog("streaming")
	f.insert()
	refuse(true)
	f.awaitLog("the replication connection is dropped")
	require.Eventually(t, func() bool { return f.walsender() == 0 }, awaitLimit, 10*time.Millisecond)
}

// What holds a connection to Postgres is asked to leave by a fast shutdown, but awaited by a smart one.
func TestAStandbyDoesNotKeepItsConnection(t *testing.T) {
	f := newFixture(t)
	f.hold()
	connections := f.count()
	f.start()
	f.awaitLog("standing by")
	f.awaitMore(connections, 1)
	f.stop()
	require.NoError(t, await(t, f.stopped, "the end of Run"))
	require.Equal(t, 0, strings.Count(f.log.rest(), "standing by"), "the holder is still the same")
}

// A slot that a session has left, in whatever way, is where the session says.
func TestASlotThatWasMovedMeanwhileIsRefused(t *testing.T) {
	for name, end := range map[string]func(f *fixture){
		"after a stop": func(f *fixture) {
			f.stop()
			require.NoError(f.t, await(f.t, f.stopped, "the end of Run"))
		},
		"after the loss of Postgres": func(f *fixture) {
			f.terminateWalsender()
			f.awaitLog("session ended")
			f.stop()
			require.NoError(f.t, await(f.t, f.stopped, "the end of Run"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.start()
			f.awaitLog("streaming")
			sent := f.insert()
			require.Eventually(t, func() bool { return f.confirmed() >= sent }, awaitLimit, 10*time.Millisecond)
			end(f)

			f.start()
			f.awaitLog("streaming") // it has not been moved
			f.stop()
			require.NoError(t, await(t, f.stopped, "the end of Run"))

			f.insert()
			_, err := f.db.Exec(t.Context(), `SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())`, f.cfg.Source.Slot)
			require.NoError(t, err)
			f.start()
			err = await(t, f.stopped, "the end of Run")
			require.True(t, NeedsOperator(err), err)
			require.ErrorContains(t, err, "somebody moved it")
			require.ErrorContains(t, err, "--accept-gap")
		})
	}
}

// The end of a session that Postgres could not take note of is noted by the next one.
func TestASlotThatIsMovedWhilePostgresIsAwayIsRefused(t *testing.T) {
	f := newFixture(t)
	refuse, _ := f.refuse("57P03", "the database system is starting up")
	f.start()
	f.awaitLog("streaming")
	refuse(true)
	f.terminateWalsender()
	f.awaitLog("starting up")
	f.insert()
	_, err := f.db.Exec(t.Context(), `SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())`, f.cfg.Source.Slot)
	require.NoError(t, err)
	refuse(false)
	require.ErrorContains(t, await(t, f.stopped, "the end of Run"), "somebody moved it")
}

// The record must not lag far behind, or each crash would look as if the slot had been moved; and it must not keep an idle
// database from being idle.
func TestTheRecordFollowsTheSlotWhereThereIsTraffic(t *testing.T) {
	f := newFixture(t)
	f.cfg.watch = 20 * time.Millisecond
	checks := f.count()
	f.start()
	f.awaitLog("streaming")
	recorded := func() pglogrepl.LSN { return f.position(`SELECT lsn::text FROM pombo.slot`) }
	before := recorded()
	end := f.insert()
	require.Eventually(t, func() bool { return f.confirmed() >= end }, awaitLimit, 10*time.Millisecond)
	f.awaitMore(checks, 3)
	require.Equal(t, before, recorded())

	_, err := f.db.Exec(t.Context(), `CREATE TABLE busy AS SELECT repeat(md5(i::text), 10) FROM generate_series(1, 5000) i`)
	require.NoError(t, err)
	end = f.position(`SELECT pg_current_wal_lsn()::text`)
	require.Eventually(t, func() bool { return recorded() > end-worthRecording }, awaitLimit, 10*time.Millisecond)

	before, end = recorded(), f.insert()
	require.Eventually(t, func() bool { return f.confirmed() >= end }, awaitLimit, 10*time.Millisecond)
	f.awaitMore(checks, 3)
	require.Equal(t, before, recorded(), "from there on it takes as much again")
}

// A record that cannot be written at the start of a session is made up for. Otherwise the next start would take what the session
// has confirmed for the work of somebody else.
func TestARecordThatCannotBeWrittenAtTheStartIsWrittenSoon(t *testing.T) {
	f := newFixture(t)
	f.cfg.watch = time.Hour // it does not wait for that
	lock, err := f.db.Begin(t.Context())
	require.NoError(t, err)
	_, err = lock.Exec(t.Context(), `SELECT FROM pombo.slot FOR UPDATE`)
	require.NoError(t, err)
	f.start()
	f.awaitLog("not recorded yet")
	f.awaitLog("streaming")
	require.NoError(t, lock.Rollback(t.Context()))
	session := func() (open bool) {
		require.NoError(t, f.db.QueryRow(t.Context(), `SELECT session IS NOT NULL FROM pombo.slot`).Scan(&open))
		return open
	}
	require.Eventually(t, session, awaitLimit, 10*time.Millisecond)
	end := f.insert()
	require.Eventually(t, func() bool { return f.confirmed() >= end }, awaitLimit, 10*time.Millisecond)
	f.stop()
	require.NoError(t, await(t, f.stopped, "the end of Run"))
	f.start()
	f.awaitLog("streaming")
	f.stop()
	require.NoError(t, await(t, f.stopped, "the end of the next Run"))
}

// Of several servers the first may come back while a session works on another. What it says is not about the slot of the session.
func TestASessionAsksNoOtherServerThanItsOwn(t *testing.T) {
	f := newFixture(t)
	f.cfg.watch = 20 * time.Millisecond
	const elsewhere = "127.0.0.9"
	var asked atomic.Int64
	f.dial(func(dial dialFunc) dialFunc {
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			if strings.HasPrefix(address, elsewhere) {
				asked.Add(1)
				return nil, net.UnknownNetworkError("the test says so")
			}
			return dial(ctx, network, address)
		}
	})
	own := f.cfg.Source.Postgres
	own.Fallbacks = []*pgconn.FallbackConfig{{Host: own.Host, Port: own.Port, TLSConfig: own.TLSConfig}}
	own.Host = elsewhere
	checks := f.count()
	f.start()
	f.awaitLog("streaming")
	f.awaitMore(checks, 5)
	require.EqualValues(t, 1, asked.Load(), "to find out where to go")
	f.stop()
	require.NoError(t, await(t, f.stopped, "the end of Run"))
}
