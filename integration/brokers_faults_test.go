//go:build faults

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/pombo-cdc/pombo/integration/stack"
	"github.com/pombo-cdc/pombo/integration/workload"
)

// B01: connections are reset every one to three seconds and the broker restarts, while one partition takes the events of
// twenty keys. Nobody ever sees event n+1 of a key before event n.
func TestOnePartitionKeepsItsOrderThroughResetsAndRestarts(t *testing.T) {
	broker := newProxiedKafka(t, nil)
	o := newOutbox(t)
	o.brokers = broker.Direct()
	o.createTopic("Order", 1)
	o.consume("Order")
	p := o.streaming("--brokers", broker.Brokers()[0])
	stop := o.load(4, 330) // transactions, of three events on average
	ctx, cancel := context.WithCancel(o.ctx)
	var resets sync.WaitGroup
	resets.Go(func() {
		for {
			select {
			case <-time.After(time.Second + rand.N(2*time.Second)):
				broker.Proxy().Reset()
			case <-ctx.Done():
				return
			}
		}
	})
	for range 5 {
		o.awaitMore(10_000)
		require.NoError(t, broker.Stop(o.ctx))
		begun := o.ledger.Report().Committed
		o.awaitReport(func(r workload.Report) bool { return r.Committed > begun+1000 })
		require.NoError(t, broker.Start(o.ctx))
	}
	stop()
	cancel()
	resets.Wait()
	t.Logf("%+v", o.arrived())
	o.awaitConfirmed(o.walEnd())
	code, _ := p.stop()
	require.Zero(t, code)
}

// G08.
func TestABrokerThatRestartsFifteenTimesUnderLoadLosesAndReordersNothing(t *testing.T) {
	broker := fragile.get(t)
	o := newOutbox(t)
	o.brokers = broker.Brokers()
	o.createTopic("Order", 4)
	o.consume("Order")
	p := o.streaming()
	stop := o.load(4, 100)
	for i := range 15 {
		o.awaitMore(300)
		end := broker.Stop
		if i%3 == 2 {
			end = broker.Kill
		}
		require.NoError(t, end(o.ctx))
		begun := o.ledger.Report().Committed
		o.awaitReport(func(r workload.Report) bool { return r.Committed > begun+1500 }) // five seconds and more
		require.NoError(t, broker.Start(o.ctx))
	}
	stop()
	t.Logf("%+v", o.arrived())
	require.NotContains(t, p.out.String(), "session ended", "the loss of Kafka's connections is not one of the session")
	code, _ := p.stop()
	require.Zero(t, code)
}

// G13: with one replica of three left of which two have to be in sync, nothing is acknowledged and so nothing confirmed.
func TestTooFewReplicasInSyncHoldTheSlot(t *testing.T) {
	cluster, err := stack.StartKafkaCluster(t.Context(), stack.KafkaOptions{}, 3)
	require.NoError(t, err)
	t.Cleanup(func() { _ = cluster.Close() })
	o := newOutbox(t)
	o.brokers = cluster.Brokers()
	p := o.streaming("--create-topics")
	o.commit(o.event("Order", "k0", "t", "before"))
	o.awaitConfirmed(o.walEnd())
	require.NoError(t, cluster.AwaitInSync(o.ctx))
	o.consume("Order")
	o.arrived()

	nodes := cluster.Nodes()
	for _, node := range nodes[1:] {
		require.NoError(t, node.Kill(o.ctx))
	}
	o.commit(o.event("Order", "k0", "t", "during"))
	end := o.walEnd()
	for i := range 100 {
		o.commit(o.event("Order", fmt.Sprint("k", i%7), "t", "during"))
	}
	p.await("topic does not take events")
	o.reportedTwice()
	require.Less(t, o.confirmed(), end)
	for _, node := range nodes[1:] {
		require.NoError(t, node.Start(o.ctx))
	}
	o.arrived()
	o.awaitConfirmed(o.walEnd())
	code, _ := p.stop()
	require.Zero(t, code)
}

