package stack_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/stack"
)

func startCluster(t *testing.T) *stack.KafkaCluster {
	t.Helper()
	began := time.Now()
	c, err := stack.StartKafkaCluster(t.Context(), stack.KafkaOptions{Proxied: true, Log: t.Output()}, 3)
	must(t, err)
	t.Logf("up in %s", time.Since(began).Round(100*time.Millisecond))
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// replicated sends a record, for as long as it takes, that counts only when two brokers have it.
func replicated(t *testing.T, c *stack.KafkaCluster, topic string) (offset int64) {
	t.Helper()
	conf := sarama.NewConfig()
	conf.Net.DialTimeout, conf.Net.ReadTimeout, conf.Net.WriteTimeout = time.Second, time.Second, time.Second
	conf.Producer.RequiredAcks = sarama.WaitForAll
	conf.Producer.Return.Successes = true
	require.Eventually(t, func() bool {
		producer, err := sarama.NewSyncProducer(c.Brokers(), conf)
		if err != nil {
			return false
		}
		_, offset, err = producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("key"), Value: sarama.StringEncoder("value")})
		return errors.Join(err, producer.Close()) == nil
	}, time.Minute, 20*time.Millisecond)
	return offset
}

func TestACluster(t *testing.T) {
	c := startCluster(t)
	require.Len(t, c.Brokers(), 3)
	last := replicated(t, c, "kept")
	goesOn := func(t *testing.T) {
		t.Helper()
		offset := replicated(t, c, "kept")
		require.Greater(t, offset, last)
		last = offset
	}
	t.Run("goes on with any one of its brokers away", func(t *testing.T) {
		stop := func(k *stack.Kafka) error { return k.Stop(t.Context()) }
		kill := func(k *stack.Kafka) error { return k.Kill(t.Context()) }
		start := func(k *stack.Kafka) error { return k.Start(t.Context()) }
		for i, fault := range []struct{ away, back func(*stack.Kafka) error }{
			{stop, start}, {kill, start}, {(*stack.Kafka).Pause, (*stack.Kafka).Resume},
		} {
			require.NoError(t, c.AwaitInSync(t.Context()))
			require.NoError(t, fault.away(c.Nodes()[i]))
			goesOn(t)
			hopeless, cancel := context.WithTimeoutCause(t.Context(), soon, errors.New("one is away"))
			defer cancel()
			require.ErrorContains(t, c.AwaitInSync(hopeless), "one is away")
			require.NoError(t, fault.back(c.Nodes()[i]))
		}
		require.NoError(t, c.AwaitInSync(t.Context()))
	})
	t.Run("is reached through the proxies of its brokers alone", func(t *testing.T) {
		for _, node := range c.Nodes() {
			require.Equal(t, []string{node.Proxy().Addr()}, node.Brokers())
			node.Proxy().Cut()
		}
		conf := sarama.NewConfig()
		conf.Metadata.Retry.Max = 0
		_, err := sarama.NewClient(c.Brokers(), conf)
		require.Error(t, err)
		require.NoError(t, c.AwaitInSync(t.Context()), "brokers talk to each other directly")
		for _, node := range c.Nodes() {
			require.NoError(t, node.Proxy().Heal())
		}
		goesOn(t)
	})
}

func TestOnlyNativeBrokersComeAsAClusterOrBehindAProxy(t *testing.T) {
	t.Setenv("POMBO_TEST_KAFKA", "embedded")
	_, err := stack.StartKafkaCluster(t.Context(), stack.KafkaOptions{}, 3)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = stack.StartKafka(t.Context(), stack.KafkaOptions{Proxied: true})
	require.ErrorIs(t, err, errors.ErrUnsupported)

	t.Setenv("POMBO_TEST_KAFKA", "")
	t.Setenv("POMBO_TEST_BROKERS", "127.0.0.1:9092")
	_, err = stack.StartKafkaCluster(t.Context(), stack.KafkaOptions{}, 3)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
