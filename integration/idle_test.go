package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (o *outbox) walsender() (pid int) {
	o.t.Helper()
	require.NoError(o.t, o.conn.QueryRow(o.ctx, `SELECT coalesce(active_pid, 0) FROM pg_replication_slots WHERE slot_name = $1`, o.name).Scan(&pid))
	return pid
}

// F01, F10: no rows for the outbox, but WAL of other tables; no table for heartbeats; also where the server never speaks first.
func TestAQuietOutboxInABusyDatabaseHoldsNoWAL(t *testing.T) {
	for _, timeout := range []string{"60s", "0"} {
		o := newOutbox(t)
		o.exec(`ALTER DATABASE ` + o.name + ` SET wal_sender_timeout = '` + timeout + `'`)
		o.exec(`CREATE TABLE busy (x text)`)
		o.streaming()
		before := o.lsn(`SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = $1`, o.name)
		for range 5 {
			o.exec(`INSERT INTO busy SELECT repeat(md5(i::text), 30) FROM generate_series(1, 5000) i`)
			o.awaitConfirmed(o.walEnd())
		}
		o.await("restart_lsn moves", func() bool {
			o.exec(`CHECKPOINT`)
			o.exec(`INSERT INTO busy VALUES ('x')`)
			return o.lsn(`SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = $1`, o.name) > before
		})
	}
}

// F04, F05, F07: silence is no reason to part, whatever Postgres thinks of it, and costs nothing.
func TestSilenceDoesNotEndTheSession(t *testing.T) {
	for _, timeout := range []string{"1s", "0", "1h"} {
		o := newOutbox(t)
		o.exec(`ALTER DATABASE ` + o.name + ` SET wal_sender_timeout = '` + timeout + `'`)
		p := o.streaming()
		pid := o.walsender()
		used, began := p.cpuTime(), time.Now()
		for range 6 { // six reports are more than two timeouts of a second
			o.reportedTwice()
		}
		if len(raceFlags) == 0 {
			require.Less(t, p.cpuTime()-used, time.Since(began)/50)
		}
		require.Equal(t, pid, o.walsender())
		require.NotContains(t, p.out.String(), "session ended")
	}
}

// A09, F03: while a backlog is worked off, the slot advances step by step.
func TestTheSlotAdvancesWhileABacklogIsWorkedOff(t *testing.T) {
	o := newOutbox(t)
	for range 40 {
		o.exec(`INSERT INTO outbox_event SELECT gen_random_uuid(), 'Bulk', i::text, 't', repeat('x', 1000), now() FROM generate_series(1, 2000) i`)
	}
	start, end := o.confirmed(), o.walEnd()
	p := o.streaming("--buffer", "1MiB")
	steps, last := 0, start
	o.await("the backlog is worked off", func() bool {
		now := o.confirmed()
		require.GreaterOrEqual(t, now, last, "the confirmed position never goes back")
		if now > last && now < end {
			steps++
		}
		last = now
		return now >= end
	})
	require.EqualValues(t, 80_000, o.records("Bulk"))
	t.Logf("%d steps between start and end", steps)
	code, _ := p.stop()
	require.Zero(t, code)
}

// A07: what is committed while no connector runs is not skipped.
func TestEventsWrittenWhileStoppedArrive(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	p := o.streaming()
	o.commit(o.event("Order", "k", "t", "1"))
	o.arrived()
	p.kill()
	for range 100 {
		o.commit(o.event("Order", "k", "t", "while stopped"))
	}
	o.exec(`SELECT pg_switch_wal()`)
	o.exec(`CREATE TABLE other AS SELECT i FROM generate_series(1, 10000) i`)
	o.streaming()
	o.arrived()
}

// C05: transactions without a row for the outbox.
func TestManyForeignTransactionsCostNothing(t *testing.T) {
	o := newOutbox(t)
	o.exec(`CREATE TABLE other (x int)`)
	o.exec(`CREATE PROCEDURE churn() LANGUAGE plpgsql AS $$ BEGIN FOR i IN 1..20000 LOOP INSERT INTO other VALUES (i); COMMIT; END LOOP; END $$`)
	o.streaming()
	o.exec(`CALL churn()`)
	o.awaitConfirmed(o.walEnd())
}
