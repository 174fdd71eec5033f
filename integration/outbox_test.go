package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/workload"
)

var tests atomic.Int64

// testLimit is how long one test may take, the long ones behind the build tag included.
const testLimit = 25 * time.Minute

// outbox is a test's own database with an outbox table, a slot and a topic for each aggregate type.
type outbox struct {
	t       *testing.T
	ctx     context.Context
	dsn     string
	name    string // database and slot
	prefix  string // of the topics
	brokers []string
	conn    *pgx.Conn
	ledger  *workload.Ledger
	seq     map[string]int64
}

// newOutbox creates the database; setup is run for it too.
func newOutbox(t *testing.T) *outbox {
	t.Helper()
	o := newDatabase(t)
	o.setup("--create-table")
	return o
}

// newDatabase creates only the database.
func newDatabase(t *testing.T) *outbox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	t.Cleanup(cancel)
	name := fmt.Sprintf("t%d_%s", tests.Add(1), uuid.NewString()[:8]) // servers that are given may know earlier runs
	o := &outbox{
		t: t, ctx: ctx, name: name, prefix: name + "-", brokers: kafka.Brokers(),
		ledger: workload.NewLedger(nil), seq: make(map[string]int64),
	}
	var err error
	o.dsn, err = postgres.CreateDatabase(ctx, name)
	require.NoError(t, err)
	o.conn = o.connect()
	o.exec(workload.Schema)
	t.Cleanup(o.dropSlot)
	return o
}

