package integration

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/stack"
	"github.com/pombo-cdc/pombo/integration/workload"
)

// newProxiedKafka starts a broker behind a proxy, for a test of its own.
func newProxiedKafka(t *testing.T, settings map[string]string) *stack.Kafka {
	t.Helper()
	broker, err := stack.StartKafka(t.Context(), stack.KafkaOptions{Proxied: true, Settings: settings})
	require.NoError(t, err)
	t.Cleanup(func() { _ = broker.Close() })
	return broker
}

// G06: Kafka takes no topic whose name differs from another's only in . and _. Its events wait, and the log says why. With the
// other topic gone they are published.
func TestATopicWhoseNameCollidesWithAnotherIsExplainedAndHoldsUpOnlyItself(t *testing.T) {
	o := newOutbox(t)
	o.createTopic("a.b", 1)
	o.createTopic("other", 1)
	o.consume("a_b", "other")
	p := o.streaming("--create-topics")
	collides := o.event("a_b", "k", "t", "waits")
	o.commit(collides, o.event("other", "k", "t", "flows"))
	end := o.walEnd()
	o.awaitReport(func(r workload.Report) bool { return r.Records == 1 && r.Lost == 1 })
	p.await("differs only in . and _")
	require.Contains(t, p.out.String(), collides.ID)
	o.reportedTwice()
	require.Less(t, o.confirmed(), end)

	admin, err := sarama.NewClusterAdmin(o.brokers, sarama.NewConfig())
	require.NoError(t, err)
	defer func() { _ = admin.Close() }()
	require.NoError(t, admin.DeleteTopic(o.topic("a.b")))
	o.arrived()
	o.awaitConfirmed(o.walEnd())
}

// G14.
func TestHeadersAreWhatTheRowSays(t *testing.T) {
	o := newLooseOutbox(t, looseTable)
	o.createTopic("Order", 1)
	o.streaming()
	types := []any{nil, "", strings.Repeat("🚚", 100), "two\nlines", " "}
	var ids []string
	for _, eventType := range types {
		id := uuid.NewString()
		o.exec(`INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, 'Order', 'k', $2, 'p')`,
			strings.ToUpper(id), eventType)
		ids = append(ids, id)
	}
	for i, headers := range o.headers("Order", len(types)) {
		want := []string{"eventId=" + ids[i]}
		if types[i] != nil {
			want = append(want, "eventType="+types[i].(string))
		}
		require.ElementsMatch(t, want, headers, "each name once")
	}
}

// headers returns name=value of every header of the first n records of a topic of one partition.
func (o *outbox) headers(aggregateType string, n int) (all [][]string) {
	o.t.Helper()
	client := o.client()
	defer func() { _ = client.Close() }()
	consumer, err := sarama.NewConsumerFromClient(client)
	require.NoError(o.t, err)
	partition, err := consumer.ConsumePartition(o.topic(aggregateType), 0, sarama.OffsetOldest)
	require.NoError(o.t, err)
	defer partition.AsyncClose()
	for range n {
		select {
		case m := <-partition.Messages():
			var headers []string
			for _, h := range m.Headers {
				headers = append(headers, fmt.Sprintf("%s=%s", h.Key, h.Value))
			}
			all = append(all, headers)
		case <-time.After(patience):
			o.t.Fatalf("only %d of %d records come", len(all), n)
		}
	}
	return all
}

// G18: the newest broker finds nothing to complain about in what it is asked.
func TestTheBrokerLogsNoUnsupportedRequest(t *testing.T) {
	broker := fragile.get(t)
	o := newOutbox(t)
	o.brokers = broker.Brokers()
	o.consume("Order")
	p := o.streaming("--create-topics")
	o.commit(o.event("Order", "k", "t", "payload"))
	o.arrived()
	code, _ := p.stop()
	require.Zero(t, code)
	log, err := os.ReadFile(broker.LogFile())
	require.NoError(t, err)
	for _, complaint := range []string{"UnsupportedVersion", "InvalidRequest", "Unsupported version"} {
		require.NotContains(t, string(log), complaint)
	}
}

// closedPort is a loopback address where nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// G19, I07: of several bootstrap addresses one is enough, at the start and later.
func TestADeadBootstrapAddressIsSkipped(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	o.streaming("--brokers", closedPort(t)+", "+strings.Join(o.brokers, " , ")+",")
	o.commit(o.event("Order", "k", "t", "payload"))
	o.arrived()
}

// G19: the address that a broker advertises does not answer, though the one that is given does. The message names it, and the
// events go out when it does.
func TestAnAdvertisedAddressThatDoesNotAnswerIsNamed(t *testing.T) {
	broker := newProxiedKafka(t, nil)
	o := newOutbox(t)
	o.brokers = broker.Direct()
	o.createTopic("Order", 1)
	o.consume("Order")
	o.brokers = broker.Brokers()
	bootstrap, err := stack.NewProxy(broker.Proxy().Upstream())
	require.NoError(t, err)
	t.Cleanup(func() { _ = bootstrap.Close() })
	broker.Proxy().Cut()
	began := time.Now()
	p := o.run("--brokers", bootstrap.Addr())
	o.commit(o.event("Order", "k", "t", "payload"))
	p.await(broker.Brokers()[0])
	require.Less(t, time.Since(began), 30*time.Second)
	require.NoError(t, broker.Proxy().Heal())
	o.arrived()
}
