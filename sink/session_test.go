package sink

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pombo-cdc/pombo/checkpoint"
	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/router"
)

// tester is what a *testing.T, a *testing.B and a *rapid.T have in common.
type tester interface {
	require.TestingT
	Helper()
	Cleanup(func())
	Context() context.Context
}

var nopLog = zerolog.Nop()

// patience is how long a test waits for what has to happen.
const patience = 20 * time.Second

// row is a row of the outbox table, a string or nil for NULL in each column: id, aggregate type (here
// the topic), aggregate id, event type, payload.
type row [5]any

// source feeds rows as replication's Receiver does: as pgoutput messages through a decoder into the batches
// of a pool, each transaction handed over when it ends.
type source struct {
	t       tester
	layout  *decoder.Layout
	decoder *decoder.Decoder
	pool    *decoder.Pool
	filled  chan *decoder.Batch
	flushed *checkpoint.Position

	batch     *decoder.Batch
	committed pglogrepl.LSN
	time      time.Time // of the last commit
	rows      []row     // fed so far
}

// step is how far apart transactions are.
const step = 0x100

func newSource(t tester) *source {
	layout := decoder.NewLayout("public", "outbox_event")
	s := &source{
		t:       t,
		layout:  layout,
		decoder: decoder.New(layout, 0),
		pool:    decoder.NewPool(16<<20, layout),
		filled:  make(chan *decoder.Batch, decoder.Batches),
		flushed: new(checkpoint.Position),
		time:    time.UnixMicro(1_700_000_000_123_456),
	}
	relation := append(binary.BigEndian.AppendUint32([]byte("R"), 1), "public\x00outbox_event\x00d"...)
	relation = binary.BigEndian.AppendUint16(relation, uint16(len(layout.Columns)))
	for _, name := range layout.Columns {
		relation = append(relation, "\x00"+name+"\x00"...)
		relation = binary.BigEndian.AppendUint32(relation, pgtype.TextOID)
		relation = append(relation, "\xff\xff\xff\xff"...)
	}
	s.decode(relation)
	return s
}

func (s *source) router() *router.Router { return s.routerTo("") }

// routerTo returns a router with a template of the topic.
func (s *source) routerTo(topic string) *router.Router {
	r, err := router.New(router.Config{Topic: topic, Layout: s.layout, Headers: router.DefaultHeaders()})
	require.NoError(s.t, err)
	return r
}

// commit feeds a transaction and returns the stamp of its last batch.
func (s *source) commit(rows ...row) pglogrepl.LSN {
	s.t.Helper()
	s.time = s.time.Add(time.Second)
	micros := uint64(s.time.UnixMicro() - 946_684_800_000_000) // from 2000-01-01 on
	s.decode(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64([]byte("B"), 1), micros), 731))
	for _, r := range rows {
		s.decode(insert(r))
	}
	end := s.committed + step
	message := binary.BigEndian.AppendUint64([]byte("C\x00"), 1)
	s.decode(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(message, uint64(end)), micros))
	s.committed = end
	s.handOver()
	s.rows = append(s.rows, rows...)
	return end
}

func insert(r row) []byte {
	message := append(binary.BigEndian.AppendUint32([]byte("I"), 1), 'N')
	message = binary.BigEndian.AppendUint16(message, uint16(len(r)))
	for _, column := range r {
		if column == nil {
			message = append(message, 'n')
			continue
		}
		value := column.(string)
		message = binary.BigEndian.AppendUint32(append(message, 't'), uint32(len(value)))
		message = append(message, value...)
	}
	return message
}

func (s *source) decode(message []byte) {
	s.t.Helper()
	outcome, err := s.decoder.Decode(message, s.batch)
	if outcome == decoder.Full {
		s.handOver()
		s.batch = s.free()
		for !s.pool.Prepare(s.batch, s.decoder.Need()) {
			s.batch.Lend(s.free())
		}
		_, err = s.decoder.Decode(message, s.batch)
	}
	require.NoError(s.t, err)
}

func (s *source) handOver() {
	if s.batch != nil {
		s.batch.LSN = s.committed
		s.filled <- s.batch
		s.batch = nil
	}
}

func (s *source) free() *decoder.Batch {
	s.t.Helper()
	select {
	case b := <-s.pool.Free():
		return b
	case <-time.After(patience):
		require.FailNow(s.t, "no batch is released")
		return nil
	}
}

// events returns a row for each key, with ids that count up.
func (s *source) events(topic string, keys ...string) []row {
	rows := make([]row, len(keys))
	for i, key := range keys {
		id := fmtID(len(s.rows) + i)
		rows[i] = row{id, topic, key, "Happened", "payload of " + id}
	}
	return rows
}

func fmtID(n int) string { return fmt.Sprint("event-", n) }

