package sink

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// For as long as it takes, a retry is the same batch with the same sequence numbers, whatever is queued behind it
// meanwhile: so a broker that has it already recognises it, and no event is twice in the topic.
func TestRetryRepeatsTheSameBatch(t *testing.T) {
	refusal := func(err *kerr.Error) func(*kfake.Cluster, *wiretap) func() {
		return func(cluster *kfake.Cluster, _ *wiretap) func() {
			return cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders", Err: err, Count: -1}).Remove
		}
	}
	for name, trouble := range map[string]func(*kfake.Cluster, *wiretap) (cure func()){
		"not leader":                   refusal(kerr.NotLeaderForPartition),
		"leader not available":         refusal(kerr.LeaderNotAvailable),
		"not enough replicas":          refusal(kerr.NotEnoughReplicas),
		"topic authorization failed":   refusal(kerr.TopicAuthorizationFailed),
		"unknown topic":                refusal(kerr.UnknownTopicOrPartition),
		"storage error":                refusal(kerr.KafkaStorageError),
		"written, but timed out":       refusal(kerr.RequestTimedOut),
		"written, but too few in sync": refusal(kerr.NotEnoughReplicasAfterAppend),
		"written, but the answer is lost": func(_ *kfake.Cluster, tap *wiretap) func() {
			tap.set(nil, nil, func(*produceRequest) bool { return true })
			return func() { tap.set(nil, nil, nil) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, tap := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
			s := run(t, config(cluster))
			s.awaitFlushed(s.commit(s.events("orders", "before")...))

			cure := trouble(cluster, tap)
			s.commit(s.events("orders", "first")...)
			tries := func() int { return len(tap.batches("orders")) - 1 }
			eventually(t, "a first try", func() bool { return tries() >= 1 })
			for range 10 {
				s.commit(s.events("orders", "first", "second")...)
			}
			eventually(t, "more tries", func() bool { return tries() >= 4 })
			require.EqualValues(t, step, s.flushed.Load())
			cure()
			s.finish(cluster)

			bySequence := make(map[int32][]byte)
			next := int32(0)
			for _, b := range tap.batches("orders") {
				if raw, seen := bySequence[b.FirstSequence]; seen {
					require.True(t, bytes.Equal(raw, b.raw), "the batch with sequence number %d has changed", b.FirstSequence)
					continue
				}
				require.Equal(t, next, b.FirstSequence)
				bySequence[b.FirstSequence] = b.raw
				next += b.NumRecords
			}
			require.LessOrEqual(t, len(s.log.lines()), 4, "log lines")
		})
	}
}
