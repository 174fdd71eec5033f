package checkpoint

import (
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is the Tracker as anybody would write it at first: every event of every batch is kept.
type model struct {
	batches  []modelBatch
	released int
	flushed  pglogrepl.LSN
}

type modelBatch struct {
	lsn     pglogrepl.LSN
	settled []bool
}

func (b modelBatch) done() bool {
	for _, settled := range b.settled {
		if !settled {
			return false
		}
	}
	return true
}

// open lists the batches that have events to settle.
func (m *model) open() []int {
	var open []int
	for i, b := range m.batches {
		if !b.done() {
			open = append(open, i)
		}
	}
	return open
}

// settle marks the first n open events of a batch and returns how many there were.
func (m *model) settle(batch, n int) int {
	settled := m.batches[batch].settled
	marked := 0
	for i := range settled {
		if !settled[i] && marked < n {
			settled[i] = true
			marked++
		}
	}
	return marked
}

// release returns the index of the oldest batch if it is done.
func (m *model) release() (int, bool) {
	if m.released == len(m.batches) || !m.batches[m.released].done() {
		return 0, false
	}
	m.flushed = max(m.flushed, m.batches[m.released].lsn)
	m.released++
	return m.released - 1, true
}

func TestTrackerIsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var position Position
		tracker := NewTracker[int](&position)
		var m model
		var tickets []Ticket
		// With many additions the ring grows, and not always from its first slot.
		additions := rapid.IntRange(1, 8).Draw(t, "additions in ten")
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			switch step := rapid.IntRange(0, 9).Draw(t, "step"); {
			case step < additions:
				lsn := pglogrepl.LSN(rapid.Uint64Range(0, 50).Draw(t, "lsn"))
				events := rapid.IntRange(0, 4).Draw(t, "events")
				tickets = append(tickets, tracker.Add(len(m.batches), events, lsn))
				m.batches = append(m.batches, modelBatch{lsn: lsn, settled: make([]bool, events)})
			case step == 9:
				want, wantOK := m.release()
				got, ok := tracker.Release()
				require.Equal(t, wantOK, ok)
				require.Equal(t, want, got)
			default:
				if open := m.open(); len(open) > 0 {
					batch := rapid.SampledFrom(open).Draw(t, "batch")
					n := m.settle(batch, rapid.IntRange(1, 4).Draw(t, "settled"))
					tracker.Done(tickets[batch], n)
				}
			}
			require.Equal(t, m.flushed, position.Load())
			require.Equal(t, len(m.batches)-m.released, tracker.Len())
			oldest, ok := tracker.Oldest()
			require.Equal(t, m.released < len(m.batches), ok)
			if ok {
				require.Equal(t, m.released, oldest)
			}
		}
	})
}

// This is the case that loses events where the highest acknowledged position counts.
func TestNothingIsFlushedBehindAGap(t *testing.T) {
	var position Position
	tracker := NewTracker[string](&position)
	first := tracker.Add("first", 2, 100)
	second := tracker.Add("second", 1, 200)
	third := tracker.Add("third", 1, 0) // cut inside a transaction

	tracker.Done(second, 1)
	tracker.Done(third, 1)
	tracker.Done(first, 1)
	_, ok := tracker.Release()
	require.False(t, ok)
	require.Zero(t, position.Load())

	tracker.Done(first, 1)
	require.Zero(t, position.Load(), "not before the batch is out")
	for _, want := range []struct {
		batch string
		lsn   pglogrepl.LSN
	}{{"first", 100}, {"second", 200}, {"third", 200}} {
		batch, ok := tracker.Release()
		require.True(t, ok)
		require.Equal(t, want.batch, batch)
		require.Equal(t, want.lsn, position.Load())
	}
	_, ok = tracker.Release()
	require.False(t, ok)
}

func TestBatchWithoutEvents(t *testing.T) {
	var position Position
	tracker := NewTracker[string](&position)
	full := tracker.Add("full", 1, 100)
	tracker.Add("empty", 0, 200)
	_, ok := tracker.Release()
	require.False(t, ok, "it waits for those before it")

	tracker.Done(full, 1)
	for _, want := range []string{"full", "empty"} {
		batch, ok := tracker.Release()
		require.True(t, ok)
		require.Equal(t, want, batch)
	}
	require.Equal(t, pglogrepl.LSN(200), position.Load())
}

func TestTrackerGrows(t *testing.T) {
	var position Position
	tracker := NewTracker[int](&position)
	for i := range 10 { // so that the ring is not full from its first slot on
		tracker.Done(tracker.Add(i, 1, 1), 1)
		_, ok := tracker.Release()
		require.True(t, ok)
	}
	const batches = 1000
	for i := range batches {
		require.Equal(t, Ticket(10+i), tracker.Add(i, 1, pglogrepl.LSN(10+i)))
	}
	require.Equal(t, batches, tracker.Len())
	for i := batches - 1; i > 0; i-- {
		tracker.Done(Ticket(10+i), 1)
		_, ok := tracker.Release()
		require.False(t, ok)
	}
	tracker.Done(10, 1)
	for i := range batches {
		batch, ok := tracker.Release()
		require.True(t, ok)
		require.Equal(t, i, batch)
		require.Equal(t, pglogrepl.LSN(10+i), position.Load())
	}
	require.Zero(t, tracker.Len())
}

// A batch that is released belongs to others: the Tracker must not keep it alive.
func TestReleasedBatchesAreForgotten(t *testing.T) {
	tracker := NewTracker[*string](new(Position))
	for range 3 {
		tracker.Done(tracker.Add(new(string), 1, 1), 1)
	}
	for range 3 {
		_, ok := tracker.Release()
		require.True(t, ok)
	}
	for _, e := range tracker.ring {
		require.Zero(t, e)
	}
}

// settleOne takes a batch of two events through a tracker that has others waiting.
func settleOne(tracker *Tracker[*int], tickets []Ticket) []Ticket {
	tickets = append(tickets, tracker.Add(nil, 2, 1))
	tracker.Done(tickets[0], 1)
	tracker.Done(tickets[0], 1)
	tracker.Release()
	return append(tickets[:0], tickets[1:]...)
}

// waiting returns a tracker with batches that are not settled, and their tickets.
func waiting(batches int) (*Tracker[*int], []Ticket) {
	tracker := NewTracker[*int](new(Position))
	tickets := make([]Ticket, 0, batches+1)
	for range batches {
		tickets = append(tickets, tracker.Add(nil, 2, 1))
	}
	return tracker, tickets
}

func TestTrackingDoesNotAllocate(t *testing.T) {
	tracker, tickets := waiting(32)
	require.Zero(t, testing.AllocsPerRun(1000, func() { tickets = settleOne(tracker, tickets) }))
	require.Equal(t, 32, tracker.Len())
}

func BenchmarkTracker(b *testing.B) {
	tracker, tickets := waiting(32)
	b.ReportAllocs()
	for b.Loop() {
		tickets = settleOne(tracker, tickets)
	}
}
