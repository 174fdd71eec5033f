package sink

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
)

// Whatever a broker goes through, everything is delivered once, in order, when it is back.
func TestOutage(t *testing.T) {
	for name, outage := range map[string]func(tap *wiretap) (end func()){
		"silent, then its connections end": func(tap *wiretap) func() {
			tap.set(func(int, int16) bool { return true }, nil, nil)
			return func() {
				tap.end(func(*tappedConn) bool { return true })
				tap.set(nil, nil, nil)
			}
		},
		"silent, with answers lost": func(tap *wiretap) func() {
			tap.set(nil, func(*produceRequest) bool { return true }, nil)
			return func() {
				tap.end(func(*tappedConn) bool { return true })
				tap.set(nil, nil, nil)
			}
		},
		"silent, and awake again": func(tap *wiretap) func() {
			tap.set(func(int, int16) bool { return true }, nil, nil)
			return func() { tap.set(nil, nil, nil) }
		},
		"stopped and started": func(tap *wiretap) func() {
			tap.stop(0)
			return func() { tap.start(0) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, tap := newCluster(t, 1, kfake.SeedTopics(3, "orders"))
			s := run(t, config(cluster))
			first := s.commit(s.events("orders", keys(3)...)...)
			s.awaitFlushed(first)

			end := outage(tap)
			for range 10 {
				s.commit(s.events("orders", keys(3)...)...)
			}
			eventually(t, "the events are taken", func() bool { return len(s.filled) == 0 })
			require.Equal(t, first, s.flushed.Load())
			end()
			for range 10 {
				s.commit(s.events("orders", keys(3)...)...)
			}
			s.finish(cluster)
		})
	}
}

// While no broker can be reached, the log says so and why.
func TestNoBrokerAnswers(t *testing.T) {
	cluster, tap := newCluster(t, 1, kfake.SeedTopics(3, "orders"))
	s := run(t, config(cluster))
	s.awaitFlushed(s.commit(s.events("orders", keys(3)...)...))
	tap.stop(0)
	s.commit(s.events("orders", keys(3)...)...)
	eventually(t, "a log line", func() bool { return len(s.log.lines()) > 0 })
	require.Contains(t, s.log.lines()[0], `"topic":"orders","event":"event-3","attempt":4`)
	require.Contains(t, s.log.lines()[0], "connection refused")
	tap.start(0)
	s.finish(cluster)
}

// A broker that takes the place of another, at an address of its own, gets what is due.
func TestBrokerIsReplaced(t *testing.T) {
	cluster, tap := newCluster(t, 2, kfake.SeedTopics(4, "orders"))
	for p := range int32(4) {
		require.NoError(t, cluster.MoveTopicPartition("orders", p, 0))
	}
	s := run(t, config(cluster))
	s.awaitFlushed(s.commit(s.events("orders", keys(4)...)...))
	tap.set(func(node int, key int16) bool { return node == 0 && produceRequests(node, key) }, nil, nil)
	s.commit(s.events("orders", keys(4)...)...)
	eventually(t, "requests to the old broker", func() bool { return len(tap.batches("orders")) == 8 })

	_, _, err := cluster.AddNode(7, 0)
	require.NoError(t, err)
	require.NoError(t, cluster.RemoveNode(0)) // the fake cluster elects leaders at random then
	for p := range int32(4) {
		require.NoError(t, cluster.MoveTopicPartition("orders", p, 7))
	}
	tap.stop(0)
	s.commit(s.events("orders", keys(4)...)...)
	s.finish(cluster)
	last := tap.all()[len(tap.all())-1]
	require.Equal(t, 2, last.node, "the third broker that was started")
}
