package rig

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pombo-cdc/pombo/integration/stack"
)

// embedded are servers without a Postgres.
func embedded(t *testing.T) *Servers {
	t.Helper()
	t.Setenv("POMBO_TEST_KAFKA", "embedded")
	t.Setenv("POMBO_TEST_REAL", "")
	kafka, err := stack.StartKafka(t.Context(), stack.KafkaOptions{})
	require.NoError(t, err)
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka.Brokers()...), kgo.MetadataMinAge(metadataAge))
	require.NoError(t, err)
	s := &Servers{kafka: kafka, client: client, log: t.Output()}
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func (s *Servers) produce(t *testing.T, topic string, keys ...int) {
	t.Helper()
	for _, key := range keys {
		r := &kgo.Record{Topic: topic, Key: []byte(strconv.Itoa(key))}
		require.NoError(t, s.client.ProduceSync(t.Context(), r).FirstErr())
	}
}

func TestRecordsOfAllTopicsAreCounted(t *testing.T) {
	s := embedded(t)
	made, err := s.createTopics(t.Context(), Shape{Topics: 3, Partitions: 2})
	require.NoError(t, err)
	require.Len(t, made.names, 3)
	for _, name := range made.names {
		s.produce(t, name, 1, 2, 3, 4)
	}
	n, err := s.count(t.Context(), made)
	require.NoError(t, err)
	require.EqualValues(t, 12, n)
	require.NoError(t, s.deleteTopics(t.Context(), made))
}

func TestArrivalsCountEachEventOnceAndNoneOfTheLead(t *testing.T) {
	s := embedded(t)
	made, err := s.createTopics(t.Context(), Shape{Topics: 1, Partitions: 1})
	require.NoError(t, err)
	a, err := s.consume(t.Context(), made, Pace{Rate: 2, Lead: time.Second, Duration: time.Second})
	require.NoError(t, err)
	defer a.close()
	s.produce(t, made.template, first)
	require.NoError(t, awaitArrival(t.Context(), a.opened, nil))
	for number := range a.sent {
		a.sent[number].Store(a.clock())
	}
	s.produce(t, made.template, 0, 1, 2, 2, 1, 3)
	require.NoError(t, awaitArrival(t.Context(), a.all, nil))
	a.close()
	require.EqualValues(t, 2, a.latency.TotalCount(), "of four, two are of the first second")
}
