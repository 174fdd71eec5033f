package sink

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

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
	partitions   map[string]int   // of each topic; they become more
	poisoned     map[*partition]bool
	open         []*request
	sent         map[*partition][]string // the events of the batch that is sent and not settled
	sequence     map[*partition]int32    // of the next event that is sent for the first time
	refusals     map[*partition]int      // in a row
	acknowledged map[string]bool
	log          map[string][]string // what topics have, by topic and key
	stamps       []pglogrepl.LSN     // of the transactions
	ends         []int               // rows up to each
}

func newModel(t *rapid.T) *model {
	m := &model{
		source:       newSource(t),
		t:            t,
		partitions:   map[string]int{"orders": 3, "payments": 1},
		poisoned:     make(map[*partition]bool),
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
		lines:   make(lines),
		parker:  new(parker),
		build:   assembler{router: r},
	}
	return m
}

func anyTopic(t *rapid.T) string {
	return rapid.SampledFrom([]string{"orders", "payments"}).Draw(t, "topic")
}

func (m *model) commitSome(t *rapid.T) {
	if m.pool.Available() == 0 || m.k.poison != nil {
		t.Skip("nothing more is taken")
	}
	var rows []row
	for range rapid.IntRange(1, 5).Draw(t, "rows") {
		key := fmt.Sprint("key", rapid.IntRange(1, 9).Draw(t, "key"))
		rows = append(rows, row{fmtID(len(m.rows) + len(rows)), anyTopic(t), key, "Happened", ""})
	}
	m.stamps = append(m.stamps, m.commit(rows...))
	m.ends = append(m.ends, len(m.rows))
	m.k.accept(<-m.filled)
}

// lookUp answers about a topic, with leaders on any connection, even one that was lost while they were asked for.
func (m *model) lookUp(t *rapid.T) {
	topic, ok := m.k.topics[anyTopic(t)]
	if !ok {
		t.Skip("not yet used")
	}
	if rapid.IntRange(0, 2).Draw(t, "new connection") == 0 {
		m.conns = append(m.conns, sarama.NewBroker("broker:9092"))
	}
	if len(m.conns) == 0 {
		t.Skip("no broker")
	}
	if rapid.IntRange(0, 9).Draw(t, "new partition") == 0 {
		m.partitions[topic.name]++
	}
	leaders := make([]leader, m.partitions[topic.name])
	for i := range leaders {
		leaders[i].conn = rapid.SampledFrom(m.conns).Draw(t, "leader")
		if rapid.IntRange(0, 9).Draw(t, "leaderless") == 0 {
			leaders[i] = leader{err: sarama.ErrLeaderNotAvailable}
		}
	}
	m.found(topic, leaders)
}

func (m *model) found(topic *topic, leaders []leader) {
	delete(m.k.lookup.wanted, topic) // as when the look-up began
	require.NoError(m.t, m.k.found([]found{{topic: topic, leaders: leaders}}))
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
	require.False(m.t, m.isOpen(p), "a second request")
	require.False(m.t, m.poisoned[p], "it is sent behind its poison")
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

func (m *model) isOpen(p *partition) bool {
	return slices.ContainsFunc(m.open, func(r *request) bool { return slices.Contains(r.partitions, p) })
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
		case code == sarama.ErrMessageSizeTooLarge && p.sent == 1 && p.failures == 0 && rapid.IntRange(0, 9).Draw(t, "poison") == 0:
			m.poisoned[p] = true
		case code == sarama.ErrMessageSizeTooLarge && (p.sent == 1 || p.failures > 0): // the latter ends the session
			code = sarama.ErrNoError
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
	for i, id := range m.sent[p] {
		m.acknowledged[id] = true
		key := fmt.Sprintf("%s %s", p.topic.name, p.queue.at(i).event().Column(decoder.AggregateID))
		m.log[key] = append(m.log[key], id)
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
	m.requireAwake()
}

// requireAwake requires that something will happen to whatever waits: an answer, a request, or a look-up before long.
func (m *model) requireAwake() {
	for _, topic := range m.k.topics {
		at, wanted := m.k.lookup.wanted[topic]
		lookedUp := wanted && time.Until(at) < refreshInterval/2
		queued := false
		for _, p := range topic.partitions {
			if p.queue.len() == 0 {
				continue
			}
			queued = true
			switch p.state {
			case idle:
				require.Same(m.t, p.leader, m.k.brokers[p.leader.conn], "a connection that is not lost")
				require.Contains(m.t, p.leader.ready, p)
			case inFlight:
				require.True(m.t, m.isOpen(p))
			case waiting:
				require.True(m.t, lookedUp)
			case poisoned:
				require.True(m.t, m.poisoned[p])
			}
		}
		if topic.waiting.len() > 0 {
			require.True(m.t, lookedUp || topic.resize > 0 && queued)
		}
	}
}

// settleAll answers everything for as long as that has anything sent.
func (m *model) settleAll() {
	conn := sarama.NewBroker("broker:9092")
	for sent := true; sent; {
		for _, topic := range m.k.topics {
			m.found(topic, slices.Repeat([]leader{{conn: conn}}, m.partitions[topic.name]))
		}
		if br := m.k.broker(conn); len(br.ready) > 0 {
			m.produce(br, len(br.ready))
		}
		sent = len(m.open) > 0
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

// requireArrived requires that all events arrived, for each key in order, but for poison and what is behind it.
func (m *model) requireArrived() {
	held := 0
	for _, topic := range m.k.topics {
		if !slices.ContainsFunc(topic.partitions, func(p *partition) bool { return m.poisoned[p] }) {
			continue
		}
		held += topic.waiting.len()
		for _, p := range topic.partitions {
			held += p.queue.len()
		}
	}
	require.Len(m.t, m.acknowledged, len(m.rows)-held)
	for _, r := range m.rows {
		key := fmt.Sprint(r[1], " ", r[2])
		if !m.acknowledged[r[0].(string)] {
			require.Empty(m.t, m.log[key], "it overtook %s", r[0])
			continue
		}
		require.Equal(m.t, r[0], m.log[key][0])
		m.log[key] = m.log[key][1:]
	}
}

// I1 and I7 for any order of answers, refusals, lost connections, leaders that move and partitions that are added; and
// in the end every event has arrived once, in the order of its key.
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
		m.requireArrived()
	})
}
