package sink

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
)

// A broker that throttles us gets nothing for as long as it says, and nobody else waits for that.
func TestAThrottledBrokerHoldsUpNoOther(t *testing.T) {
	cluster, tap := newCluster(t, 2, kfake.SeedTopics(2, "orders"))
	for p := range int32(2) {
		require.NoError(t, cluster.MoveTopicPartition("orders", p, p))
	}
	s := run(t, config(cluster))
	tap.change(func() {
		tap.throttle = func(r *produceRequest) time.Duration {
			if r.node == 0 {
				return 5 * patience // longer than the test waits
			}
			return 0
		}
	})
	s.awaitFlushed(s.commit(s.onPartition(2, 0)...))
	s.commit(s.onPartition(2, 0)...)
	s.commit(s.onPartition(2, 1)...)
	eventually(t, "the other broker gets its request", func() bool { return len(tap.all()) == 2 })
	require.EqualValues(t, 1, tap.all()[1].node)
}

// It gets what has waited when the time is over.
func TestAThrottledBrokerIsSentToAgain(t *testing.T) {
	cluster, tap := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	s := run(t, config(cluster))
	const spare = 200 * time.Millisecond
	tap.change(func() { tap.throttle = func(*produceRequest) time.Duration { return spare } })
	s.awaitFlushed(s.commit(s.events("orders", "a")...))
	began := time.Now()
	s.awaitFlushed(s.commit(s.events("orders", "a")...))
	s.awaitFlushed(s.commit(s.events("orders", "a")...))
	require.GreaterOrEqual(t, time.Since(began), spare)
}
