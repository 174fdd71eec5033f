package sink

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/IBM/sarama"
	"github.com/jackc/pglogrepl"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pombo-cdc/pombo/checkpoint"
	"github.com/pombo-cdc/pombo/decoder"
)

// model drives the state of a Kafka without its goroutines, and keeps what must hold in the simplest way.
type model struct {
	*source
	t *rapid.T
	k *Kafka

	conns        []*sarama.Broker // some of them lost
	open         []*request
	sent         map[*partition][]string // the events of the batch that is sent and not settled
	sequence     map[*partition]int32    // of the next event that is sent for the first time
	refusals     map[*partition]int      // in a row
	acknowledged map[string]bool
	log          map[string][]string // what topics have, by partition
	stamps       []pglogrepl.LSN     // of the transactions
	ends         []int               // rows up to each
}

const (
	modelTopics     = 2
	modelPartitions = 3
)

func newModel(t *rapid.T) *model {
	m := &model{
		source:       newSource(t),
		t:            t,
		sent:         make(map[*partition][]string),
		sequence:     make(map[*partition]int32),
		refusals:     make(map[*partition]int),
		acknowledged: make(map[string]bool),
		log:          make(map[string][]string),
	}
	r := m.router()
	m.k = &Kafka{
		router:  r,
		pool:    m.pool,
		log:     zerolog.Nop(),
		tracker: checkpoint.NewTracker(m.flushed),
		topics:  make(map[string]*topic),
		brokers: make(map[*sarama.Broker]*broker),
		lookup:  newLookups(),
		build:   assembler{headers: r.Headers()},
	}
	return m
}

func (m *model) commitSome(t *rapid.T) {
	if m.pool.Available() == 0 {
		t.Skip("the pool is empty")
	}
	var rows []row
	for range rapid.IntRange(1, 5).Draw(t, "rows") {
		topic := fmt.Sprint("topic", rapid.IntRange(1, modelTopics).Draw(t, "topic"))
		key := fmt.Sprint("key", rapid.IntRange(1, 9).Draw(t, "key"))
		rows = append(rows, row{fmt.Sprint("event-", len(m.rows)+len(rows)), topic, key, "Happened", ""})
	}
	m.stamps = append(m.stamps, m.commit(rows...))
	m.ends = append(m.ends, len(m.rows))
	m.k.accept(<-m.filled)
}

// lookUp answers about a topic, with leaders on any connection, even one that was lost while they were asked for.
func (m *model) lookUp(t *rapid.T) {
	name := fmt.Sprint("topic", rapid.IntRange(1, modelTopics).Draw(t, "topic"))
	topic, ok := m.k.topics[name]
	if !ok {
		t.Skip("not yet used")
	}
	if rapid.IntRange(0, 2).Draw(t, "new connection") == 0 {
		m.conns = append(m.conns, sarama.NewBroker("broker:9092"))
	}
	if len(m.conns) == 0 {
		t.Skip("no broker")
	}
	leaders := make([]leader, modelPartitions)
	for i := range leaders {
		leaders[i].conn = rapid.SampledFrom(m.conns).Draw(t, "leader")
		if rapid.IntRange(0, 9).Draw(t, "leaderless") == 0 {
			leaders[i] = leader{err: sarama.ErrLeaderNotAvailable}
		}
	}
	require.NoError(t, m.k.found([]found{{topic: topic, leaders: leaders}}))
}

// send puts one more request in flight.
func (m *model) send(t *rapid.T) {
	for _, conn := range m.conns {
		if br := m.k.brokers[conn]; br != nil && len(br.ready) > 0 {
			m.produce(br, rapid.IntRange(1, len(br.ready)).Draw(t, "share"))
			return
		}
	}
	t.Skip("nothing is ready")
}

func (m *model) produce(br *broker, share int) {
	r, _ := m.k.assemble(br, share)
	m.k.build.reset()
	for _, p := range r.partitions {
		m.noteSent(p)
	}
	m.open = append(m.open, r)
}

// noteSent requires that a partition has one request in flight (I7), and that a retry is what it was.
func (m *model) noteSent(p *partition) {
	for _, r := range m.open {
		require.NotContains(m.t, r.partitions, p, "a second request")
	}
	var ids []string
	for i := range p.sent {
		ids = append(ids, string(p.queue.at(i).event().Column(decoder.ID)))
	}
	if before := m.sent[p]; before != nil {
		require.Equal(m.t, before, ids, "a retry")
	}
	require.Equal(m.t, m.sequence[p], p.sequence)
	m.sent[p] = ids
}

