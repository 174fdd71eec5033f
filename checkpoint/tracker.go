// Package checkpoint turns acknowledgements, which come in any order, into the one LSN that
// may be confirmed to Postgres: the highest with no gap before it.
package checkpoint

import "github.com/jackc/pglogrepl"

// Tracker holds batches in stream order until every event of theirs is settled. It releases
// them in that order only, whatever the order of the acknowledgements.
//
// A Tracker belongs to one goroutine; the Position it advances may be read by others.
type Tracker[T any] struct {
	flushed *Position
	ring    []entry[T] // a power of two in length; first is at index head & (len-1)
	head    Ticket
	next    Ticket
}

type entry[T any] struct {
	batch   T
	lsn     pglogrepl.LSN
	pending int
}

// Ticket names a batch that was added. Tickets count up from zero.
type Ticket uint64

// NewTracker returns a Tracker that advances flushed.
func NewTracker[T any](flushed *Position) *Tracker[T] {
	return &Tracker[T]{flushed: flushed, ring: make([]entry[T], 64)}
}

// Add appends a batch of events events. Once it and all before it are settled, lsn may be
// confirmed; zero confirms nothing.
func (t *Tracker[T]) Add(batch T, events int, lsn pglogrepl.LSN) Ticket {
	if int(t.next-t.head) == len(t.ring) {
		t.grow()
	}
	ticket := t.next
	t.next++
	*t.at(ticket) = entry[T]{batch: batch, lsn: lsn, pending: events}
	return ticket
}

// Done settles n events of a batch. The caller settles each event once.
func (t *Tracker[T]) Done(ticket Ticket, n int) { t.at(ticket).pending -= n }

// Release takes the oldest batch out if all its events are settled, and only then lets its
// LSN count as flushed. The caller repeats it until ok is false.
func (t *Tracker[T]) Release() (batch T, ok bool) {
	if t.head == t.next || t.at(t.head).pending > 0 {
		return batch, false
	}
	oldest := t.at(t.head)
	batch = oldest.batch
	t.flushed.Advance(oldest.lsn)
	*oldest = entry[T]{}
	t.head++
	return batch, true
}

// Len is the number of batches that are not released.
func (t *Tracker[T]) Len() int { return int(t.next - t.head) }

// Oldest returns the batch that everything else waits for.
func (t *Tracker[T]) Oldest() (batch T, ok bool) {
	if t.head == t.next {
		return batch, false
	}
	return t.at(t.head).batch, true
}

func (t *Tracker[T]) at(ticket Ticket) *entry[T] {
	return &t.ring[uint64(ticket)&uint64(len(t.ring)-1)]
}

func (t *Tracker[T]) grow() {
	old := *t
	t.ring = make([]entry[T], 2*len(old.ring))
	for ticket := old.head; ticket < old.next; ticket++ {
		*t.at(ticket) = *old.at(ticket)
	}
}