// onPartition returns a row for a topic orders of n partitions that goes to partition p.
func (s *source) onPartition(n int, p int32) []row { return s.events("orders", keys(n)[p]) }

// keys returns a key for each of n partitions.
func keys(n int) []string {
	found := make([]string, n)
	for i, missing := 0, n; missing > 0; i++ {
		key := fmt.Sprint("key", i)
		if p := router.Partition([]byte(key), int32(n)); found[p] == "" {
			found[p] = key
			missing--
		}
	}
	return found
}

// session is a Kafka at work.
type session struct {
	*source
	kafka   *Kafka
	cancel  context.CancelCauseFunc
	ended   chan struct{}
	err     error // of Run, once ended
	closing sync.Once
	log     *logBook
}

func config(cluster *kfake.Cluster) Config { return Config{Brokers: cluster.ListenAddrs()} }

// run opens a session and has it run until the test ends.
func run(t tester, cfg Config) *session {
	t.Helper()
	return runTo(t, cfg, "")
}

// runTo is run with a template of the topic.
func runTo(t tester, cfg Config, topic string) *session {
	t.Helper()
	s := &session{source: newSource(t), ended: make(chan struct{}), log: new(logBook)}
	ctx, cancel := context.WithCancelCause(t.Context())
	s.cancel = cancel
	var err error
	s.kafka, err = Open(ctx, cfg, s.routerTo(topic), s.pool, s.flushed, zerolog.New(s.log))
	require.NoError(t, err)
	go func() {
		defer close(s.ended)
		s.err = s.kafka.Run(ctx, s.filled)
	}()
	t.Cleanup(func() {
		cancel(nil)
		<-s.ended
		s.close()
	})
	return s
}

// close closes the Kafka, once.
func (s *session) close() {
	s.closing.Do(func() { require.NoError(s.t, s.kafka.Close()) })
}

// result waits for Run.
func (s *session) result() error {
	s.t.Helper()
	select {
	case <-s.ended:
		return s.err
	case <-time.After(patience):
		require.FailNow(s.t, "the session does not end")
		return nil
	}
}

// finish ends the stream and requires that everything is delivered: what is in the topics then is what was fed.
func (s *session) finish(cluster *kfake.Cluster) {
	s.t.Helper()
	close(s.filled)
	require.NoError(s.t, s.result())
	require.Equal(s.t, s.committed, s.flushed.Load())
	require.Equal(s.t, decoder.Batches, s.pool.Available())
	s.requireDelivered(cluster, s.rows)
}

// requireDelivered requires that the topics of rows hold them and nothing else, for each key in order.
func (s *session) requireDelivered(cluster *kfake.Cluster, rows []row) {
	s.t.Helper()
	want, got := make(map[string][]string), make(map[string][]string)
	var topics []string
	for _, r := range rows {
		topic := r[1].(string)
		if !slices.Contains(topics, topic) {
			topics = append(topics, topic)
		}
		key := fmt.Sprintf("%s %v", topic, r[2])
		want[key] = append(want[key], r[0].(string))
	}
	for _, topic := range topics {
		for _, m := range consume(s.t, cluster, topic) {
			key := fmt.Sprintf("%s %s", topic, m.Key)
			got[key] = append(got[key], eventID(m))
		}
	}
	require.Equal(s.t, want, got)
}

func eventID(r *kgo.Record) string {
	for _, h := range r.Headers {
		if h.Key == "eventId" {
			return string(h.Value)
		}
	}
	return ""
}

// eventually waits for a condition.
func eventually(t tester, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, patience, time.Millisecond, what)
}

func (s *session) awaitFlushed(lsn pglogrepl.LSN) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%s is flushed", lsn), func() bool { return s.flushed.Load() >= lsn })
	require.Equal(s.t, lsn, s.flushed.Load())
}

// consume reads a topic from the start, with another library than the one that wrote it.
func consume(t tester, cluster *kfake.Cluster, topic string) (records []*kgo.Record) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(topic), kgo.FetchMaxWait(10*time.Millisecond))
	require.NoError(t, err)
	defer client.Close()
	missing := 0
	for _, info := range cluster.PartitionInfos(topic) {
		missing += int(info.HighWatermark)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(records) < missing {
		fetches := client.PollFetches(ctx)
		require.NoError(t, fetches.Err())
		records = append(records, fetches.Records()...)
	}
	slices.SortStableFunc(records, func(a, b *kgo.Record) int { return cmp.Compare(a.Partition, b.Partition) })
	return records
}

// logBook collects log lines.
type logBook struct {
	mu   sync.Mutex
	book bytes.Buffer
}

func (l *logBook) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.book.Write(line)
}

func (l *logBook) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []string
	for line := range bytes.Lines(l.book.Bytes()) {
		lines = append(lines, string(line))
	}
	return lines
}
