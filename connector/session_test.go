package connector

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pombo-cdc/pombo/replication"
)

// resent is what the log says when a stop was not clean.
const resent = "some events will be sent again"

// prompt is how soon a connector that waits has to stop, whatever it waits for.
const prompt = 5 * time.Second

func TestAStopEndsEveryWait(t *testing.T) {
	for name, reach := range map[string]func(f *fixture){
		"Postgres refuses connections": func(f *fixture) {
			f.cfg.Source.Postgres.Port = uint16(closedPort(f.t))
			f.start()
			f.awaitLog("connection refused")
		},
		"Postgres is not there": func(f *fixture) {
			dialling := make(chan struct{}, 1)
			f.cfg.Source.Postgres.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
				dialling <- struct{}{}
				<-ctx.Done()
				return nil, ctx.Err()
			}
			f.start()
			await(f.t, dialling, "a connection")
		},
		"Postgres accepts and says nothing":   muted(""),
		"Postgres does not show its catalog":  muted("pg_publication_tables"),
		"Postgres does not start to stream":   muted("START_REPLICATION"),
		"Postgres does not tell the position": muted("confirmed_flush_lsn::text"),
		"another session has the slot": func(f *fixture) {
			f.hold()
			f.start()
			f.awaitLog("standing by")
		},
		"Kafka refuses connections": func(f *fixture) {
			f.cfg.Kafka.Brokers = []string{fmt.Sprintf("127.0.0.1:%d", closedPort(f.t))}
			f.start()
			f.awaitLog("session ended")
		},
		"Kafka accepts and says nothing": func(f *fixture) {
			accepted := f.silentBroker()
			f.start()
			await(f.t, accepted, "a connection to Kafka")
		},
		"there is nothing to do": func(f *fixture) {
			f.start()
			f.awaitLog("streaming")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			reach(f)
			stopped := time.Now()
			f.stop()
			require.NoError(t, await(t, f.stopped, "the end of Run"))
			require.Less(t, time.Since(stopped), prompt)
			require.NotContains(t, f.log.rest(), resent)
			goleak.VerifyNone(t, f.before, goleak.IgnoreAnyFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick")) // sarama's, one for all
		})
	}
}

// closedPort returns a loopback port where nothing listens.
func closedPort(t *testing.T) int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port
}

// muted reaches the state in which Postgres does not answer what has text in it.
func muted(text string) func(*fixture) {
	return func(f *fixture) {
		happened := f.mute(text)
		f.start()
		await(f.t, happened, "a request with "+text)
	}
}

// hold reads the slot in a session of its own.
func (f *fixture) hold() {
	cfg := f.db.Config().Config.Copy()
	cfg.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(f.t.Context(), cfg)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	require.NoError(f.t, pglogrepl.StartReplication(f.t.Context(), conn, f.cfg.Source.Slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names 'pombo'"},
	}))
}

// silentBroker takes the place of Kafka.
func (f *fixture) silentBroker() (accepted <-chan struct{}) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f.t, err)
	connections := make(chan struct{}, 16)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			f.t.Cleanup(func() { _ = conn.Close() })
			connections <- struct{}{}
		}
	}()
	f.t.Cleanup(func() { _ = listener.Close() })
	f.cfg.Kafka.Brokers = []string{listener.Addr().String()}
	return connections
}

func TestAStopEndsThoughPostgresDoesNotSayThatItKnows(t *testing.T) {
	f := newFixture(t)
	silent := f.mute("c\x00\x00\x00\x04") // CopyDone
	f.start()
	f.awaitLog("streaming")
	stopped := time.Now()
	f.stop()
	await(t, silent, "the end of the stream")
	require.NoError(t, await(t, f.stopped, "the end of Run"))
	require.Less(t, time.Since(stopped), prompt)
	require.Contains(t, f.log.rest(), resent)
}

func TestAStopWaitsForWhatIsInFlight(t *testing.T) {
	f := newFixture(t)
	held := f.holdProduce()
	f.start()
	end := f.insert()
	answer := await(t, held, "a produce request")
	f.stop()
	f.awaitReport()
	require.Empty(t, f.stopped)
	answer()
	require.NoError(t, await(t, f.stopped, "the end of Run"))
	require.GreaterOrEqual(t, f.confirmed(), end)
	require.NotContains(t, f.log.rest(), resent)
}

func TestAStopWaitsNoLongerThanTheGracePeriod(t *testing.T) {
	f := newFixture(t)
	f.cfg.Grace = 200 * time.Millisecond
	held := f.holdProduce()
	f.start()
	end := f.insert()
	await(t, held, "a produce request")
	stopped := time.Now()
	f.stop()
	require.NoError(t, await(t, f.stopped, "the end of Run"))
	require.GreaterOrEqual(t, time.Since(stopped), f.cfg.Grace)
	require.Less(t, time.Since(stopped), prompt)
	require.Contains(t, f.log.rest(), resent)
	require.Less(t, f.confirmed(), end)
}

