package sink

import (
	"bytes"
	"fmt"

	"github.com/pombo-cdc/pombo/decoder"
)

// PoisonError says that an event can never be sent as it is. Everything after it waits for an
// operator, because skipping it would lose it.
type PoisonError struct {
	EventID string
	Topic   string // empty when the event has none
	Reason  error
}

func (e *PoisonError) Error() string {
	if e.Topic == "" {
		return fmt.Sprintf("event %s cannot be routed: %v, then start again", e.EventID, e.Reason)
	}
	return fmt.Sprintf("event %s cannot be sent to topic %s: %v, then start again", e.EventID, e.Topic, e.Reason)
}

func (e *PoisonError) Unwrap() error { return e.Reason }

// unroutable parks an event that has no topic. It reports false if that is the end of the batch and of the session.
func (k *Kafka) unroutable(it item, reason error) bool {
	poison := k.lanes(nil, it)
	poison.reason = fmt.Errorf("%w: name its topic with --route, or with a --topic that fits", reason)
	if k.parks() {
		k.queued++
		k.parker.hold(poison)
		return true
	}
	k.halt(poison, poison.reason)
	// What is complete before it can be confirmed, and is not sent again at every start.
	k.held = it.batch
	k.tracker.Cut(it.entry, it.batch.Len()-it.index, it.batch.LSNBefore(it.index))
	return false
}

// refused parks the first event of a partition, which its topic does not take, and all behind it with the same key. Where
// that cannot be, the partition sends no more.
func (k *Kafka) refused(p *partition, reason error) {
	t := p.topic
	poison := k.lanes(t, p.queue.at(0))
	poison.reason = reason
	if !k.parks() {
		p.state = poisoned
		k.queued -= p.queue.len()
		k.halt(poison, reason)
		return
	}
	defer k.grow(t)
	p.queue.pop(1)
	k.parker.hold(poison)
	if poison.lane == 0 {
		return
	}
	key := k.router.Key(poison.event())
	for _, q := range []*queue[item]{&p.queue, &t.waiting} {
		q.filter(func(it item) (keep bool) {
			if other := k.router.Key(it.event()); other == nil || !bytes.Equal(other, key) {
				return true
			}
			k.parker.hold(k.lanes(t, it))
			return false
		})
	}
}

// lanes says in which lanes an event of a topic, or of none, has to wait for others.
func (k *Kafka) lanes(t *topic, it item) parkedItem {
	e := it.event()
	key := k.router.Key(e)
	typeLane := laneOfType(e.Column(decoder.AggregateType), key)
	if t == nil {
		return parkedItem{item: it, lane: typeLane, typeLane: typeLane}
	}
	return parkedItem{item: it, topic: t, lane: laneOf(t.name, key), typeLane: typeLane}
}

// parks reports whether poison is parked. It ends with the first that cannot be.
func (k *Kafka) parks() bool { return k.cfg.Parking != nil && !k.cfg.Halt && k.poison == nil }

// cannotPark ends the session for a round that the Parking does not take. It does not say for which of the events.
func (k *Kafka) cannotPark(round []parkedItem, err error) {
	it, and := round[0], ""
	if others := len(round) - 1; others > 0 {
		and = fmt.Sprintf(" together with %d more", others)
	}
	if it.reason == nil {
		err = fmt.Errorf("it waits behind a parked event, and cannot be parked%s: %w", and, err)
	} else {
		err = fmt.Errorf("%w; and it cannot be parked%s: %w", it.reason, and, err)
	}
	k.halt(it, err)
}

// halt has the session end once what is queued has gone out.
func (k *Kafka) halt(it parkedItem, reason error) {
	if k.poison != nil {
		return
	}
	k.poison = &PoisonError{EventID: string(it.event().Column(decoder.ID)), Reason: reason}
	if it.topic != nil {
		k.poison.Topic = it.topic.name
	}
}
