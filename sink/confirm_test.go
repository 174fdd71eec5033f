package sink

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/pombo-cdc/pombo/decoder"
)

// I1: an event that its topic does not take holds back the flushed position and the memory of everything behind
// it, however much of that is acknowledged.
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
	s.commit(s.events("payments", "a")...)
	eventually(t, "one more is sent, so the answers to those before have been dealt with", func() bool {
		return sumRecords(tap.batches("payments")) == behind+3
	})
	require.Equal(t, first, s.flushed.Load())
	require.Equal(t, decoder.Batches-behind-2, s.pool.Available())

	fault.Remove()
	s.finish(cluster)
}

func sumRecords(batches []producedBatch) (n int32) {
	for _, b := range batches {
		n += b.NumRecords
	}
	return n
}