// G16: brokers forget the producer of a partition that has been idle, and a transactional id that has not been used, both
// after days as a rule and here after a second. A running session goes on, and so does the next instance.
func TestAnIdleProducerThatTheBrokersForgetGoesOn(t *testing.T) {
	broker, err := stack.StartKafka(t.Context(), stack.KafkaOptions{Settings: map[string]string{
		"producer.id.expiration.ms":                                  "1000",
		"producer.id.expiration.check.interval.ms":                   "100",
		"transactional.id.expiration.ms":                             "1000",
		"transaction.remove.expired.transaction.cleanup.interval.ms": "200",
	}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = broker.Close() })
	o := newOutbox(t)
	o.brokers = broker.Brokers()
	o.createTopic("Order", 1)
	o.consume("Order")
	client, err := kgo.NewClient(kgo.SeedBrokers(o.brokers...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	p := o.streaming()
	for range 3 {
		for range 2 {
			o.commit(o.event("Order", "k", "t", "payload"), o.event("Order", "k", "t", "payload"))
			o.arrived()
			o.await("the partition's producer is forgotten", func() bool { return o.producers(client) == 0 })
			o.await("the transactional id is forgotten", func() bool { return !o.known(client) })
		}
		require.NotContains(t, p.out.String(), "session ended")
		code, _ := p.stop()
		require.Zero(t, code)
		p = o.streaming()
	}
	require.Zero(t, o.arrived().Duplicates)
}

// producers is the number of producers that the broker knows for the partition.
func (o *outbox) producers(client *kgo.Client) int {
	o.t.Helper()
	request := kmsg.NewPtrDescribeProducersRequest()
	topic := kmsg.NewDescribeProducersRequestTopic()
	topic.Topic, topic.Partitions = o.topic("Order"), []int32{0}
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(o.ctx, client)
	require.NoError(o.t, err)
	partition := response.Topics[0].Partitions[0]
	require.NoError(o.t, kerr.ErrorForCode(partition.ErrorCode))
	return len(partition.ActiveProducers)
}

// known reports whether the coordinator knows the connector's transactional id.
func (o *outbox) known(client *kgo.Client) bool {
	o.t.Helper()
	request := kmsg.NewPtrDescribeTransactionsRequest()
	request.TransactionalIDs = []string{fmt.Sprintf("pombo-%s-%s", o.name, o.name)}
	response, err := request.RequestWith(o.ctx, client)
	require.NoError(o.t, err)
	return response.TransactionStates[0].ErrorCode != kerr.TransactionalIDNotFound.Code
}

// I10, H09: with the broker away and 200 MB written, status tells the lag that Postgres has and the log what is stuck.
func TestTheLagIsVisibleWhileTheBrokerIsAway(t *testing.T) {
	broker := fragile.get(t)
	o := newOutbox(t)
	o.brokers = broker.Brokers()
	o.createTopic("Order", 4)
	p := o.streaming()
	require.NoError(t, broker.Stop(o.ctx))
	first := o.event("Order", "k", "t", "stuck")
	o.commit(first)
	for range 2 {
		o.exec(bulk(100_000))
	}
	p.await(first.ID)
	require.Contains(t, p.out.String(), o.topic("Order"))
	code, out := pombo(t, "status", "--postgres", o.dsn, "--slot", o.name, "--json")
	require.Zero(t, code, out)
	var status struct {
		Lag int64 `json:"lag_bytes"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &status))
	var lag int64
	require.NoError(t, o.conn.QueryRow(o.ctx, `SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint FROM pg_replication_slots WHERE slot_name = $1`, o.name).Scan(&lag))
	require.Greater(t, lag, int64(200e6))
	require.InDelta(t, lag, status.Lag, 16<<20, "what others write to the server in between")
	require.NoError(t, broker.Start(o.ctx))
	o.awaitRecords("Order", 200_001)
	o.awaitConfirmed(o.walEnd())
}
