package checkpoint

import (
	"sync"
	"sync/atomic"
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

// The receiving and the sending goroutine both advance the position that is reported. Here they take
// turns with the next LSN, so that they meet; under the race detector they do so reliably.
func TestPositionNeverMovesBack(t *testing.T) {
	const last = 1_000_000
	var position Position
	var next atomic.Uint64
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for lsn := next.Add(1); lsn <= last; lsn = next.Add(1) {
				position.Advance(pglogrepl.LSN(lsn))
				if now := position.Load(); uint64(now) < lsn {
					t.Errorf("%s after %s was reached", now, pglogrepl.LSN(lsn))
					return
				}
			}
		})
	}
	group.Go(func() {
		for before := pglogrepl.LSN(0); next.Load() < last; {
			now := position.Load()
			if now < before {
				t.Errorf("%s after %s", now, before)
				return
			}
			before = now
		}
	})
	group.Wait()
	if !t.Failed() {
		require.Equal(t, pglogrepl.LSN(last), position.Load())
	}
}

func BenchmarkPositionAdvance(b *testing.B) {
	var position Position
	b.ReportAllocs()
	for lsn := pglogrepl.LSN(1); b.Loop(); lsn++ {
		position.Advance(lsn)
	}
}
