package sink

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/router"
)

const smallLimit = 10_000 // of the topic orders in these tests

// poisonedStream commits one event and then, while no request gets through so that they share batches, a poisoned
// event among others. It returns the rows that have to be delivered all the same.
func poisonedStream(s *session, tap *wiretap, poisoned string) (deliverable []row) {
	s.awaitFlushed(s.commit(s.onPartition(2, 0)...))
	tap.set(produceRequests, nil, nil)
	for range 10 {
		s.commit(s.onPartition(2, 0)...)
	}
	deliverable = slices.Clone(s.rows)
	bad := s.onPartition(2, 0)[0]
	bad[0], bad[4] = "poison", poisoned
	s.commit(bad)
	for range 10 {
		s.commit(s.onPartition(2, 0)...) // behind it, which wait for ever
		deliverable = append(deliverable, s.onPartition(2, 1)...)
		s.commit(deliverable[len(deliverable)-1])
		deliverable = append(deliverable, s.events("payments", "a")...)
		s.commit(deliverable[len(deliverable)-1])
	}
	eventually(s.t, "everything is queued", func() bool { return len(s.filled) == 0 })
	tap.set(nil, nil, nil)
	return deliverable
}

// carriesPoison reports whether the poisoned event is in a produce request.
func carriesPoison(request kmsg.Request) bool {
	return slices.ContainsFunc(request.(*kmsg.ProduceRequest).Topics, func(topic kmsg.ProduceRequestTopic) bool {
		return slices.ContainsFunc(topic.Partitions, func(p kmsg.ProduceRequestTopicPartition) bool {
			return bytes.Contains(p.Records, []byte("poison"))
		})
	})
}

// An event that the brokers refuse is found in its batch. Everything before it and everything in other partitions
// is delivered, nothing behind it is sent, and the flushed position stays before it.
func TestPoisonIsFoundAndNamed(t *testing.T) {
	for name, test := range map[string]struct {
		payload string
		err     *kerr.Error
		reason  error
		message string
	}{
		"too large": {strings.Repeat("x", smallLimit), nil, nil, "with 10,110 bytes it is larger than the 10,000 bytes of the topic's max.message.bytes: raise that, then start again"},
		"invalid":   {"x", kerr.InvalidRecord, sarama.ErrInvalidRecord, "refused with 5 bytes"},
		"too old":   {"x", kerr.InvalidTimestamp, sarama.ErrInvalidTimestamp, "refused with 5 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, tap := newCluster(t, 1, kfake.SeedTopics(1, "payments"))
			require.NoError(t, cluster.CreateTopic("orders", 2, map[string]string{"max.message.bytes": "10000"}))
			if test.err != nil {
				cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{0}, Err: test.err, Count: -1, When: carriesPoison})
			}
			s := run(t, config(cluster))
			deliverable := poisonedStream(s, tap, test.payload)

			var poison *PoisonError
			require.ErrorAs(t, s.result(), &poison)
			require.Equal(t, "poison", poison.EventID)
			require.Equal(t, "orders", poison.Topic)
			require.ErrorContains(t, poison, "event poison cannot be sent to topic orders: "+test.message)
			if test.reason != nil {
				require.ErrorIs(t, poison, test.reason)
			}
			require.EqualValues(t, 11*step, s.flushed.Load())
			s.requireDelivered(cluster, deliverable)
		})
	}
}

// A batch that is larger than its topic takes, of events that are not, is sent in parts.
func TestBatchLargerThanTheTopicTakesIsSplit(t *testing.T) {
	cluster, tap := newCluster(t, 1)
	require.NoError(t, cluster.CreateTopic("orders", 1, map[string]string{"max.message.bytes": "10000"}))
	s := run(t, config(cluster))
	s.awaitFlushed(s.commit(s.events("orders", "a")...))
	tap.set(produceRequests, nil, nil)
	for range 40 {
		rows := s.events("orders", "a", "b", "c", "d", "e")
		for i := range rows {
			rows[i][4] = strings.Repeat("x", smallLimit/15)
		}
		s.commit(rows...)
	}
	eventually(t, "everything is queued", func() bool { return len(s.filled) == 0 })
	tap.set(nil, nil, nil)
	s.finish(cluster)
}

// An event that does not fit into any request is poison too, and found without one.
func TestEventLargerThanARequest(t *testing.T) {
	usual := sarama.MaxRequestSize
	t.Cleanup(func() { sarama.MaxRequestSize = usual })
	sarama.MaxRequestSize = 100_000

	cluster, _ := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	s := run(t, config(cluster))
	large := row{"large", "orders", "a", "Happened", strings.Repeat("x", 200_000)}
	s.commit(append(s.events("orders", "a", "b"), large)...)
	var poison *PoisonError
	require.ErrorAs(t, s.result(), &poison)
	require.Equal(t, "large", poison.EventID)
	require.ErrorContains(t, poison, "with 200,106 bytes it is larger than a request to Kafka may be (98,976 bytes)")
	s.requireDelivered(cluster, s.rows[:2])
}

// An event without a legal topic ends the session once everything before it is delivered.
func TestEventThatCannotBeRouted(t *testing.T) {
	for name, aggregateType := range map[string]any{
		"null":     nil,
		"empty":    "",
		"illegal":  "no/topic",
		"internal": "__consumer_offsets",
	} {
		t.Run(name, func(t *testing.T) {
			cluster, tap := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
			s := run(t, config(cluster))
			first := s.commit(s.events("orders", "a", "b")...)
			tap.set(produceRequests, nil, nil)
			before := s.events("orders", "a", "b")
			s.commit(append(before, row{"lost", aggregateType, "a", "Happened", "x"}, row{"behind", "orders", "a", "Happened", "x"})...)
			s.commit(s.events("orders", "a")...)
			tap.set(nil, nil, nil)

			var poison *PoisonError
			err := s.result()
			require.ErrorAs(t, err, &poison)
			require.Equal(t, "lost", poison.EventID)
			require.Empty(t, poison.Topic)
			require.ErrorContains(t, err, "event lost cannot be routed: ")
			require.ErrorAs(t, err, new(*router.TopicError))
			require.Equal(t, first, s.flushed.Load())
			require.Equal(t, decoder.Batches-2, s.pool.Available(), "with all batches free, the receiver would confirm all that it has received")
			s.requireDelivered(cluster, s.rows[:4])
		})
	}
}

// A poisoned event does not wait for topics that do not take theirs.
func TestPoisonEndsTheSessionBesideABlockedTopic(t *testing.T) {
	cluster, _ := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	s := run(t, config(cluster))
	s.commit(s.events("missing", "a")...)
	s.commit(row{"lost", nil, "a", "Happened", "x"})
	require.ErrorAs(t, s.result(), new(*PoisonError))
	require.Zero(t, s.flushed.Load())
}