// dropSlot frees the slot's place once the connector is gone.
func (o *outbox) dropSlot() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, postgres.DSN("postgres"))
	if err != nil {
		return // the server is gone, and the slot with it
	}
	defer func() { _ = conn.Close(ctx) }()
	_, _ = conn.Exec(ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active`, o.name)
	_, _ = conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, o.name)
}

func (o *outbox) connect() *pgx.Conn {
	o.t.Helper()
	conn, err := pgx.Connect(o.ctx, o.dsn)
	require.NoError(o.t, err)
	o.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (o *outbox) exec(sql string, args ...any) {
	o.t.Helper()
	_, err := o.conn.Exec(o.ctx, sql, args...)
	require.NoError(o.t, err, sql)
}

// args are the flags that name the test's own things.
func (o *outbox) args(command string, more ...string) []string {
	return append([]string{command, "--postgres", o.dsn, "--slot", o.name, "--publication", o.name}, more...)
}

func (o *outbox) setup(more ...string) {
	o.t.Helper()
	code, out := pombo(o.t, o.args("setup", more...)...)
	require.Zero(o.t, code, out)
}

// run starts the connector.
func (o *outbox) run(more ...string) *process {
	o.t.Helper()
	return start(o.t, o.args("run", append([]string{
		"--brokers", strings.Join(o.brokers, ","), "--topic", o.prefix + "{{.AggregateType}}",
	}, more...)...)...)
}

// streaming starts the connector and waits until it has the slot.
func (o *outbox) streaming(more ...string) *process {
	o.t.Helper()
	p := o.run(more...)
	p.await("streaming")
	return p
}

func (o *outbox) topic(aggregateType string) string { return o.prefix + aggregateType }

// consume reads topics into the ledger until the test ends.
func (o *outbox) consume(aggregateTypes ...string) {
	o.t.Helper()
	topics := make([]string, len(aggregateTypes))
	for i, name := range aggregateTypes {
		topics[i] = o.topic(name)
	}
	c, err := workload.Consume(o.ctx, o.brokers, topics, o.ledger.Observe)
	require.NoError(o.t, err)
	o.t.Cleanup(func() { _ = c.Close() })
}

// event returns the next event of a key, in commit order as long as one goroutine writes.
func (o *outbox) event(aggregateType, key, eventType, payload string) workload.Event {
	topic := o.topic(aggregateType)
	o.seq[topic+"/"+key]++
	return workload.Event{
		ID: uuid.NewString(), Topic: topic, Key: key, Seq: o.seq[topic+"/"+key], Type: eventType, Payload: []byte(payload),
	}
}

const insert = `INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ($1, $2, $3, $4, $5, now())`

// commit writes events in one transaction.
func (o *outbox) commit(events ...workload.Event) {
	o.t.Helper()
	tx, err := o.conn.Begin(o.ctx)
	require.NoError(o.t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, e := range events {
		o.insert(tx, e)
	}
	o.ledger.Intend(events...)
	require.NoError(o.t, tx.Commit(o.ctx))
	o.ledger.Committed(events...)
}

func (o *outbox) insert(tx pgx.Tx, e workload.Event) {
	o.t.Helper()
	aggregateType := strings.TrimPrefix(e.Topic, o.prefix)
	_, err := tx.Exec(o.ctx, insert, e.ID, aggregateType, e.Key, e.Type, string(e.Payload))
	require.NoError(o.t, err)
}

// load writes orders with several writers until the returned function is called, which waits for them.
func (o *outbox) load(writers, perSecond int) (stop func()) {
	o.t.Helper()
	ctx, cancel := context.WithCancel(o.ctx)
	pace := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() { workload.KeepPace(ctx, pace, perSecond) })
	for i := range writers {
		w := workload.Writer{
			Conn: o.connect(), Ledger: o.ledger, Type: "Order", Topic: o.topic("Order"),
			Aggregates: 20, Rand: rand.New(rand.NewPCG(uint64(i), 1)),
		}
		group.Go(func() {
			if err := w.Run(ctx, pace); err != nil {
				o.t.Error(err)
			}
		})
	}
	return func() {
		cancel()
		group.Wait()
	}
}

// arrived waits until everything committed has been received, for as long as more and more of it is, and checks order and bytes.
func (o *outbox) arrived() workload.Report {
	o.t.Helper()
	for {
		before := distinct(o.ledger.Report())
		ctx, cancel := context.WithTimeout(o.ctx, patience)
		r, err := o.ledger.Await(ctx, workload.Report.Complete)
		cancel()
		if err == nil {
			require.NoError(o.t, r.Err())
			return r
		}
		require.Greater(o.t, distinct(o.ledger.Report()), before, "nothing has arrived for %s: %v", patience, err)
	}
}

// distinct is the number of events that have arrived. What comes again does not count.
func distinct(r workload.Report) int { return r.Records - r.Duplicates }

// awaitReport waits for a condition on the report.
func (o *outbox) awaitReport(done func(workload.Report) bool) {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.ctx, patience)
	defer cancel()
	_, err := o.ledger.Await(ctx, done)
	require.NoError(o.t, err)
}

// awaitMore waits until n more events have arrived.
func (o *outbox) awaitMore(n int) {
	o.t.Helper()
	before := distinct(o.ledger.Report())
	o.awaitReport(func(r workload.Report) bool { return distinct(r) >= before+n })
}

func (o *outbox) lsn(sql string, args ...any) pglogrepl.LSN {
	o.t.Helper()
	var text string
	require.NoError(o.t, o.conn.QueryRow(o.ctx, sql, args...).Scan(&text))
	lsn, err := pglogrepl.ParseLSN(text)
	require.NoError(o.t, err)
	return lsn
}

// walEnd is a position after everything committed so far.
func (o *outbox) walEnd() pglogrepl.LSN { return o.lsn(`SELECT pg_current_wal_insert_lsn()::text`) }

// confirmed is the slot's confirmed position.
func (o *outbox) confirmed() pglogrepl.LSN {
	return o.lsn(`SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1`, o.name)
}

// awaitConfirmed waits until the slot is at lsn or further.
func (o *outbox) awaitConfirmed(lsn pglogrepl.LSN) {
	o.t.Helper()
	o.await(fmt.Sprintf("slot confirmed to %s", lsn), func() bool { return o.confirmed() >= lsn })
}

func (o *outbox) await(what string, condition func() bool) {
	o.t.Helper()
	o.awaitFor(patience, what, condition)
}

func (o *outbox) awaitFor(limit time.Duration, what string, condition func() bool) {
	o.t.Helper()
	require.Eventually(o.t, condition, limit, 20*time.Millisecond, what)
}

// awaitRecords waits until a topic has so many records, for as long as more and more come, and returns how many it has.
func (o *outbox) awaitRecords(aggregateType string, n int64) int64 {
	o.t.Helper()
	seen := int64(-1)
	for seen < n {
		before := seen
		o.await(fmt.Sprintf("more records than %d of %d", before, n), func() bool { seen = o.records(aggregateType); return seen > before })
	}
	return seen
}

// createTopic creates a topic with a number of partitions.
func (o *outbox) createTopic(aggregateType string, partitions int32) {
	o.t.Helper()
	conf := sarama.NewConfig()
	conf.Admin.Retry.Max = 20
	admin, err := sarama.NewClusterAdmin(o.brokers, conf)
	require.NoError(o.t, err)
	defer func() { _ = admin.Close() }()
	require.NoError(o.t, admin.CreateTopic(o.topic(aggregateType), &sarama.TopicDetail{
		NumPartitions: partitions, ReplicationFactor: 1,
	}, false))
}
