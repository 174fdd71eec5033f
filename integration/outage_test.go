package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/workload"
)

// A11.
func TestNothingIsConfirmedWhileTheBrokerIsDownAndAllArrivesInOrderWhenItIsBack(t *testing.T) {
	broker := fragile.get(t)
	o := newOutbox(t)
	o.brokers = broker.Brokers()
	o.createTopic("Order", 4)
	o.consume("Order")
	p := o.streaming()
	o.commit(o.event("Order", "k0", "t", "before"))
	o.arrived()
	o.awaitConfirmed(o.walEnd())

	for _, end := range []func() error{
		func() error { return broker.Stop(o.ctx) },
		func() error { return broker.Kill(o.ctx) },
	} {
		require.NoError(t, end())
		o.commit(o.event("Order", "k0", "t", "during"))
		first := o.walEnd()
		for i := range 200 {
			o.commit(o.event("Order", fmt.Sprint("k", i%7), "t", "during"))
		}
		p.await("topic does not take events")
		o.reportedTwice()
		require.Less(t, o.confirmed(), first, "an event that is not acknowledged holds the slot")

		require.NoError(t, broker.Start(o.ctx))
		o.arrived()
		o.awaitConfirmed(o.walEnd())
	}
	code, _ := p.stop()
	require.Zero(t, code)
}

// reportedTwice waits until Postgres has heard from the connector at least twice, so that a position
// that it would wrongly confirm would have been confirmed.
func (o *outbox) reportedTwice() {
	o.t.Helper()
	reply := func() (at time.Time) {
		err := o.conn.QueryRow(o.ctx, `SELECT coalesce(r.reply_time, 'epoch') FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid WHERE s.slot_name = $1`, o.name).Scan(&at)
		require.NoError(o.t, err)
		return at
	}
	for range 2 {
		last := reply()
		o.await("the connector reports", func() bool { return reply().After(last) })
	}
}

// A01, G03.
func TestAnEventOfAMissingTopicHoldsTheSlotWhileOthersFlowAndRecoversByItself(t *testing.T) {
	broker := fragile.get(t)
	o := newOutbox(t)
	o.brokers = broker.Brokers()
	o.createTopic("good", 2)
	o.consume("good", "bad")
	p := o.streaming()

	bad := o.event("bad", "k1", "t", "waits")
	o.commit(bad)
	end := o.walEnd()
	for i := range 200 {
		o.commit(o.event("good", fmt.Sprint("k", i%5), "t", "flows"))
	}
	o.awaitReport(func(r workload.Report) bool { return r.Records == 200 && r.Lost == 1 })
	p.await(bad.ID)
	require.Contains(t, p.out.String(), o.topic("bad"))
	require.Contains(t, p.out.String(), "create it")
	o.reportedTwice()
	require.Less(t, o.confirmed(), end)

	p.kill()
	p = o.streaming()
	o.createTopic("bad", 1)
	o.arrived()
	o.awaitConfirmed(o.walEnd())
	code, _ := p.stop()
	require.Zero(t, code)
}

func TestCreateTopicsCreatesWhatIsMissing(t *testing.T) {
	broker := fragile.get(t)
	o := newOutbox(t)
	o.brokers = broker.Brokers()
	o.consume("New")
	o.streaming("--create-topics")
	o.commit(o.event("New", "k", "t", "first"))
	o.arrived()
}

// A02: the broker stands still again and again, and the connector is killed while it does.
func TestAKillWhileTheBrokerStandsStillLosesNothing(t *testing.T) {
	broker := fragile.get(t)
	o := newOutbox(t)
	o.brokers = broker.Brokers()
	o.createTopic("Order", 4)
	o.consume("Order")
	stop := o.load(4, 500)
	for range 5 {
		p := o.streaming()
		o.awaitMore(100)
		require.NoError(t, broker.Pause())
		begun := o.ledger.Report().Committed
		o.awaitReport(func(r workload.Report) bool { return r.Committed > begun+200 })
		p.kill()
		require.NoError(t, broker.Resume())
	}
	stop()
	o.streaming()
	o.arrived()
}

func TestPomboStartsBeforeKafkaIsThere(t *testing.T) {
	broker := fragile.get(t)
	o := newOutbox(t)
	o.brokers = broker.Brokers()
	o.createTopic("Order", 1)
	o.consume("Order")
	require.NoError(t, broker.Stop(o.ctx))
	o.commit(o.event("Order", "k", "t", "waits"))
	p := o.run()
	p.await(broker.Brokers()[0])
	require.NoError(t, broker.Start(o.ctx))
	o.arrived()
	code, _ := p.stop()
	require.Zero(t, code)
}
