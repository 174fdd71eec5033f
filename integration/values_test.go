package integration

import (
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/workload"
)

// looseTable is an outbox table without NOT NULL.
const looseTable = `CREATE TABLE outbox_event (id uuid PRIMARY KEY, aggregate_type varchar(100), aggregate_id varchar(100),
	event_type varchar(100), payload text, created_at timestamp DEFAULT now(), published_at timestamp)`

func newLooseOutbox(t *testing.T, table string) *outbox {
	t.Helper()
	o := newDatabase(t)
	o.exec(table)
	o.setup()
	return o
}

// B07, D15: NULL and ” stay different all the way.
func TestNullAndEmptyStayDifferent(t *testing.T) {
	o := newLooseOutbox(t, looseTable)
	nulls := o.insertRow("Order", nil, nil, nil)
	empties := o.insertRow("Order", "", "", "")
	blanks := o.insertRow("Order", " ", " ", " ")
	o.streaming()
	records := byID(o.read("Order", 3))

	require.Nil(t, records[nulls].Key)
	require.Nil(t, records[nulls].Value)
	require.NotContains(t, records[nulls].Headers, "eventType")
	require.Equal(t, workload.Record{Key: []byte{}, Value: []byte{}}, content(records[empties]))
	require.Equal(t, map[string]string{"eventId": empties, "eventType": ""}, records[empties].Headers)
	require.Equal(t, workload.Record{Key: []byte(" "), Value: []byte(" ")}, content(records[blanks]))
}

func content(r workload.Record) workload.Record { return workload.Record{Key: r.Key, Value: r.Value} }

// D15, G05: with halt an event that no topic can take stops the connector, names itself, and nothing passes it.
func TestAnEventWithoutATopicStopsTheConnectorAndHoldsTheSlot(t *testing.T) {
	for _, aggregateType := range []any{nil, "", "order/created", "заказ", "Order Placed", "__consumer_offsets"} {
		o := newLooseOutbox(t, looseTable)
		o.prefix = ""
		o.createTopic(o.name, 1)
		o.insertRow(o.name, "k", "t", "before")
		poison := o.insertRow(aggregateType, "k", "t", "poison")
		end := o.walEnd()
		o.insertRow(o.name, "k", "t", "after")
		p := o.run("--on-poison", "halt")
		require.Equal(t, 3, p.wait())
		require.Contains(t, p.out.String(), poison)
		require.EqualValues(t, 1, o.records(o.name), "what was committed before it is published, what comes after is not")
		require.Less(t, o.confirmed(), end)
		require.Equal(t, 3, o.run("--on-poison", "halt").wait())
		require.EqualValues(t, 1, o.records(o.name), "nothing is sent again at every start")
	}
}

// B04: keys stay in the partitions that a Java client chose.
func TestKeysGoToThePartitionsThatJavaClientsChoose(t *testing.T) {
	o := newOutbox(t)
	o.createTopic("Order", 12)
	for _, key := range keys(200) {
		o.commit(o.event("Order", key, "t", key))
	}
	o.streaming()
	java := sarama.NewMurmur2Partitioner(o.topic("Order"))
	for _, r := range o.read("Order", 200) {
		want, err := java.Partition(&sarama.ProducerMessage{Key: sarama.ByteEncoder(r.Key)}, 12)
		require.NoError(t, err)
		require.Equal(t, want, r.Partition, "key %q", r.Key)
	}
}

// D01, D02: what is no row of the table is no event, and does no harm.
func TestOtherMessagesOfTheStreamAreNoEvents(t *testing.T) {
	o := newDatabase(t)
	o.exec(`CREATE TYPE kind AS ENUM ('created', 'changed')`)
	o.exec(`CREATE DOMAIN body AS text CHECK (length(VALUE) < 1000)`)
	o.exec(`CREATE TABLE outbox_event (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type kind, payload body, created_at timestamp)`)
	o.exec(`CREATE TABLE other (outbox_event uuid REFERENCES outbox_event)`)
	o.exec(`CREATE PUBLICATION ` + o.name + ` FOR TABLE outbox_event, other`) // updates, deletes and truncates too
	o.setup()
	o.consume("Order")
	p := o.streaming()

	o.commit(o.event("Order", "k", "created", "1"))
	o.exec(`UPDATE outbox_event SET payload = 'changed'`)
	o.exec(`DELETE FROM outbox_event`)
	o.exec(`INSERT INTO other VALUES (NULL)`)
	o.exec(`TRUNCATE outbox_event, other CASCADE`)
	o.exec(`SELECT pg_logical_emit_message(true, 'p', 'x'), pg_logical_emit_message(false, 'p', 'x')`)
	o.exec(`SELECT pg_replication_origin_create($1)`, o.name)
	o.exec(`SELECT pg_replication_origin_session_setup($1)`, o.name)
	o.commit(o.event("Order", "k", "changed", "2"))
	o.exec(`SELECT pg_replication_origin_session_reset()`)
	o.exec(`SET session_replication_role = replica`)
	o.commit(o.event("Order", "k", "changed", "3"))
	r := o.arrived()
	require.Equal(t, 3, r.Records)
	o.awaitConfirmed(o.walEnd())
	code, _ := p.stop()
	require.Zero(t, code)
}

