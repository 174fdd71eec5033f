package sink

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A topic that is missing holds up only itself, is named in the log, and takes its events when it appears.
func TestMissingTopicRecovers(t *testing.T) {
	cluster, _ := newCluster(t, 1, kfake.SeedTopics(1, "payments"))
	s := run(t, config(cluster))
	s.commit(s.events("orders", "a", "b", "a")...)
	s.commit(s.events("payments", "a")...)
	eventually(t, "a payment is written", func() bool { return cluster.PartitionInfo("payments", 0).HighWatermark == 1 })
	eventually(t, "a log line", func() bool { return len(s.log.lines()) > 0 })
	require.Contains(t, s.log.lines()[0], `"topic":"orders","event":"event-0","attempt":4`)
	require.Contains(t, s.log.lines()[0], "the topic does not exist: create it, or run with --create-topics")
	require.Zero(t, s.flushed.Load())

	require.NoError(t, cluster.CreateTopic("orders", 3, nil))
	s.finish(cluster)
}

func TestCreateTopics(t *testing.T) {
	cluster, _ := newCluster(t, 2, kfake.DefaultNumPartitions(7))
	cfg := config(cluster)
	cfg.CreateTopics = true
	s := run(t, cfg)
	for range 5 {
		s.commit(s.events("orders", "a", "b", "c")...)
		s.commit(s.events("payments", "a")...)
	}
	s.finish(cluster)
	require.Len(t, cluster.PartitionInfos("orders"), 7)
}

func TestCreateTopicsWithoutTheRight(t *testing.T) {
	cluster, _ := newCluster(t, 1)
	denied := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Err: kerr.ClusterAuthorizationFailed, Count: -1})
	cfg := config(cluster)
	cfg.CreateTopics = true
	s := run(t, cfg)
	s.commit(s.events("orders", "a")...)
	eventually(t, "a log line", func() bool { return len(s.log.lines()) > 0 })
	require.Contains(t, s.log.lines()[0], "access is denied: grant IdempotentWrite on the cluster, or Create to let topics be created")
	denied.Remove()
	s.finish(cluster)
}

// I7: events wait for new partitions until what was sent to the old ones is settled, so that no key is in two
// partitions out of order; in the old ones sequence numbers go on.
func TestPartitionsAddedWhileRunning(t *testing.T) {
	cluster, tap := newCluster(t, 2, kfake.SeedTopics(2, "orders"), kfake.SeedTopics(1, "payments"))
	require.NoError(t, cluster.MoveTopicPartition("orders", 0, 0))
	require.NoError(t, cluster.MoveTopicPartition("orders", 1, 1))
	require.NoError(t, cluster.MoveTopicPartition("payments", 0, 1))
	s := run(t, config(cluster))
	everyKey := make([]string, 40)
	for i := range everyKey {
		everyKey[i] = fmt.Sprint("key", i)
	}
	s.awaitFlushed(s.commit(s.events("orders", everyKey...)...))

	// Partition 0 has something in flight when partition 1 has its topic looked up.
	tap.set(nil, func(r *produceRequest) bool { return r.node == 0 }, nil)
	s.commit(s.onPartition(2, 0)...)
	eventually(t, "partition 0 is sent to", func() bool { return len(tap.batches("orders")) == 3 })
	addPartitions(t, cluster, "orders", 8)
	moved := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{1}, Err: kerr.NotLeaderForPartition})
	s.commit(s.onPartition(2, 1)...)
	eventually(t, "partition 1 is refused", func() bool { return moved.Hits() == 1 })
	eventually(t, "partition 1 is sent to again", func() bool { return len(tap.batches("orders")) == 5 })

	// From now on the topic is known to have more partitions, but nothing goes to any of them.
	s.commit(s.events("orders", everyKey...)...)
	s.commit(s.events("payments", "a")...)
	eventually(t, "a payment is sent", func() bool { return len(tap.batches("payments")) == 1 })
	require.Len(t, tap.batches("orders"), 5)

	tap.set(nil, nil, nil)
	s.commit(s.events("orders", everyKey...)...)
	s.finish(cluster)

	var used []int32
	for _, b := range tap.batches("orders") {
		used = append(used, b.partition)
		if b.partition < 2 && len(used) > 5 {
			require.Positive(t, b.FirstSequence)
		}
	}
	slices.Sort(used)
	require.Equal(t, []int32{0, 1, 2, 3, 4, 5, 6, 7}, slices.Compact(used))
	s.requireKeysInOrder(tap, "orders")
}

