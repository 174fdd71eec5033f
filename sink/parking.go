package sink

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/pombo-cdc/pombo/decoder"
)

// Parking keeps the events that cannot be published, and those that have to wait behind them, durably and in order.
type Parking interface {
	// Lanes returns the lanes that have parked events.
	Lanes(ctx context.Context) ([]Lane, error)

	// Park stores events in their order, all or none of them, and reports for each whether it is parked now. Only one that
	// has no Reason of its own may be left out: if nothing is parked in the lanes that it has to wait for, it is free to go.
	// An event that is parked already stays as it is. The events are lent for the call. It tries for as long as trying
	// again can help; an error means that it cannot, or is ErrFenced.
	Park(ctx context.Context, events []ParkedEvent) (parked []bool, err error)
}

// ErrFenced is the error of a Parking whose session has lost the slot: what it would park, another may have published by now.
var ErrFenced = errors.New("the session has lost the slot")

// ParkedEvent is an event on its way to a Parking.
type ParkedEvent struct {
	Event    decoder.Event
	Topic    string // empty: it has none
	Lane     Lane   // in which it is parked, and waits
	TypeLane Lane   // in which it waits too
	Reason   string // why it cannot be published; empty: it waits behind another
}

// Lane is a hash of what has to keep its order: a topic and a key or, for events that have no topic, their aggregate type and
// key, because with another route they may get one. Two that collide only wait for each other. Zero is the lane of
// events that have no key and so no order.
type Lane int64

// laneOf returns the lane of a topic and key.
func laneOf(topic string, key []byte) Lane { return hashLane('t', topic, key) }

// laneOfType returns the lane of an aggregate type and key.
func laneOfType(aggregateType, key []byte) Lane { return hashLane('a', string(aggregateType), key) }

func hashLane(kind byte, name string, key []byte) Lane {
	if key == nil {
		return 0
	}
	h := sha256.New()
	text := append(make([]byte, 0, 128), kind)
	text = binary.AppendUvarint(text, uint64(len(name)))
	h.Write(append(text, name...))
	h.Write(key)
	var sum [sha256.Size]byte
	return Lane(max(1, int64(binary.BigEndian.Uint64(h.Sum(sum[:0]))>>1)))
}

// parkedItem is an event on its way to the Parking.
type parkedItem struct {
	item
	topic          *topic // nil: it has none
	lane, typeLane Lane
	reason         error // nil: it waits behind another
}

// parker takes events to the Parking. A goroutine of its own waits for that, one round at a time. What has to wait for one
// that is on its way waits here, in order.
type parker struct {
	store   Parking // nil: nothing is parked
	lanes   map[Lane]block
	held    []parkedItem // for the next round
	rounds  chan []parkedItem
	busy    bool
	working sync.WaitGroup // the goroutine
}

// block is why events of a lane have to wait. One that is zero is not kept.
type block struct {
	stored bool  // some are parked, as far as is known
	held   int32 // so many are on their way
}

// newParker asks the store which lanes are blocked from the start.
func newParker(ctx context.Context, store Parking) (*parker, error) {
	p := &parker{store: store, lanes: make(map[Lane]block), rounds: make(chan []parkedItem, 1)}
	if store == nil {
		return p, nil
	}
	lanes, err := store.Lanes(ctx)
	for _, lane := range lanes {
		p.set(lane, block{stored: true})
	}
	return p, err
}

func (p *parker) set(lane Lane, b block) {
	switch {
	case lane == 0:
	case b == block{}:
		delete(p.lanes, lane)
	default:
		p.lanes[lane] = b
	}
}

// blocks reports whether an event has to wait.
func (p *parker) blocks(it parkedItem) bool {
	_, lane := p.lanes[it.lane]
	_, typeLane := p.lanes[it.typeLane]
	return lane || typeLane
}

// hold has an event wait for the next round, and those behind it for the event.
func (p *parker) hold(it parkedItem) {
	b := p.lanes[it.lane]
	b.held++
	p.set(it.lane, b)
	p.held = append(p.held, it)
}

// release ends a hold. Of what is parked in the event's own lane, stored is the news.
func (p *parker) release(it parkedItem, stored bool) {
	b := p.lanes[it.lane]
	p.set(it.lane, block{stored: stored, held: b.held - 1})
}

// request starts a round with all that is held.
func (p *parker) request() {
	if p.busy || len(p.held) == 0 {
		return
	}
	p.busy = true
	p.rounds <- p.held
	p.held = nil
}

// start runs the goroutine that parks until the returned function is called.
func (p *parker) start(ctx context.Context, k *Kafka) (stop func()) {
	p.working.Go(func() {
		for round := range p.rounds {
			stored, err := p.park(ctx, round)
			if ctx.Err() != nil {
				return // whatever park says then, it is not that the event cannot be parked
			}
			select {
			case k.posts <- func() error { return k.parked(round, stored, err) }:
			case <-ctx.Done():
			}
		}
	})
	return func() { close(p.rounds) }
}

func (p *parker) park(ctx context.Context, round []parkedItem) ([]bool, error) {
	events := make([]ParkedEvent, len(round))
	for i, it := range round {
		events[i] = ParkedEvent{Event: it.event(), Lane: it.lane, TypeLane: it.typeLane}
		if it.topic != nil {
			events[i].Topic = it.topic.name
		}
		if it.reason != nil {
			events[i].Reason = it.reason.Error()
		}
	}
	return p.store.Park(ctx, events)
}

// parked takes in the answer of a round. What is stored is settled. What is free to go does, with all that is held behind it:
// the rest of a lane must not come to the Parking later than what is refused next.
func (k *Kafka) parked(round []parkedItem, stored []bool, err error) error {
	p := k.parker
	p.busy = false
	switch {
	case errors.Is(err, ErrFenced):
		return err
	case err != nil:
		k.cannotPark(round, err)
		k.queued -= len(round) + len(p.held)
		p.held = nil
		return nil
	}
	var free []parkedItem
	for i, it := range round {
		p.release(it, stored[i])
		if stored[i] {
			k.settleEvents(it.item, 1)
			k.queued--
			continue
		}
		b := p.lanes[it.typeLane]
		p.set(it.typeLane, block{held: b.held})
		free = append(free, it)
	}
	behind := p.held
	p.held = nil
	for _, it := range behind {
		p.release(it, p.lanes[it.lane].stored)
	}
	for _, it := range free { // only what is refused meanwhile can be in the way
		if p.lanes[it.lane].held > 0 || p.lanes[it.typeLane].held > 0 {
			p.hold(it)
			continue
		}
		k.place(it.topic, it.item)
	}
	for _, it := range behind {
		if it.reason != nil || p.blocks(it) {
			p.hold(it)
			continue
		}
		k.place(it.topic, it.item)
	}
	return nil
}
