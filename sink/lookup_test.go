package sink

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A partition that was ready for a broker is not forgotten when it gets another leader and the old one then goes.
func TestPartitionMovesWhileItsLeaderIsSilent(t *testing.T) {
	cluster, tap := newCluster(t, 2, kfake.SeedTopics(8, "orders"))
	for p := range int32(8) {
		require.NoError(t, cluster.MoveTopicPartition("orders", p, p/7)) // the last on broker 1
	}
	s := run(t, config(cluster))
	s.awaitFlushed(s.commit(s.onPartition(8, 6)...))

	// Broker 0 has as many requests as it may, with one more partition ready for it.
	tap.set(func(node int, key int16) bool { return node == 0 && key == int16(kmsg.Produce) }, nil, nil)
	for p := range int32(maxOpenRequests) {
		s.commit(s.onPartition(8, p)...)
		eventually(t, "a request", func() bool { return len(tap.all()) == 2+int(p) })
	}
	s.commit(s.onPartition(8, 6)...)

	// The topic is looked up again, and that partition has moved.
	require.NoError(t, cluster.MoveTopicPartition("orders", 6, 1))
	fault := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{7}, Err: kerr.NotLeaderForPartition})
	s.commit(s.onPartition(8, 7)...)
	eventually(t, "partition 7 is refused", func() bool { return fault.Hits() == 1 })
	eventually(t, "partition 7 is sent again", func() bool {
		n := 0
		for _, b := range tap.batches("orders") {
			if b.partition == 7 {
				n++
			}
		}
		return n == 2
	})
	tap.set(nil, nil, nil)
	tap.cut(0)
	s.finish(cluster)
}

// A connection that is lost while topics are looked up is replaced once, not again and again.
func TestConnectionLostDuringLookUp(t *testing.T) {
	cluster, tap := newCluster(t, 1, kfake.SeedTopics(2, "orders", "payments"))
	s := run(t, config(cluster))
	s.awaitFlushed(s.commit(s.events("orders", "a")...))

	tap.set(func(_ int, key int16) bool { return key == int16(kmsg.Metadata) }, nil, nil)
	s.commit(s.events("payments", "a")...)
	for i := range 20 {
		s.commit(s.events("orders", fmt.Sprint("key", i))...)
	}
	tap.cut(0)
	tap.set(nil, nil, nil)
	s.finish(cluster)
	require.Less(t, len(tap.all()), 60)
}

// Look-ups do not hold up what is ready to be sent.
func TestEventsFlowWhileALookUpIsNotAnswered(t *testing.T) {
	cluster, tap := newCluster(t, 1, kfake.SeedTopics(1, "orders", "payments"))
	s := run(t, config(cluster))
	first := s.commit(s.events("orders", "a")...)
	s.awaitFlushed(first)

	tap.set(func(_ int, key int16) bool { return key == int16(kmsg.Metadata) }, nil, nil)
	s.commit(s.events("payments", "a")...)
	s.commit(s.events("orders", "a")...)
	eventually(t, "the second request", func() bool { return len(tap.batches("orders")) == 2 })
	s.commit(s.events("orders", "a")...)
	eventually(t, "the third request", func() bool { return len(tap.batches("orders")) == 3 })
	require.Equal(t, first, s.flushed.Load())
	tap.set(nil, nil, nil)
	s.finish(cluster)
}

// Brokers that accept connections and then say nothing are waited for together, and only for a short time: other topics are
// looked up meanwhile.
func TestSilentBrokersHoldUpALookUpOnce(t *testing.T) {
	cluster, tap := newCluster(t, 4, kfake.SeedTopics(4, "orders"), kfake.SeedTopics(1, "payments"))
	for p := range int32(4) {
		require.NoError(t, cluster.MoveTopicPartition("orders", p, p))
	}
	require.NoError(t, cluster.MoveTopicPartition("payments", 0, 0))
	cfg := config(cluster)
	cfg.Brokers = cfg.Brokers[:1]
	s := run(t, cfg)
	tap.set(func(node int, _ int16) bool { return node > 0 }, nil, nil)
	s.commit(s.onPartition(4, 1)...)
	eventually(t, "the others are connected to", func() bool { return tap.connected(1, 2, 3) })
	s.commit(s.events("payments", "a")...)
	// Each has its time to answer; the limit is only when the test gives up.
	require.Eventually(t, func() bool { return cluster.PartitionInfo("payments", 0).HighWatermark == 1 }, 3*readTimeout, time.Millisecond)
	tap.set(nil, nil, nil)
	s.finish(cluster)
}
