package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/stack"
	"github.com/pombo-cdc/pombo/integration/workload"
)

var stopModes = []stack.StopMode{stack.Fast, stack.Immediate, stack.Smart}

// newOutboxOnOwnPostgres is newOutbox on a server that the test may stop.
func newOutboxOnOwnPostgres(t *testing.T, settings map[string]string) (*outbox, *stack.Postgres) {
	t.Helper()
	o, server := newDatabaseOnOwnPostgres(t, settings)
	o.setup("--create-table")
	return o, server
}

func newDatabaseOnOwnPostgres(t *testing.T, settings map[string]string) (*outbox, *stack.Postgres) {
	t.Helper()
	server, err := stack.StartPostgres(t.Context(), stack.PostgresOptions{Settings: settings})
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	shared := postgres
	postgres = server // tests do not run in parallel
	defer func() { postgres = shared }()
	return newDatabase(t), server
}

// newPasswordOutbox is newOutbox on a server that asks every role but the superuser for its password.
func newPasswordOutbox(t *testing.T) *outbox {
	t.Helper()
	o, _ := newOutboxOnOwnPostgres(t, nil)
	var file string
	require.NoError(t, o.conn.QueryRow(o.ctx, `SHOW hba_file`).Scan(&file))
	const rules = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\nhost replication all 127.0.0.1/32 scram-sha-256\n"
	require.NoError(t, os.WriteFile(file, []byte(rules), 0o600))
	o.exec(`SELECT pg_reload_conf()`)
	return o
}

// client is a Kafka client for questions about the test's topics.
func (o *outbox) client() sarama.Client {
	o.t.Helper()
	conf := sarama.NewConfig()
	conf.Metadata.AllowAutoTopicCreation = false
	client, err := sarama.NewClient(o.brokers, conf)
	require.NoError(o.t, err)
	return client
}

// records is the number of records in a topic; zero while it is being made.
func (o *outbox) records(aggregateType string) (n int64) {
	o.t.Helper()
	client := o.client()
	defer func() { _ = client.Close() }()
	partitions, err := client.Partitions(o.topic(aggregateType))
	if err != nil {
		return 0
	}
	for _, id := range partitions {
		end, err := client.GetOffset(o.topic(aggregateType), id, sarama.OffsetNewest)
		if errors.Is(err, sarama.ErrNotLeaderForPartition) || errors.Is(err, sarama.ErrLeaderNotAvailable) || errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
			return 0
		}
		require.NoError(o.t, err)
		n += end
	}
	return n
}

// read returns the first n records of a topic, in the order of each partition.
func (o *outbox) read(aggregateType string, n int) []workload.Record {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.ctx, patience)
	defer cancel()
	var (
		mu      sync.Mutex
		records []workload.Record
	)
	enough := make(chan struct{})
	c, err := workload.Consume(ctx, o.brokers, []string{o.topic(aggregateType)}, func(r workload.Record) {
		mu.Lock()
		defer mu.Unlock()
		if records = append(records, r); len(records) == n {
			close(enough)
		}
	})
	require.NoError(o.t, err)
	defer func() { _ = c.Close() }()
	select {
	case <-enough:
	case <-ctx.Done():
		o.t.Fatalf("topic %s does not get its %d records", o.topic(aggregateType), n)
	}
	mu.Lock()
	defer mu.Unlock()
	return records
}

// distinct is the number of different events in a topic.
func (o *outbox) distinct(aggregateType string) int {
	o.t.Helper()
	ids := make(map[string]bool)
	for _, r := range o.read(aggregateType, int(o.records(aggregateType))) {
		ids[r.Headers["eventId"]] = true
	}
	return len(ids)
}

// insertRow writes a row of a table that is not the reference one; nil is NULL.
func (o *outbox) insertRow(aggregateType, aggregateID, eventType, payload any) (id string) {
	o.t.Helper()
	id = uuid.NewString()
	o.exec(`INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, $3, $4, $5)`,
		id, aggregateType, aggregateID, eventType, payload)
	return id
}

func byID(records []workload.Record) map[string]workload.Record {
	all := make(map[string]workload.Record)
	for _, r := range records {
		all[r.Headers["eventId"]] = r
	}
	return all
}

func keys(n int) []string {
	all := []string{"", "ü", " ", "0"}
	for i := len(all); i < n; i++ {
		all = append(all, fmt.Sprint("key-", i))
	}
	return all
}
