package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/workload"
)

const limit = "max.message.bytes"

// alterTopic changes a setting of a topic.
func (o *outbox) alterTopic(aggregateType, name, value string) {
	o.t.Helper()
	admin, err := sarama.NewClusterAdmin(o.brokers, sarama.NewConfig())
	require.NoError(o.t, err)
	defer func() { _ = admin.Close() }()
	require.NoError(o.t, admin.AlterConfig(sarama.TopicResource, o.topic(aggregateType), map[string]*string{name: &value}, false))
}

// pombo runs a command and its subcommand on the test's slot.
func (o *outbox) pombo(wantCode int, args ...string) string {
	o.t.Helper()
	code, out := pombo(o.t, append(append(args[:2:2], "--postgres", o.dsn, "--slot", o.name), args[2:]...)...)
	require.Equal(o.t, wantCode, code, out)
	return out
}

// retry publishes what is parked.
func (o *outbox) retry(wantCode int, more ...string) string {
	o.t.Helper()
	return o.pombo(wantCode, append([]string{"parked", "retry", "--brokers", strings.Join(o.brokers, ","), "--topic", o.prefix + "{{.AggregateType}}"}, more...)...)
}

// parked is the number of parked events, by the status command.
func (o *outbox) parked() int {
	o.t.Helper()
	code, out := pombo(o.t, "status", "--postgres", o.dsn, "--slot", o.name, "--json")
	require.Zero(o.t, code, out)
	var status struct {
		Parked int `json:"parked_events"`
	}
	require.NoError(o.t, json.Unmarshal([]byte(out), &status))
	return status.Parked
}

// G01, B06: an event that is larger than its topic takes is parked with those that follow its key. Others flow. With the limit
// raised they are published in order, and the key flows again.
func TestAnEventThatIsTooLargeIsParkedAndLaterPublishedInOrder(t *testing.T) {
	o := newOutbox(t)
	o.createTopic("Order", 2)
	o.alterTopic("Order", limit, "10000")
	o.consume("Order")
	p := o.streaming("--compression", "none")
	before := o.event("Order", "k", "t", "before")
	large := o.event("Order", "k", "t", strings.Repeat("x", 50_000))
	o.commit(before, large, o.event("Order", "k", "t", "behind"))
	for i := range 50 {
		o.commit(o.event("Order", fmt.Sprint("other", i%5), "t", "flows"))
	}
	o.commit(o.event("Order", "k", "t", "behind too"))
	o.awaitConfirmed(o.walEnd())
	o.awaitReport(func(r workload.Report) bool { return r.Records == 51 && r.Lost == 3 })
	require.Equal(t, 3, o.parked())
	require.Contains(t, p.out.String(), large.ID)
	require.Contains(t, o.pombo(0, "parked", "list"), limit)
	o.retry(3, "--compression", "none")

	// A restart keeps the key closed.
	p.kill()
	p = o.streaming("--compression", "none")
	o.commit(o.event("Order", "k", "t", "behind after a restart"))
	o.awaitConfirmed(o.walEnd())
	require.Equal(t, 4, o.parked())

	o.alterTopic("Order", limit, "100000")
	o.retry(0)
	require.Zero(t, o.parked())
	o.commit(o.event("Order", "k", "t", "flows again"))
	require.Zero(t, o.arrived().Duplicates)
	o.commit(o.event("Order", "k", "t", strings.Repeat("y", 60_000)))
	require.Zero(t, o.arrived().Duplicates, "the raised limit counts without a restart")
	code, _ := p.stop()
	require.Zero(t, code)
}

// The connector goes on writing to a key while it is being retried: nothing passes what is parked.
func TestARetryUnderLoadKeepsTheOrder(t *testing.T) {
	o := newOutbox(t)
	o.createTopic("Order", 2)
	o.alterTopic("Order", limit, "10000")
	o.consume("Order")
	o.streaming("--compression", "none")
	stop := o.load(4, 100)
	for range 3 {
		for i := range 20 { // the keys of the load
			o.exec(`UPDATE aggregate SET seq = seq WHERE id = $1`, fmt.Sprint("Order-", i))
		}
		o.awaitMore(50)
		for i := range 20 {
			o.poison(fmt.Sprint("Order-", i))
		}
		o.await("events are parked", func() bool { return o.parked() >= 40 })
		o.alterTopic("Order", limit, "100000")
		o.retry(0)
		o.alterTopic("Order", limit, "10000")
	}
	stop()
	o.alterTopic("Order", limit, "100000")
	o.awaitConfirmed(o.walEnd())
	o.retry(0)
	o.arrived()
	require.Zero(t, o.parked())
}

