package sink

import (
	"context"
	"crypto/sha256"
	"encoding/binary"

	"github.com/pombo-cdc/pombo/decoder"
)

// Parking keeps the events that cannot be published, and those that have to wait behind them, durably and in order.
type Parking interface {
	// Lanes returns the lanes that have parked events.
	Lanes(ctx context.Context) ([]Lane, error)

	// Park stores events in their order, all or none of them, and reports for each whether it is parked now. Only one that
	// has no Reason of its own may be left out: if nothing is parked in the lanes that it has to wait for, it is free to go.
	// An event that is parked already stays as it is. The events are lent for the call. It tries for as long as trying
	// again can help; an error means that it cannot.
	Park(ctx context.Context, events []ParkedEvent) (parked []bool, err error)
}

// ParkedEvent is an event on its way to a Parking.
type ParkedEvent struct {
	Event    decoder.Event
	Topic    string // empty: it has none
	Lane     Lane   // in which it is parked, and waits
	TypeLane Lane   // in which it waits too
	Reason   string // why it cannot be published; empty: it waits behind another
}

// Lane is a hash of what has to keep its order: a topic and a key. Two that collide only wait for each other. Zero is
// the lane of events that have no key and so no order.
type Lane int64

// laneOf returns the lane of a topic and key.
func laneOf(topic string, key []byte) Lane { return hashLane('t', topic, key) }

// laneOfType returns the lane of an aggregate type and key whose events have no topic. It is not the same as that of the
// topic that they may get once the route is changed.
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