// answer settles any of the requests in flight.
func (m *model) answer(t *rapid.T) {
	if len(m.open) == 0 {
		t.Skip("nothing is in flight")
	}
	i := rapid.IntRange(0, len(m.open)-1).Draw(t, "request")
	r := m.open[i]
	m.open = slices.Delete(m.open, i, i+1)
	if rapid.IntRange(0, 4).Draw(t, "connection lost") == 0 {
		for _, p := range r.partitions {
			m.refusals[p]++
		}
		require.NoError(t, m.k.settle(r, nil, errors.New("connection lost")))
		return
	}
	answer := new(sarama.ProduceResponse)
	for _, p := range r.partitions {
		code := rapid.SampledFrom([]sarama.KError{
			sarama.ErrNoError, sarama.ErrDuplicateSequenceNumber,
			sarama.ErrNotEnoughReplicas, sarama.ErrNotLeaderForPartition, sarama.ErrMessageSizeTooLarge,
		}).Draw(t, "code")
		switch {
		case code == sarama.ErrMessageSizeTooLarge && p.sent == 1:
			code = sarama.ErrNoError // no event is poison here
			fallthrough
		case code == sarama.ErrNoError, code == sarama.ErrDuplicateSequenceNumber:
			m.noteAcknowledged(p)
		case code == sarama.ErrMessageSizeTooLarge:
			delete(m.sent, p)
		default:
			m.refusals[p]++
		}
		answer.AddTopicPartition(p.topic.name, p.id, code)
	}
	require.NoError(t, m.k.settle(r, answer, nil))
}

func (m *model) noteAcknowledged(p *partition) {
	name := fmt.Sprint(p.topic.name, "/", p.id)
	for _, id := range m.sent[p] {
		m.acknowledged[id] = true
		m.log[name] = append(m.log[name], id)
	}
	m.sequence[p] += int32(len(m.sent[p]))
	delete(m.sent, p)
	delete(m.refusals, p)
}

// check requires that the flushed position is the stamp of the last transaction that is acknowledged with all
// before it (I1), and that the batches of all that are acknowledged are free, also those behind a gap.
func (m *model) check(t *rapid.T) {
	flushed, unsettled, start := pglogrepl.LSN(0), 0, 0
	for i, end := range m.ends {
		switch {
		case slices.ContainsFunc(m.rows[start:end], func(r row) bool { return !m.acknowledged[r[0].(string)] }):
			unsettled++
		case unsettled == 0:
			flushed = m.stamps[i]
		}
		start = end
	}
	require.Equal(t, flushed, m.flushed.Load())
	require.Equal(t, decoder.Batches-unsettled, m.pool.Available())
	for p, n := range m.refusals {
		require.Equal(t, n, p.failures, "the pause before a retry depends on it")
	}
}

// settleAll answers everything, so that all events arrive.
func (m *model) settleAll() {
	conn := sarama.NewBroker("broker:9092")
	leaders := slices.Repeat([]leader{{conn: conn}}, modelPartitions)
	for round := 0; m.k.queued > 0; round++ {
		require.Less(m.t, round, 100, "%d events are forgotten", m.k.queued)
		for _, topic := range m.k.topics {
			require.NoError(m.t, m.k.found([]found{{topic: topic, leaders: leaders}}))
		}
		if br := m.k.broker(conn); len(br.ready) > 0 {
			m.produce(br, len(br.ready))
		}
		for _, r := range m.open {
			answer := new(sarama.ProduceResponse)
			for _, p := range r.partitions {
				m.noteAcknowledged(p)
				answer.AddTopicPartition(p.topic.name, p.id, sarama.ErrNoError)
			}
			require.NoError(m.t, m.k.settle(r, answer, nil))
		}
		m.open = nil
	}
}

// I1 and I7 for any order of answers, refusals, lost connections and leaders that move; and in the end every
// event is in its partition once, in order.
func TestAnyOrderOfAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		t.Repeat(map[string]func(*rapid.T){
			"commit":  m.commitSome,
			"look up": m.lookUp,
			"send":    m.send,
			"answer":  m.answer,
			"":        m.check,
		})
		m.settleAll()
		m.check(t)
		want := make(map[string][]string)
		for _, r := range m.rows {
			topic := r[1].(string)
			p := m.k.topics[topic].choose([]byte(r[2].(string)))
			name := fmt.Sprint(topic, "/", p.id)
			want[name] = append(want[name], r[0].(string))
		}
		require.Equal(t, want, m.log)
	})
}
