package sink

import (
	"math"
	"time"

	"github.com/IBM/sarama"
	"github.com/rs/zerolog"

	"github.com/pombo-cdc/pombo/checkpoint"
	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/router"
)

// item is an event on its way.
type item struct {
	entry *checkpoint.Entry
	batch *decoder.Batch
	index int
}

func (it item) event() decoder.Event { return it.batch.Event(it.index) }

// topic is what the sink knows of a topic and the events that wait for its partitions.
type topic struct {
	name       string
	partitions []*partition
	limit      int         // max.message.bytes of a record batch; 0 is not known
	resize     int         // the new number of partitions, taken once everything sent to the old ones is settled
	waiting    queue[item] // events without a partition yet
	next       int         // partition of the next event without a key
	failures   int         // look-ups in a row that failed
	troubled   bool        // it did not take events for a while, and has not taken one since
	log        zerolog.Logger
	trouble    zerolog.BurstSampler // of lines that say what is wrong with it
	recovered  zerolog.BurstSampler // of lines that nothing is
}

// partition is a queue of events and the state of the one request that may be in flight.
type partition struct {
	topic    *topic
	id       int32
	leader   *broker
	state    state
	listed   bool // in leader.ready
	queue    queue[item]
	sent     int   // events at its head that are in flight or, until they are settled, have to be sent again
	sequence int32 // of the first event in the queue
	failures int   // requests in a row that failed
	most     int   // records in the next batch, while one that the broker refuses is looked for; 0 is no limit
	asked    bool  // the topic's limit is asked for once more, for the first event in the queue
}

type state uint8

const (
	idle     state = iota // may send
	inFlight              // one request is not answered
	waiting               // for its leader to be looked up
	poisoned              // its first event can never be sent
)

// broker is a connection to a broker, its open requests and the partitions that have something for it.
type broker struct {
	conn  *sarama.Broker
	open  int
	ready []*partition
	spare time.Time // gets no requests until then
	lost  bool      // the connection is given up, partitions wait for another
}

// rest is how long the broker has to be spared, because its answer said so (a quota). Sarama would wait for the same time,
// but within AsyncProduce, and all other brokers with it.
func (br *broker) rest() time.Duration {
	if br.spare.IsZero() || len(br.ready) == 0 {
		return 0
	}
	return time.Until(br.spare)
}

// topic returns what is known of a topic, and has one that is new looked up.
func (k *Kafka) topic(name string) *topic {
	if t := k.topics[name]; t != nil {
		return t
	}
	t := &topic{
		name: name,
		log:  k.log.With().Str("topic", name).Logger(),

		trouble:   zerolog.BurstSampler{Burst: linesOfTopic, Period: time.Minute},
		recovered: zerolog.BurstSampler{Burst: linesOfTopic, Period: time.Minute},
	}
	k.topics[name] = t
	k.lookup.schedule(t, 0)
	return t
}

// choose returns the partition of a key. A nil key takes them in turn.
func (t *topic) choose(key []byte) *partition {
	if key == nil {
		t.next = (t.next + 1) % len(t.partitions)
		return t.partitions[t.next]
	}
	return t.partitions[router.Partition(key, int32(len(t.partitions)))]
}

// settled reports whether no event is queued for any of its partitions.
func (t *topic) settled() bool {
	for _, p := range t.partitions {
		if p.queue.len() > 0 {
			return false
		}
	}
	return true
}

// oldest returns the event that has waited longest, for a message about the topic.
func (t *topic) oldest() (eventID string, ok bool) {
	var first decoder.Event
	for _, q := range t.queues() {
		if q.len() == 0 {
			continue
		}
		if e := q.at(0).event(); !ok || e.CommitTime().Before(first.CommitTime()) {
			first, ok = e, true
		}
	}
	if !ok {
		return "", false
	}
	return string(first.Column(decoder.ID)), true
}

func (t *topic) queues() []*queue[item] {
	all := []*queue[item]{&t.waiting}
	for _, p := range t.partitions {
		all = append(all, &p.queue)
	}
	return all
}

// advance settles the events that were sent: they are in the topic.
func (k *Kafka) advance(p *partition) {
	n := p.sent
	p.sent = 0
	for i := 0; i < n; {
		it, run := p.queue.at(i), 1
		for i+run < n && p.queue.at(i+run).entry == it.entry {
			run++
		}
		k.settleEvents(it, run)
		i += run
	}
	p.queue.pop(n)
	k.queued -= n
	p.sequence = (p.sequence + int32(n)) & math.MaxInt32 // wraps to 0 as Kafka does
}

// settleEvents settles n events of an item's batch: they are in their topic, or parked.
func (k *Kafka) settleEvents(it item, n int) {
	if k.tracker.Done(it.entry, n) && it.batch != k.held {
		k.pool.Recycle(it.batch)
	}
}

// admit moves the events that waited for the topic's partitions into their queues. They were free to go when they came: what
// is parked since then is behind them, or has taken them along.
func (k *Kafka) admit(t *topic) {
	for t.resize == 0 && t.waiting.len() > 0 {
		it := t.waiting.at(0)
		t.waiting.pop(1)
		k.place(t, it)
	}
}