// requireKeysInOrder requires that the events of each key arrived in order, whatever their partitions.
func (s *session) requireKeysInOrder(tap *wiretap, topic string) {
	s.t.Helper()
	want, got := make(map[string][]string), make(map[string][]string)
	for _, r := range s.rows {
		if r[1] == topic {
			want[r[2].(string)] = append(want[r[2].(string)], r[0].(string))
		}
	}
	for _, b := range tap.batches(topic) {
		if b.code != 0 {
			continue
		}
		records, err := kfake.BatchRecords(b.RecordBatch)
		require.NoError(s.t, err)
		for _, record := range records {
			got[string(record.Key)] = append(got[string(record.Key)], string(record.Headers[0].Value))
		}
	}
	require.Equal(s.t, want, got)
}

func addPartitions(t tester, cluster *kfake.Cluster, topic string, count int32) {
	conf := sarama.NewConfig()
	conf.Version = sarama.MaxVersion
	admin, err := sarama.NewClusterAdmin(cluster.ListenAddrs(), conf)
	require.NoError(t, err)
	defer func() { require.NoError(t, admin.Close()) }()
	require.NoError(t, admin.CreatePartitions(topic, count, nil, false))
}

// A topic with fewer partitions than it had is another topic: where its keys were is not known any more.
func TestTopicMadeAnewWithFewerPartitionsEndsTheSession(t *testing.T) {
	cluster, _ := newCluster(t, 1, kfake.SeedTopics(3, "orders"))
	s := run(t, config(cluster))
	first := s.commit(s.onPartition(3, 2)...)
	s.awaitFlushed(first)
	require.NoError(t, cluster.DeleteTopic("orders"))
	s.commit(s.onPartition(3, 2)...)
	eventually(t, "a log line", func() bool { return len(s.log.lines()) > 0 })
	require.NoError(t, cluster.CreateTopic("orders", 2, nil))
	require.EqualError(t, s.result(), "topic orders has 2 partitions where it had 3: it was created anew")
	require.Equal(t, first, s.flushed.Load())
}

// A topic that is blocked is in the log a few times, not at every attempt.
func TestBlockedTopicIsLoggedNowAndThen(t *testing.T) {
	cluster, tap := newCluster(t, 1, kfake.SeedTopics(4, "orders"))
	s := run(t, config(cluster))
	denied := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	s.commit(s.events("orders", keys(4)...)...)
	eventually(t, "attempts", func() bool { return len(tap.batches("orders")) > 20 })
	lines := s.log.lines()
	require.Len(t, lines, 2)
	for _, line := range lines {
		require.True(t, strings.HasPrefix(line, `{"level":"warn","topic":"orders","event":"event-0",`), line)
		require.Contains(t, line, `"reason":"access is denied: grant Write and Describe on the topic"`)
	}
	denied.Remove()
	s.finish(cluster)
	require.Contains(t, s.log.lines()[2], `"level":"info","topic":"orders"`)
	require.Contains(t, s.log.lines()[2], "topic takes events again")
	require.LessOrEqual(t, len(s.log.lines()), 4)
}

// However many topics have the same trouble, it takes a few lines of the log.
func TestOneCauseTakesAFewLinesForAllTopics(t *testing.T) {
	cluster, _ := newCluster(t, 1)
	s := run(t, config(cluster))
	missing := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "topic-99", Observe: true, Count: -1})
	for i := range 100 {
		s.commit(s.events(fmt.Sprint("topic-", i), "a")...)
	}
	eventually(t, "attempts", func() bool { return missing.Hits() > 3*worthTelling })
	require.Len(t, s.log.lines(), linesOfCause)
}