// poison commits an event of an aggregate of the load, with the sequence number that is its turn.
func (o *outbox) poison(key string) {
	o.t.Helper()
	e := o.event("Order", key, "OrderChanged", strings.Repeat("x", 20_000))
	tx, err := o.conn.Begin(o.ctx)
	require.NoError(o.t, err)
	err = tx.QueryRow(o.ctx, `INSERT INTO aggregate AS a (id, seq) VALUES ($1, 1) ON CONFLICT (id) DO UPDATE SET seq = a.seq + 1 RETURNING seq`, key).Scan(&e.Seq)
	require.NoError(o.t, err)
	o.insert(tx, e)
	o.ledger.Intend(e)
	require.NoError(o.t, tx.Commit(o.ctx))
	o.ledger.Committed(e)
}

// G05, D15: an event that no topic can take is parked, whatever is wrong with it, and published with a route that is right.
func TestEventsWithoutATopicAreParkedUntilTheRouteIsRight(t *testing.T) {
	o := newLooseOutbox(t, looseTable)
	o.consume("Order", "placed")
	p := o.streaming()
	types := []any{nil, "", "order/created", "заказ", "Order Placed"}
	for _, aggregateType := range types {
		o.insertRow(aggregateType, "k", "t", "v")
	}
	o.insertRow("Order Placed", "k", "t", "behind")
	o.commit(o.event("Order", "k", "t", "flows"))
	o.arrived()
	o.awaitConfirmed(o.walEnd())
	require.Equal(t, len(types)+1, o.parked())
	out := o.retry(3, "--route", "Order Placed="+o.topic("placed"))
	require.Contains(t, out, "published 2")
	require.Equal(t, []string{"v", "behind"}, values(o.read("placed", 2)))
	require.Equal(t, len(types)-1, o.parked())
	code, _ := p.stop()
	require.Zero(t, code)
}

func values(records []workload.Record) (all []string) {
	for _, r := range records {
		all = append(all, string(r.Value))
	}
	return all
}

// With halt an event that is too large stops the connector, and nothing behind it passes; with the limit raised it goes on.
func TestHaltStopsAtAnEventThatIsTooLarge(t *testing.T) {
	o := newOutbox(t)
	o.createTopic("Order", 1)
	o.alterTopic("Order", limit, "10000")
	o.consume("Order")
	o.commit(o.event("Order", "k", "t", "before"))
	large := o.event("Order", "k", "t", strings.Repeat("x", 50_000))
	o.commit(large)
	end := o.walEnd()
	o.commit(o.event("Order", "k", "t", "behind"))
	p := o.run("--on-poison", "halt", "--compression", "none")
	require.Equal(t, 3, p.wait())
	require.Contains(t, p.out.String(), large.ID)
	require.Contains(t, p.out.String(), limit)
	require.Less(t, o.confirmed(), end)
	require.EqualValues(t, 1, o.records("Order"))
	o.alterTopic("Order", limit, "100000")
	o.streaming("--on-poison", "halt", "--compression", "none")
	o.arrived()
}

// An operator may drop one event knowingly, and what waits behind it flows after a retry.
func TestADiscardedEventIsGoneAndTheOthersFlow(t *testing.T) {
	o := newOutbox(t)
	o.createTopic("Order", 1)
	o.alterTopic("Order", limit, "10000")
	o.consume("Order")
	o.streaming("--compression", "none")
	large := o.event("Order", "k", "t", strings.Repeat("x", 50_000))
	o.commit(large)
	o.commit(o.event("Order", "k", "t", "behind"))
	o.awaitConfirmed(o.walEnd())
	require.Contains(t, o.pombo(0, "parked", "show", "--id", large.ID), "50")
	require.Contains(t, o.pombo(0, "parked", "discard", "--id", large.ID, "--yes"), "1")
	o.retry(0)
	o.awaitReport(func(r workload.Report) bool { return r.Records == 1 && r.Lost == 1 })
	o.commit(o.event("Order", "k", "t", "flows again"))
	o.awaitReport(func(r workload.Report) bool { return r.Records == 2 && r.Lost == 1 })
}

