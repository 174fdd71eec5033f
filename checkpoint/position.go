package checkpoint

import (
	"sync/atomic"

	"github.com/jackc/pglogrepl"
)

// Position is an LSN that only moves forward. Any goroutine may advance and read it.
type Position struct{ lsn atomic.Uint64 }

// Load returns the position.
func (p *Position) Load() pglogrepl.LSN { return pglogrepl.LSN(p.lsn.Load()) }

// Advance moves the position to lsn, unless it is there or further already.
func (p *Position) Advance(lsn pglogrepl.LSN) {
	for {
		current := p.lsn.Load()
		if uint64(lsn) <= current || p.lsn.CompareAndSwap(current, uint64(lsn)) {
			return
		}
	}
}
