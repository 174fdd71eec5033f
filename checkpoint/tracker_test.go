package checkpoint

import (
	"math/rand/v2"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// modelBatch is a batch in the Tracker as anybody would write it at first: every batch is kept for ever.
type modelBatch struct {
	lsn     pglogrepl.LSN
	bytes   int
	pending int
}

// gapless returns the batches before the first that has something pending, and the rest.
func gapless(batches []modelBatch) (before, rest []modelBatch) {
	for i, b := range batches {
		if b.pending > 0 {
			return batches[:i], batches[i:]
		}
	}
	return batches, nil
}

// I1.
func TestTheTrackerIsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			position Position
			model    []modelBatch
			entries  []*Entry
		)
		tracker := NewTracker(&position)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			var open []int
			for i, b := range model {
				if b.pending > 0 {
					open = append(open, i)
				}
			}
			if len(open) == 0 || rapid.Bool().Draw(t, "add") {
				b := modelBatch{
					lsn:     pglogrepl.LSN(rapid.Uint64Range(0, 50).Draw(t, "lsn")),
					bytes:   rapid.IntRange(0, 100).Draw(t, "bytes"),
					pending: rapid.IntRange(1, 4).Draw(t, "events"),
				}
				model = append(model, b)
				entries = append(entries, tracker.Add(b.pending, b.bytes, b.lsn))
			} else {
				i := rapid.SampledFrom(open).Draw(t, "batch")
				n := rapid.IntRange(1, model[i].pending).Draw(t, "settled")
				model[i].pending -= n
				require.Equal(t, model[i].pending == 0, tracker.Done(entries[i], n))
			}

			before, rest := gapless(model)
			var flushed pglogrepl.LSN
			for _, b := range before {
				flushed = max(flushed, b.lsn)
			}
			window := 0
			for _, b := range rest {
				window += b.bytes
			}
			require.Equal(t, flushed, position.Load())
			require.Equal(t, window, tracker.Window())
		}
	})
}

// This is the case that loses events where the highest acknowledged position counts.
func TestNothingIsFlushedBehindAGap(t *testing.T) {
	var position Position
	tracker := NewTracker(&position)
	first := tracker.Add(2, 10, 100)
	second := tracker.Add(1, 10, 200)
	third := tracker.Add(1, 10, 0) // cut inside a transaction
	fourth := tracker.Add(1, 10, 300)

	require.True(t, tracker.Done(third, 1))
	require.True(t, tracker.Done(second, 1))
	require.False(t, tracker.Done(first, 1))
	require.Zero(t, position.Load())
	require.Equal(t, 40, tracker.Window())

	require.True(t, tracker.Done(first, 1))
	require.Equal(t, pglogrepl.LSN(200), position.Load())
	require.Equal(t, 10, tracker.Window())

	require.True(t, tracker.Done(fourth, 1))
	require.Equal(t, pglogrepl.LSN(300), position.Load())
	require.Zero(t, tracker.Window())
}

func TestACutBatchConfirmsLess(t *testing.T) {
	var position Position
	tracker := NewTracker(&position)
	first := tracker.Add(1, 10, 100)
	second := tracker.Add(5, 10, 300)
	require.False(t, tracker.Cut(second, 3, 200))
	require.True(t, tracker.Done(second, 2))
	require.True(t, tracker.Done(first, 1))
	require.Equal(t, pglogrepl.LSN(200), position.Load())

	whole := tracker.Add(2, 10, 400)
	require.True(t, tracker.Cut(whole, 2, 0))
	require.Equal(t, pglogrepl.LSN(200), position.Load())
}

// A topic that is stuck for hours must not cost memory for what flows past it.
func TestWhatIsSettledBehindAGapIsNotKept(t *testing.T) {
	var position Position
	tracker := NewTracker(&position)
	stuck := tracker.Add(1, 1, 1)
	for i := range 100_000 {
		tracker.Done(tracker.Add(1, 1, pglogrepl.LSN(i+2)), 1)
	}
	require.Nil(t, stuck.next)
	require.Equal(t, 100_001, tracker.Window())
	tracker.Done(stuck, 1)
	require.Equal(t, pglogrepl.LSN(100_001), position.Load())
}

func BenchmarkTracker(b *testing.B) {
	var position Position
	tracker := NewTracker(&position)
	const inFlight = 32
	var entries []*Entry
	random := rand.New(rand.NewPCG(1, 1))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		entries = append(entries, tracker.Add(1, 1, pglogrepl.LSN(i)))
		if len(entries) == inFlight {
			at := random.IntN(inFlight)
			tracker.Done(entries[at], 1)
			entries[at] = entries[inFlight-1]
			entries = entries[:inFlight-1]
		}
	}
}
