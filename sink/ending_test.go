package sink

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/pombo-cdc/pombo/decoder"
)

// When brokers and session no longer agree on sequence numbers, only a new session can go on.
func TestLostSequenceEndsTheSession(t *testing.T) {
	for _, test := range []struct {
		refusal *kerr.Error
		want    error
	}{
		{kerr.OutOfOrderSequenceNumber, sarama.ErrOutOfOrderSequenceNumber},
		{kerr.UnknownProducerID, sarama.ErrUnknownProducerID},
		{kerr.InvalidProducerEpoch, sarama.ErrInvalidProducerEpoch},
		{kerr.ProducerFenced, sarama.ErrProducerFenced},
		{kerr.InvalidProducerIDMapping, sarama.ErrInvalidProducerIDMapping},
	} {
		t.Run(test.refusal.Message, func(t *testing.T) {
			cluster, tap := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
			s := run(t, config(cluster))
			first := s.commit(s.events("orders", "a")...)
			s.awaitFlushed(first)
			cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: test.refusal})
			s.commit(s.events("orders", "a")...)
			err := s.result()
			require.ErrorIs(t, err, test.want)
			require.ErrorContains(t, err, "produce to orders/0 as producer ")
			require.Equal(t, first, s.flushed.Load())
			require.Len(t, tap.all(), 2, "it is not tried again")
		})
	}
}

// I9: answers that arrive when the session has ended, or the errors in their place, change nothing.
func TestLateAnswersChangeNothing(t *testing.T) {
	cluster, tap := newCluster(t, 2, kfake.SeedTopics(1, "orders", "payments"))
	require.NoError(t, cluster.MoveTopicPartition("orders", 0, 0))
	require.NoError(t, cluster.MoveTopicPartition("payments", 0, 1))
	s := run(t, config(cluster))
	tap.set(nil, func(r *produceRequest) bool { return r.node == 0 }, nil)
	s.commit(s.events("orders", "a")...)
	eventually(t, "the event is written", func() bool { return cluster.PartitionInfo("orders", 0).HighWatermark == 1 })
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "payments", Err: kerr.UnknownProducerID})
	s.commit(s.events("payments", "a")...)
	require.ErrorIs(t, s.result(), sarama.ErrUnknownProducerID)

	tap.set(nil, nil, nil)
	s.close()
	require.NotEmpty(t, s.kafka.posts, "the answer came, or what comes in its place")
	require.Zero(t, s.flushed.Load())
	require.Equal(t, decoder.Batches-2, s.pool.Available())
}

// A second instance under the same name raises the epoch, and the brokers refuse what the first sends after that.
func TestSecondInstanceFencesTheFirst(t *testing.T) {
	cluster, _ := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	cfg := config(cluster)
	cfg.ProducerName = "pombo-db-slot"
	first := run(t, cfg)
	first.awaitFlushed(first.commit(row{"1", "orders", "a", "Happened", "x"}))

	second := run(t, cfg)
	require.Equal(t, first.kafka.producer.id, second.kafka.producer.id)
	require.Equal(t, first.kafka.producer.epoch+1, second.kafka.producer.epoch)
	second.awaitFlushed(second.commit(row{"2", "orders", "a", "Happened", "x"}))

	first.commit(row{"3", "orders", "a", "Happened", "x"})
	require.ErrorIs(t, first.result(), sarama.ErrInvalidProducerEpoch)
	second.commit(row{"4", "orders", "a", "Happened", "x"})
	close(second.filled)
	require.NoError(t, second.result())
	second.requireDelivered(cluster, append(first.rows[:1], second.rows...))
}

// Instances of other names, or of none, do not disturb each other.
func TestInstancesOfOtherNamesAreNotFenced(t *testing.T) {
	cluster, _ := newCluster(t, 1, kfake.SeedTopics(1, "orders", "payments", "refunds"))
	coordinator := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.FindCoordinator}, Observe: true, Count: -1})
	unnamed := []*session{run(t, config(cluster)), run(t, config(cluster))}
	require.Zero(t, coordinator.Hits(), "no coordinator is asked for without a name")
	cfg := config(cluster)
	cfg.ProducerName = "other"
	for i, s := range append(unnamed, run(t, cfg)) {
		s.commit(row{"1", []string{"orders", "payments", "refunds"}[i], "a", "Happened", "x"})
		s.finish(cluster)
	}
	require.Positive(t, coordinator.Hits())
}

