package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestKill9TenTimesUnderLoadLosesNothingAndReordersNoKey(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	stop := o.load(4, 300)
	for range 10 {
		p := o.streaming()
		o.awaitMore(200)
		p.kill()
	}
	stop()
	o.streaming()
	r := o.arrived()
	require.GreaterOrEqual(t, r.Committed, 2000)
	t.Logf("%+v", r)
}

// H01, A05.
func TestSIGTERMUnderLoadExitsZeroAndAnIdleRestartSendsNothingAgain(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	stop := o.load(4, 300)
	for range 3 {
		p := o.streaming()
		o.awaitMore(200)
		code, took := p.stop()
		require.Zero(t, code)
		require.Less(t, took, 10*time.Second)
	}
	stop()
	for range 4 {
		p := o.streaming()
		o.arrived()
		o.awaitConfirmed(o.walEnd())
		code, _ := p.stop()
		require.Zero(t, code)
	}
	r := o.arrived()
	require.Zero(t, r.Duplicates, "a clean stop confirms everything that it has sent")
}

// C01.
func TestATransactionOf500000RowsStaysUnder64MiB(t *testing.T) {
	o := newOutbox(t)
	o.exec(`INSERT INTO outbox_event SELECT gen_random_uuid(), 'Bulk', (i % 1000)::text, 't', repeat('x', 300), now() FROM generate_series(1, 500000) i`)
	p := o.streaming()
	o.awaitRecords("Bulk", 500_000)
	o.awaitConfirmed(o.walEnd())
	require.EqualValues(t, 500_000, o.records("Bulk"))
	if len(raceFlags) == 0 { // the race detector multiplies memory
		require.Less(t, p.peakMemory(), int64(64<<20))
	}
	t.Logf("peak resident memory %.1f MiB", float64(p.peakMemory())/(1<<20))
}

// C09, A06: killed in the middle of a transaction that is larger than what can be in flight.
func TestACrashInTheMiddleOfABigTransactionLosesNothing(t *testing.T) {
	o := newOutbox(t)
	o.exec(`INSERT INTO outbox_event SELECT gen_random_uuid(), 'Bulk', (i % 100)::text, 't', repeat('x', 1000), now() FROM generate_series(1, 100000) i`)
	end := o.walEnd()
	for i := range 3 {
		p := o.streaming()
		o.await("some of the transaction is published", func() bool { return o.records("Bulk") > int64(1000+i*20_000) })
		p.kill()
		require.Less(t, o.confirmed(), end, "a part of a transaction does not confirm it")
	}
	o.streaming()
	o.awaitConfirmed(o.walEnd())
	require.Equal(t, 100_000, o.distinct("Bulk"))
}

// A10, H07: late answers of an old session change nothing.
func TestATerminatedWalsenderIsReplacedWithoutLoss(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	stop := o.load(4, 500)
	p := o.streaming()
	for range 20 {
		o.awaitMore(20)
		o.exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active`, o.name)
	}
	stop()
	o.arrived()
	code, _ := p.stop()
	require.Zero(t, code)
}

func TestPostgresRestartsAreSurvived(t *testing.T) {
	// One of its own: the others share theirs.
	o, server := newOutboxOnOwnPostgres(t, nil)
	o.consume("Order")
	p := o.streaming()
	for _, mode := range stopModes {
		o.commit(o.event("Order", "k", "t", "before"))
		o.arrived()
		_ = o.conn.Close(o.ctx)
		require.NoError(t, server.Stop(o.ctx, mode))
		require.NoError(t, server.Start(o.ctx))
		o.conn = o.connect()
		o.commit(o.event("Order", "k", "t", "after"))
		o.arrived()
	}
	code, _ := p.stop()
	require.Zero(t, code)
}
