package sink

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
)

// throttleTime is how long a broker is to be spared, in answers that a wiretap changes. It is longer than a test waits.
const throttleTime = 5 * patience

// A broker that throttles us gets nothing for as long as it says, and nobody else waits for that.
func TestAThrottledBrokerHoldsUpNoOther(t *testing.T) {
	cluster, tap := newCluster(t, 2, kfake.SeedTopics(2, "orders"))
	for p := range int32(2) {
		require.NoError(t, cluster.MoveTopicPartition("orders", p, p))
	}
	s := run(t, config(cluster))
	tap.change(func() { tap.throttle = func(r *produceRequest) bool { return r.node == 0 } })
	s.awaitFlushed(s.commit(s.onPartition(2, 0)...))
	s.commit(s.onPartition(2, 0)...)
	s.commit(s.onPartition(2, 1)...)
	eventually(t, "the other broker gets its request", func() bool { return len(tap.all()) == 2 })
	require.EqualValues(t, 1, tap.all()[1].node)
}

// It gets what has waited when the time is over.
func TestAThrottledBrokerIsSentToAgain(t *testing.T) {
	br := &broker{ready: []*partition{{}}, spare: time.Now().Add(time.Hour)}
	require.Positive(t, br.rest())
	br.spare = time.Now()
	require.LessOrEqual(t, br.rest(), time.Duration(0))
}