// D17, G02: every size that the broker takes is delivered, compressible or not; larger ones are parked and do no harm.
func TestSizesAroundTheLimitOfTheTopic(t *testing.T) {
	o := newOutbox(t)
	for _, codec := range []string{"none", "lz4"} {
		o.createTopic(codec, 1)
		o.createTopic(codec+"-large", 1)
		o.alterTopic(codec+"-large", limit, "5000000")
		o.consume(codec, codec+"-large")
		p := o.streaming("--compression", codec)
		want, wantParked := o.ledger.Report().Records, o.parked()
		for i, size := range []int{999_900, 1_000_000, 1_047_000, 1_048_400, 1_048_576, 1_048_588, 2_000_000, 10} {
			o.commit(o.event(codec+"-large", fmt.Sprint("k", i), "t", noise(size)))
			o.commit(o.event(codec, fmt.Sprint("k", i), "t", strings.Repeat("x", size)))
			want += 2
			if codec == "none" && size >= 1_048_576 {
				want--
				wantParked++
			}
		}
		o.awaitConfirmed(o.walEnd())
		o.awaitReport(func(r workload.Report) bool { return r.Records == want })
		require.Equal(t, wantParked, o.parked())
		code, _ := p.stop()
		require.Zero(t, code)
	}
}

// A payload of 200 MB is parked without harm to other keys, and within three times its size.
func TestAPayloadOf200MBIsParkedWithinThreeTimesItsSize(t *testing.T) {
	const size = 200_000_000
	o := newOutbox(t)
	o.createTopic("Order", 2)
	o.consume("Order")
	p := o.streaming()
	o.exec(`INSERT INTO outbox_event SELECT gen_random_uuid(), 'Order', 'huge', 't', repeat(md5('x'), $1), now()`, size/32)
	for i := range 100 {
		o.commit(o.event("Order", fmt.Sprint("k", i%10), "t", "flows"))
	}
	o.arrived()
	o.awaitConfirmed(o.walEnd())
	require.Equal(t, 1, o.parked())
	peak := p.peakMemory()
	t.Logf("peak resident memory %.1f MB", float64(peak)/1e6)
	if len(raceFlags) == 0 { // the race detector multiplies memory
		require.Less(t, peak, int64(3*size))
	}
	code, _ := p.stop()
	require.Zero(t, code)
}

// A compacted topic takes no record without a key, and refuses the whole batch that has one. It is found among the others.
func TestWhatACompactedTopicRefusesIsParkedAlone(t *testing.T) {
	o := newLooseOutbox(t, looseTable)
	o.createTopic("Order", 1)
	o.alterTopic("Order", "cleanup.policy", "compact")
	for i := range 100 {
		o.insertRow("Order", fmt.Sprint("k", i%5), "t", "before")
	}
	refused := []string{o.insertRow("Order", nil, "t", "no key"), o.insertRow("Order", nil, "t", "no key either")}
	for i := range 100 {
		o.insertRow("Order", fmt.Sprint("k", i%5), "t", "behind")
	}
	p := o.streaming()
	o.awaitConfirmed(o.walEnd())
	require.EqualValues(t, 200, o.records("Order"))
	require.Equal(t, 2, o.parked())
	list := o.pombo(0, "parked", "list")
	for _, id := range refused {
		require.Contains(t, list, id)
	}
	code, _ := p.stop()
	require.Zero(t, code)
}

// The connector is killed again and again while it parks: no event is lost, parked twice, or passes one of its key that is parked.
func TestAKillWhileEventsAreParkedLosesNothing(t *testing.T) {
	o := newOutbox(t)
	o.createTopic("Order", 2)
	o.alterTopic("Order", limit, "10000")
	o.consume("Order")
	stop := o.load(4, 100)
	for range 8 {
		p := o.streaming("--compression", "none")
		before := o.parked()
		for i := range 20 {
			o.poison(fmt.Sprint("Order-", i))
		}
		o.await("events are being parked", func() bool { return o.parked() > before })
		p.kill()
	}
	stop()
	o.streaming("--compression", "none")
	o.awaitConfirmed(o.walEnd())
	o.alterTopic("Order", limit, "100000")
	o.retry(0)
	o.arrived()
	require.Zero(t, o.parked())
}
