package decoder

import (
	"sort"
	"time"

	"github.com/jackc/pglogrepl"
)

// Batch is a run of consecutive events in stream order: the unit that travels
// from the receiving goroutine to the sending one and back. Every byte of its
// events lives in one arena, so that a batch is a handful of allocations however
// many events it holds, and none of them holds a pointer for the garbage collector
// to follow.
//
// A Batch belongs to one goroutine at a time. The slices that its events lend stay
// valid until the batch goes back to its Pool.
type Batch struct {
	// LSN is the position that may be confirmed once this batch and all before it
	// are acknowledged: the end LSN of the last transaction that is complete in
	// them. Zero means that it confirms nothing.
	LSN pglogrepl.LSN

	arena   []byte // bytes of the events; never grows past its capacity, so that spans stay true
	home    []byte // the arena of the usual size, put aside while a large row has memory of its own
	spans   []span // columns of the events, stride of them each
	commits []int64
	ends    []end // of the transactions that are complete within the batch
	stride  int
	reserve []*Batch // kept out of circulation to pay for a large row
}

// span is a column's place in the arena; a negative length is SQL NULL.
type span struct{ start, length int32 }

// end is where a transaction ends: after so many events of the batch, and at which LSN.
type end struct {
	events int
	lsn    pglogrepl.LSN
}

// EndTransaction notes that a transaction with the given end LSN is complete with the events so far.
func (b *Batch) EndTransaction(lsn pglogrepl.LSN) { b.ends = append(b.ends, end{b.Len(), lsn}) }

// LSNBefore is the end LSN of the last transaction that is complete within the first n events, or zero.
func (b *Batch) LSNBefore(n int) pglogrepl.LSN {
	i := sort.Search(len(b.ends), func(i int) bool { return b.ends[i].events > n })
	if i == 0 {
		return 0
	}
	return b.ends[i-1].lsn
}

// Len is the number of events.
func (b *Batch) Len() int { return len(b.commits) }

// Bytes is the size of the rows in the batch, as they came from Postgres.
func (b *Batch) Bytes() int { return len(b.arena) }

// Event lends the event with the given index, 0 to Len()-1.
func (b *Batch) Event(i int) Event {
	return Event{
		arena:  b.arena,
		spans:  b.spans[i*b.stride : (i+1)*b.stride],
		commit: b.commits[i],
	}
}

// fits reports whether a row of n bytes can be added. An empty batch takes
// any row: one that is larger than the arena gets memory of its own.
func (b *Batch) fits(n int) bool {
	return len(b.commits) == 0 || len(b.arena)+n <= cap(b.arena)
}

// grab returns n bytes at the end of the arena and their offset.
func (b *Batch) grab(n int) (dst []byte, offset int) {
	if len(b.arena)+n > cap(b.arena) {
		b.home, b.arena = b.arena[:0], make([]byte, 0, n)
	}
	offset = len(b.arena)
	b.arena = b.arena[:offset+n]
	return b.arena[offset:], offset
}

// Append adds the event that a transaction committed at the given time made of values, which are those of the layout's
// columns in their order, as Event.Column lends them: nil for SQL NULL. It copies them, and reports whether the batch
// had room. As for the decoder, Pool.Prepare pays for a row of their size, and an empty batch takes any.
func (b *Batch) Append(commit time.Time, values [][]byte) bool {
	size := 0
	for _, value := range values {
		size += len(value)
	}
	if !b.fits(size) {
		return false
	}
	row, offset := b.grab(size)
	at := 0
	for _, value := range values {
		s := span{length: -1}
		if value != nil {
			s = span{start: int32(offset + at), length: int32(len(value))}
		}
		at += copy(row[at:], value)
		b.spans = append(b.spans, s)
	}
	b.commits = append(b.commits, commit.UnixMicro()-postgresEpoch)
	return true
}

// reset empties the batch and lets go of memory that one large row needed.
func (b *Batch) reset() {
	if b.home != nil {
		b.arena, b.home = b.home, nil
	}
	b.LSN, b.arena, b.spans, b.commits, b.ends = 0, b.arena[:0], b.spans[:0], b.commits[:0], b.ends[:0]
}

// Event is one inserted row of the outbox table. It is a view into its Batch:
// cheap to copy, valid as long as the batch is.
type Event struct {
	arena  []byte
	spans  []span
	commit int64
}

// Column lends the value of a column of the Layout in the text form of Postgres
// (bytea: the raw bytes). It is nil for SQL NULL, and empty but not nil for the empty string.
func (e Event) Column(c Column) []byte {
	s := e.spans[c]
	if s.length < 0 {
		return nil
	}
	end := s.start + s.length
	return e.arena[s.start:end:end]
}

// postgresEpoch is 2000-01-01 in Unix microseconds: pgoutput counts from there.
const postgresEpoch = 946_684_800_000_000

// CommitTime is when the transaction of the row was committed, by the clock of Postgres.
func (e Event) CommitTime() time.Time { return commitTime(e.commit) }

func commitTime(micros int64) time.Time { return time.UnixMicro(micros + postgresEpoch) }

// CommitMillis is CommitTime in Unix milliseconds, the resolution of Kafka.
func (e Event) CommitMillis() int64 { return (e.commit + postgresEpoch) / 1000 }
