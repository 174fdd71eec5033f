package sink

import (
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"github.com/rs/zerolog"
)

// request is a produce request in flight.
type request struct {
	broker     *broker
	partitions []*partition
}

var errNoAnswer = errors.New("the broker left the partition out of its answer")

// settle acts on the answer to a request, or on err if there is none.
func (k *Kafka) settle(r *request, answer *sarama.ProduceResponse, err error) error {
	r.broker.open--
	if err == nil && answer.ThrottleTime > 0 {
		r.broker.spare = time.Now().Add(answer.ThrottleTime)
	}
	if err != nil && judge(err) == again {
		k.lost(r.broker)
	}
	for _, p := range r.partitions {
		reason := err
		if err == nil {
			reason = errNoAnswer
			if block := answer.GetBlock(p.topic.name, p.id); block != nil {
				reason = block.Err
			}
		}
		if err := k.settlePartition(p, reason); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kafka) settlePartition(p *partition, reason error) error {
	p.state = idle
	switch judge(reason) {
	case acknowledged:
		k.acknowledge(p)
	case smaller:
		if p.failures > 0 { // the sequence numbers may be taken: others under them would be told to be there already
			return fmt.Errorf("produce to %s/%d: a batch that an earlier try may have written is refused: %w", p.topic.name, p.id, explain(reason))
		}
		k.split(p, reason)
	case over:
		return fmt.Errorf("produce to %s/%d as producer %d epoch %d: %w", p.topic.name, p.id, k.producer.id, k.producer.epoch, k.explainEnd(reason))
	default:
		p.state = waiting
		p.failures++
		k.blocked(p.topic, p.failures, reason)
	}
	k.ready(p)
	return nil
}

func (k *Kafka) acknowledge(p *partition) {
	if p.most > 0 {
		if p.most *= 2; p.sent == p.queue.len() {
			p.most = 0
		}
	}
	k.advance(p)
	t := p.topic
	defer k.grow(t)
	p.failures = 0
	if t.troubled && t.recovered.Sample(zerolog.InfoLevel) && k.lines.allow(recovery) {
		t.log.Info().Msg("topic takes events again")
	}
	t.troubled = false
}

// grow has a topic looked up whose new partitions wait for the old ones to be settled, once they are.
func (k *Kafka) grow(t *topic) {
	if t.resize > 0 && t.settled() {
		k.lookup.schedule(t, 0)
	}
}

// split halves a batch that the brokers refuse, so that one bad event does not take the others
// down with it. An event that is refused alone is poison.
func (k *Kafka) split(p *partition, reason error) {
	if p.sent > 1 {
		p.most, p.sent = p.sent/2, 0
		return
	}
	p.sent = 0
	e := p.queue.at(0).event()
	size := len(k.router.Key(e)) + len(k.router.Value(e))
	k.refused(p, fmt.Errorf("refused with %d bytes of key and value: %w", size, explain(reason)))
}

// worthTelling is the number of failures in a row that are worth a line in the log.
const worthTelling = 4

// blocked notes that a topic, or a partition of it, has not taken events for so many times in a row,
// and tries again later.
func (k *Kafka) blocked(t *topic, failures int, reason error) {
	delay := retryDelay(failures)
	k.lookup.schedule(t, delay)
	if failures < worthTelling {
		return // a leader that moves, or a topic that is just being made
	}
	t.troubled = true
	if id, ok := t.oldest(); ok && t.trouble.Sample(zerolog.WarnLevel) && k.lines.allow(causeOf(reason)) {
		t.log.Warn().Str("event", id).Int("attempt", failures).Stringer("retry_in", delay.Round(time.Millisecond)).
			AnErr("reason", explain(reason)).Msg("topic does not take events, they wait")
	}
}

// lost gives up a broker's connection. What is ready for it waits for the next one, and so does
// whatever becomes ready later; requests still in flight get their own errors.
func (k *Kafka) lost(br *broker) {
	if br.lost {
		return
	}
	br.lost = true
	delete(k.brokers, br.conn)
	k.lookup.giveUp(br.conn)
	for _, p := range br.ready {
		p.listed = false
		k.ready(p)
	}
	br.ready = nil
}
