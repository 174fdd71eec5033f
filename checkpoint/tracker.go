// Package checkpoint turns acknowledgements, which come in any order, into the one LSN that
// may be confirmed to Postgres: the highest with no gap before it.
package checkpoint

import "github.com/jackc/pglogrepl"

// Tracker knows the batches that are not settled, in stream order. One that is settled leaves it at once, so that its
// memory can be used again, and bequeaths its LSN to the one before: when that is settled too, there is no gap.
//
// A Tracker belongs to one goroutine; the Position it advances may be read by others.
type Tracker struct {
	flushed        *Position
	oldest, newest *Entry
	window         int
}

// Entry is a batch in a Tracker.
type Entry struct {
	prev, next *Entry
	lsn        pglogrepl.LSN // may be confirmed once this batch and all before it are settled
	pending    int           // events
	bytes      int           // of it and of the settled ones between it and the next
}

// NewTracker returns a Tracker that advances flushed.
func NewTracker(flushed *Position) *Tracker { return &Tracker{flushed: flushed} }

// Add appends a batch of at least one event. Once it and all before it are settled, lsn may be confirmed; zero confirms nothing.
func (t *Tracker) Add(events, bytes int, lsn pglogrepl.LSN) *Entry {
	e := &Entry{prev: t.newest, lsn: lsn, pending: events, bytes: bytes}
	if t.newest == nil {
		t.oldest = e
	} else {
		t.newest.next = e
	}
	t.newest = e
	t.window += bytes
	return e
}

// Done settles n events of a batch and reports whether that settled the batch. The caller settles each event once.
func (t *Tracker) Done(e *Entry, n int) bool {
	e.pending -= n
	if e.pending > 0 {
		return false
	}
	if e.prev == nil {
		t.window -= e.bytes
		t.flushed.Advance(e.lsn)
		t.oldest = e.next
	} else {
		e.prev.lsn = max(e.prev.lsn, e.lsn)
		e.prev.bytes += e.bytes
		e.prev.next = e.next
	}
	if e.next == nil {
		t.newest = e.prev
	} else {
		e.next.prev = e.prev
	}
	return true
}

// Cut takes the last n events off the newest batch, which then confirms lsn and no more. It reports whether that settled
// the batch.
func (t *Tracker) Cut(e *Entry, n int, lsn pglogrepl.LSN) bool {
	e.lsn = lsn
	return t.Done(e, n)
}

// Window is the size in bytes of everything since the oldest batch that is not settled: what is sent again
// after a crash, at most.
func (t *Tracker) Window() int { return t.window }
