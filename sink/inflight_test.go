package sink

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func produceRequests(_ int, key int16) bool { return key == int16(kmsg.Produce) }

// I7: while a request is not answered its partition sends nothing more; the other partitions go on.
func TestOneRequestInFlightPerPartition(t *testing.T) {
	cluster, tap := newCluster(t, 1, kfake.SeedTopics(2, "orders"))
	s := run(t, config(cluster))
	s.awaitFlushed(s.commit(s.onPartition(2, 0)...))
	tap.set(produceRequests, nil, nil)
	for p := range int32(2) {
		s.commit(s.onPartition(2, p)...)
		eventually(t, "a request", func() bool { return len(tap.all()) == int(p)+2 })
		s.commit(s.onPartition(2, 0)...)
	}
	// When the request of partition 1 was sent, another event of partition 0 had been waiting for a while.
	for p, b := range tap.batches("orders")[1:] {
		require.EqualValues(t, p, b.partition)
		require.EqualValues(t, 1, b.NumRecords)
	}

	tap.set(nil, nil, nil)
	s.finish(cluster)
	require.Len(t, tap.all(), 4, "the events that waited go together")
}

// A broker that does not answer holds up its own partitions only.
func TestBrokersDoNotWaitForEachOther(t *testing.T) {
	cluster, tap := newCluster(t, 2, kfake.SeedTopics(2, "orders"))
	for p := range int32(2) {
		require.NoError(t, cluster.MoveTopicPartition("orders", p, p))
	}
	s := run(t, config(cluster))
	tap.set(func(node int, key int16) bool { return node == 0 && produceRequests(node, key) }, nil, nil)
	s.commit(s.onPartition(2, 0)...)
	for range 10 {
		s.commit(s.onPartition(2, 1)...)
	}
	eventually(t, "partition 1 is written", func() bool { return cluster.PartitionInfo("orders", 1).HighWatermark == 10 })
	require.Zero(t, cluster.PartitionInfo("orders", 0).HighWatermark)
	require.Zero(t, s.flushed.Load())
	tap.set(nil, nil, nil)
	s.finish(cluster)
}

// With hundreds of partitions a request carries many, and a broker never has more than its share.
func TestReadyPartitionsShareRequests(t *testing.T) {
	const partitions, first = 300, 250
	cluster, tap := newCluster(t, 2, kfake.SeedTopics(partitions, "orders"), kfake.SeedTopics(1, "payments"))
	for p := range int32(partitions) {
		require.NoError(t, cluster.MoveTopicPartition("orders", p, 0))
	}
	require.NoError(t, cluster.MoveTopicPartition("payments", 0, 1))
	s := run(t, config(cluster))
	everywhere := keys(partitions)
	tap.set(produceRequests, nil, nil)
	s.commit(s.events("orders", everywhere[:first]...)...)
	s.commit(s.events("orders", everywhere[:first]...)...)
	eventually(t, "these partitions are sent", func() bool { return len(tap.batches("orders")) == first })
	require.Len(t, tap.all(), maxOpenRequests)
	for _, r := range tap.all() {
		require.Len(t, r.batches, first/maxOpenRequests)
	}
	s.commit(s.events("orders", everywhere[first:]...)...)
	s.commit(s.events("payments", "a")...)
	eventually(t, "a request to the other broker", func() bool { return len(tap.batches("payments")) == 1 })
	require.Len(t, tap.batches("orders"), first, "the rest waits for an answer")

	tap.set(nil, nil, nil)
	for range 10 {
		s.commit(s.events("orders", everywhere...)...)
	}
	s.finish(cluster)
	require.Equal(t, maxOpenRequests, tap.mostOpen[0])
}

// With few partitions each has a request of its own, so that none waits for another's answer.
func TestFewPartitionsDoNotShareRequests(t *testing.T) {
	cluster, tap := newCluster(t, 1, kfake.SeedTopics(maxOpenRequests, "orders"))
	s := run(t, config(cluster))
	s.commit(s.events("orders", keys(maxOpenRequests)...)...)
	s.finish(cluster)
	for _, r := range tap.all() {
		require.Len(t, r.batches, 1)
	}
}