func TestOpenWaitsForTheCoordinator(t *testing.T) {
	cluster, _ := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	starting := cluster.Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.CoordinatorLoadInProgress},
		kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.NotCoordinator},
	)
	cfg := config(cluster)
	cfg.ProducerName = "pombo-db-slot"
	s := run(t, cfg)
	require.Equal(t, 2, starting.Hits())
	s.commit(s.events("orders", "a")...)
	s.finish(cluster)
}

func TestOpenNamesTheMissingGrant(t *testing.T) {
	for name, test := range map[string]struct {
		refusal *kerr.Error
		want    string
	}{
		"":              {kerr.ClusterAuthorizationFailed, "grant IdempotentWrite on Cluster"},
		"pombo-db-slot": {kerr.TransactionalIDAuthorizationFailed, "grant Write and Describe on TransactionalId pombo-db-slot, or run with --fencing off"},
	} {
		cluster, _ := newCluster(t, 1)
		cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: test.refusal})
		cfg := config(cluster)
		cfg.ProducerName = name
		_, err := open(t, t.Context(), cfg)
		require.ErrorContains(t, err, test.want)
	}
}

// promptly is how long an end that was asked for may take.
const promptly = time.Second

func TestOpenEndsWithItsContext(t *testing.T) {
	for _, name := range []string{"", "pombo-db-slot"} {
		cluster, tap := newCluster(t, 1)
		tap.set(func(int, int16) bool { return true }, nil, nil)
		cfg := config(cluster)
		cfg.ProducerName = name
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := open(t, ctx, cfg)
			ended <- err
		}()
		eventually(t, "a connection", func() bool { return tap.connections() > 0 })
		asked := time.Now()
		cancel()
		require.Error(t, <-ended)
		require.Less(t, time.Since(asked), promptly)
	}
}

func open(t tester, ctx context.Context, cfg Config) (*Kafka, error) { //nolint:revive // the tester comes first, as everywhere
	s := newSource(t)
	return Open(ctx, cfg, s.router(), s.pool, s.flushed, nopLog)
}

func (w *wiretap) connections() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.conns)
}

func TestOpenWithoutABroker(t *testing.T) {
	cluster, tap := newCluster(t, 1)
	tap.stop(0)
	cfg := config(cluster)
	_, err := open(t, t.Context(), cfg)
	require.ErrorContains(t, err, "get producer id from Kafka at "+cfg.Brokers[0])
}

var errStop = errors.New("asked to stop")

// Run ends at once when it is told to, whatever it waits for.
func TestRunEndsWithItsContext(t *testing.T) {
	for name, silence := range map[string]func(node int, key int16) bool{
		"while a request is not answered": produceRequests,
		"while a look-up is not answered": func(_ int, key int16) bool { return key == int16(kmsg.Metadata) },
		"while a broker says nothing":     func(int, int16) bool { return true },
	} {
		t.Run(name, func(t *testing.T) {
			cluster, tap := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
			s := run(t, config(cluster))
			s.awaitFlushed(s.commit(s.events("orders", "a")...))
			tap.set(silence, nil, nil)
			s.commit(s.events("orders", "a")...)
			s.commit(s.events("missing", "a")...)
			eventually(t, "a request", func() bool { return len(tap.all()) == 2 })
			s.requireStops()
		})
	}
}

// requireStops requires that the session stops promptly.
func (s *session) requireStops() {
	s.t.Helper()
	asked := time.Now()
	s.cancel(errStop)
	require.ErrorIs(s.t, s.result(), errStop)
	require.Less(s.t, time.Since(asked), promptly)
}

// The socket of a broker that reads nothing fills up, and the write waits.
func TestRunEndsWhileAWriteIsBlocked(t *testing.T) {
	cluster, tap := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	s := run(t, config(cluster))
	s.awaitFlushed(s.commit(s.events("orders", "a")...))
	tap.change(func() { tap.deaf = true })
	large := s.events("orders", "a")
	large[0][4] = string(make([]byte, 32<<20)) // more than socket buffers take
	s.commit(large...)
	eventually(t, "the batch is taken", func() bool { return len(s.filled) == 0 })
	s.requireStops()
}
