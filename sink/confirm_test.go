package sink

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/pombo-cdc/pombo/decoder"
)

// I1: an event that its topic does not take holds back the flushed position, however much behind it is acknowledged. Of
// the memory it holds its own batch.
func TestNothingIsFlushedBeforeItsPredecessors(t *testing.T) {
	cluster, tap := newCluster(t, 1, kfake.SeedTopics(1, "orders", "payments"))
	s := run(t, config(cluster))
	first := s.commit(s.events("payments", "a")...)
	s.awaitFlushed(first)

	fault := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders", Err: kerr.NotEnoughReplicas, Count: -1})
	s.commit(append(s.events("payments", "a"), row{"blocked", "orders", "a", "Happened", ""})...)
	const behind = 20
	for range behind {
		s.commit(s.events("payments", "a")...)
	}
	eventually(t, "payments are written", func() bool { return cluster.PartitionInfo("payments", 0).HighWatermark == behind+2 })
	tap.set(produceRequests, nil, nil)
	s.commit(s.events("payments", "a")...)
	eventually(t, "one more is sent, so the answers to those before have been dealt with", func() bool {
		return sumRecords(tap.batches("payments")) == behind+3
	})
	require.Equal(t, first, s.flushed.Load())
	require.Equal(t, decoder.Batches-2, s.pool.Available(), "batches but for that of the event and the one on its way")

	fault.Remove()
	tap.set(nil, nil, nil)
	s.finish(cluster)
}

// What flows past an event that is stuck is sent again after a crash, so it is bounded, however long that lasts.
func TestWhatFlowsPastAStuckEventIsBounded(t *testing.T) {
	const size = 1 << 20
	cluster, tap := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	require.NoError(t, cluster.CreateTopic("payments", 1, map[string]string{"max.message.bytes": "2000000"}))
	s := run(t, config(cluster))
	s.awaitFlushed(s.commit(s.events("payments", "a")...))
	fault := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders", Err: kerr.NotEnoughReplicas, Count: -1})
	s.commit(s.events("orders", "a")...)
	budget := s.pool.Budget() / size
	for range budget + 5 {
		large := s.events("payments", "a")
		large[0][4] = strings.Repeat("x", size)
		s.commit(large...)
	}
	eventually(t, "the budget is used up", func() bool { return cluster.PartitionInfo("payments", 0).HighWatermark == int64(1+budget) })
	attempts := len(tap.batches("orders"))
	eventually(t, "the sender goes on", func() bool { return len(tap.batches("orders")) > attempts })
	require.EqualValues(t, 1+budget, cluster.PartitionInfo("payments", 0).HighWatermark)

	fault.Remove()
	s.finish(cluster)
}

func sumRecords(batches []producedBatch) (n int32) {
	for _, b := range batches {
		n += b.NumRecords
	}
	return n
}