// D04: columns are found by name, however the table changes.
func TestColumnsMayBeAddedDroppedAndRenamedWhileRunning(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	p := o.streaming()
	o.commit(o.event("Order", "k", "t", "1"))
	o.exec(`ALTER TABLE outbox_event ADD COLUMN tenant text DEFAULT 'x'`)
	o.commit(o.event("Order", "k", "t", "2"))
	o.exec(`ALTER TABLE outbox_event DROP COLUMN published_at`)
	o.commit(o.event("Order", "k", "t", "3"))
	o.exec(`ALTER TABLE outbox_event ALTER aggregate_id TYPE text, ALTER payload TYPE varchar(1000)`)
	o.commit(o.event("Order", "k", "t", "4"))
	o.arrived()

	// Renamed and named back inside one transaction: the row between cannot be read, and nothing passes it.
	lost := uuid.NewString()
	tx, err := o.conn.Begin(o.ctx)
	require.NoError(t, err)
	for _, sql := range []string{
		`ALTER TABLE outbox_event RENAME payload TO body`,
		`INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, body, created_at) VALUES ('` + lost + `', 'Order', 'k', 't', 'x', now())`,
		`ALTER TABLE outbox_event RENAME body TO payload`,
	} {
		_, err := tx.Exec(o.ctx, sql)
		require.NoError(t, err)
	}
	require.NoError(t, tx.Commit(o.ctx))
	end := o.walEnd()
	require.Equal(t, 3, p.wait())
	require.Contains(t, p.out.String(), "payload")
	require.Less(t, o.confirmed(), end)
}

// Text goes out as it is stored, other types in their text form, bytea as raw bytes, whatever the role has set.
func TestColumnTypesHaveTheirDocumentedForm(t *testing.T) {
	o := newDatabase(t)
	o.exec(`CREATE TABLE outbox_event (id text PRIMARY KEY, aggregate_type text, aggregate_id bigint, event_type char(5), payload bytea)`)
	o.setup()
	o.exec(`ALTER DATABASE ` + o.name + ` SET bytea_output = 'escape'`)
	o.exec(`ALTER DATABASE ` + o.name + ` SET client_encoding = 'LATIN1'`)
	o.exec(`INSERT INTO outbox_event VALUES ('01J-Ü', 'Order', 42, 'ab', '\x00ff0a5c')`)
	o.streaming()
	r := o.read("Order", 1)[0]
	require.Equal(t, workload.Record{Key: []byte("42"), Value: []byte{0, 0xff, '\n', '\\'}}, content(r))
	require.Equal(t, map[string]string{"eventId": "01J-Ü", "eventType": "ab   "}, r.Headers)
}

// D13: names are taken as they are.
func TestNamesThatNeedQuotesWork(t *testing.T) {
	o := newDatabase(t)
	o.exec(`CREATE SCHEMA "My-App"`)
	o.exec(strings.Replace(looseTable, "outbox_event", `"My-App"."Out ""box"".Event"`, 1))
	names := []string{"--table", `"My-App"."Out ""box"".Event"`, "--publication", `My "Pub'`}
	code, out := pombo(t, append(o.args("setup"), names...)...)
	require.Zero(t, code, out)
	o.exec(`INSERT INTO "My-App"."Out ""box"".Event" VALUES (gen_random_uuid(), 'Order', 'k', 't', 'v')`)
	o.streaming(names...)
	require.Equal(t, "v", string(o.read("Order", 1)[0].Value))
}

func TestColumnsHeadersAndRoutesAreConfigurable(t *testing.T) {
	o := newDatabase(t)
	o.exec(`CREATE TABLE outbox_event (key uuid PRIMARY KEY, kind text, aggregate uuid, type text, body jsonb, tenant text)`)
	flags := []string{
		"--column", "id=key", "--column", "aggregate_type=kind", "--column", "aggregate_id=aggregate",
		"--column", "event_type=type", "--column", "payload=body",
	}
	o.setup(flags...)
	o.exec(`INSERT INTO outbox_event VALUES ('5A0E3C4D-0000-4000-8000-00000000000A', 'OrderLine', '5A0E3C4D-0000-4000-8000-00000000000B', 'Created', '{"b":1,"a":2,"a":3}', 'acme')`)
	o.streaming(append(flags, "--topic", o.prefix+"{{.AggregateType | kebab | plural}}", "--header", "id=key", "--header", "tenant=tenant")...)
	r := o.read("order-lines", 1)[0]
	require.Equal(t, workload.Record{Key: []byte("5a0e3c4d-0000-4000-8000-00000000000b"), Value: []byte(`{"a": 3, "b": 1}`)}, content(r))
	require.Equal(t, map[string]string{"id": "5a0e3c4d-0000-4000-8000-00000000000a", "tenant": "acme"}, r.Headers)
}