// I9
func TestALateAnswerToAnOldSessionConfirmsNothing(t *testing.T) {
	f := newFixture(t)
	held := f.holdProduce()
	f.start()
	end := f.insert()
	old := await(t, held, "a produce request")

	f.terminateWalsender()
	f.awaitLog("session ended")
	current := await(t, held, "the produce request of the next session")
	old()
	f.awaitReport()
	f.awaitReport()
	require.Less(t, f.confirmed(), end)

	current()
	require.Eventually(t, func() bool { return f.confirmed() >= end }, awaitLimit, 10*time.Millisecond)
	f.stop()
	require.NoError(t, await(t, f.stopped, "the end of Run"))
}

func (f *fixture) terminateWalsender() {
	f.t.Helper()
	var ok bool
	require.NoError(f.t, f.db.QueryRow(f.t.Context(),
		`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, f.cfg.Source.Slot).Scan(&ok))
	require.True(f.t, ok)
}

// awaitReport awaits that Postgres has a report more than now.
func (f *fixture) awaitReport() {
	f.t.Helper()
	last := func() (at time.Time) {
		require.NoError(f.t, f.db.QueryRow(f.t.Context(), `SELECT coalesce(reply_time, 'epoch')
			FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid WHERE slot_name = $1`, f.cfg.Source.Slot).Scan(&at))
		return at
	}
	before := last()
	require.Eventually(f.t, func() bool { return last().After(before) }, awaitLimit, 10*time.Millisecond)
}

// Kafka forgets a transactional id after some days, and with it whom to fence off.
func TestASessionMakesWayForTheNextInTime(t *testing.T) {
	f := newFixture(t)
	f.cfg.term = 50 * time.Millisecond
	f.start()
	for range 5 {
		f.awaitLog("everything received is published and confirmed")
		end := f.insert()
		require.Eventually(t, func() bool { return f.confirmed() >= end }, awaitLimit, 10*time.Millisecond)
	}
	f.stop()
	require.NoError(t, await(t, f.stopped, "the end of Run"))
	require.NotContains(t, f.log.rest(), "session ended", "that is no failure")
}

func TestAnOperatorIsCalledAtOnce(t *testing.T) {
	f := newFixture(t)
	_, err := f.db.Exec(t.Context(), `SELECT pg_drop_replication_slot($1)`, f.cfg.Source.Slot)
	require.NoError(t, err)
	f.start()
	err = await(t, f.stopped, "the end of Run")
	var action *replication.ActionError
	require.ErrorAs(t, err, &action)
	require.True(t, NeedsOperator(err))
	require.NotContains(t, f.log.rest(), "session ended", "whoever called Run logs it")
}

// A session that ends for want of Kafka must not stand in the way of the next one.
func TestASessionThatEndsFreesTheSlot(t *testing.T) {
	f := newFixture(t)
	f.cfg.Kafka.Brokers = []string{fmt.Sprintf("127.0.0.1:%d", closedPort(t))}
	f.start()
	for range 3 {
		f.awaitLog("get producer id from Kafka")
	}
}

// A Kafka that is away, in whatever way, is no reason for Postgres to think that the connector is.
func TestPostgresHearsFromASessionThatWaitsForKafka(t *testing.T) {
	f := newFixture(t)
	_, err := f.db.Exec(t.Context(), `ALTER DATABASE `+f.cfg.Source.Slot+` SET wal_sender_timeout = '1s'`)
	require.NoError(t, err)
	accepted := f.silentBroker()
	f.start()
	await(t, accepted, "a connection to Kafka")
	f.insert()
	walsender := f.walsender()
	require.NotZero(t, walsender)
	for range 9 { // are three timeouts
		f.awaitReport()
	}
	require.Equal(t, walsender, f.walsender())
	require.NotContains(t, f.log.rest(), "session ended")
}

func (f *fixture) walsender() (pid int) {
	f.t.Helper()
	require.NoError(f.t, f.db.QueryRow(f.t.Context(),
		`SELECT coalesce(active_pid, 0) FROM pg_replication_slots WHERE slot_name = $1`, f.cfg.Source.Slot).Scan(&pid))
	return pid
}

// What has been received may still reach Kafka within the grace period.
func TestAStopWhileKafkaIsAwayTellsOfWhatWasReceived(t *testing.T) {
	f := newFixture(t)
	f.cfg.Grace = 200 * time.Millisecond
	accepted := f.silentBroker()
	f.start()
	await(t, accepted, "a connection to Kafka")
	end := f.insert()
	f.awaitSent(end)
	stopped := time.Now()
	f.stop()
	require.NoError(t, await(t, f.stopped, "the end of Run"))
	require.GreaterOrEqual(t, time.Since(stopped), f.cfg.Grace)
	require.Less(t, time.Since(stopped), prompt)
	require.Contains(t, f.log.rest(), resent)
}

// awaitSent awaits that the walsender has sent everything up to a position, and the receiver has reported after that.
func (f *fixture) awaitSent(lsn pglogrepl.LSN) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		return f.position(`SELECT coalesce(max(sent_lsn), '0/0')::text FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid
			WHERE slot_name = '`+f.cfg.Source.Slot+`'`) >= lsn
	}, awaitLimit, 10*time.Millisecond)
	f.awaitReport()
}
