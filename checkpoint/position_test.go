package checkpoint

import (
	"sync"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestPositionIsTheHighestSoFar(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var position Position
		var highest pglogrepl.LSN
		for _, lsn := range rapid.SliceOf(rapid.Uint64()).Draw(t, "lsns") {
			position.Advance(pglogrepl.LSN(lsn))
			highest = max(highest, pglogrepl.LSN(lsn))
			require.Equal(t, highest, position.Load())
		}
	})
}

// The receiving and the sending goroutine both advance the position that is reported.
func TestPositionNeverMovesBack(t *testing.T) {
	const steps = 100_000
	var position Position
	var group sync.WaitGroup
	for writer := range 2 {
		group.Go(func() {
			for i := range steps {
				lsn := pglogrepl.LSN(2*i + writer)
				position.Advance(lsn)
				if now := position.Load(); now < lsn {
					t.Errorf("%s after %s was reached", now, lsn)
					return
				}
			}
		})
	}
	for range 2 {
		group.Go(func() {
			var last pglogrepl.LSN
			for range steps {
				now := position.Load()
				if now < last {
					t.Errorf("%s after %s", now, last)
					return
				}
				last = now
			}
		})
	}
	group.Wait()
	require.Equal(t, pglogrepl.LSN(2*steps-1), position.Load())
}

func BenchmarkPositionAdvance(b *testing.B) {
	var position Position
	b.ReportAllocs()
	for lsn := pglogrepl.LSN(1); b.Loop(); lsn++ {
		position.Advance(lsn)
	}
}
