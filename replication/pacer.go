package replication

import "time"

// The walsender makes one send a row, so an eager reader is woken for every row and both sides pay for it. A stream
// that is busy, with busyReads reads in busyWindow, is read after pauses instead: the socket fills meanwhile. That
// is no loss of time, because such a stream has more to say than is worth a wake-up, and transactions that come one
// by one never look like that, even thousands a second.
const (
	busyReads  = 64
	busyWindow = 5 * time.Millisecond
	fillTime   = time.Millisecond
	worthwhile = 4 << 10  // bytes that a pause has to bring, or the stream is busy no more
	plenty     = 64 << 10 // bytes in one read after which no pause is needed
)

// pacer decides how long to let the socket fill before the next read.
type pacer struct {
	reads  [busyReads]time.Time // the last ones, a ring
	next   int
	busy   bool
	plenty bool
}

// read takes note of a read that brought n bytes.
func (p *pacer) read(at time.Time, n int) {
	p.plenty = n >= plenty
	if p.busy {
		if n < worthwhile {
			*p = pacer{}
		}
		return
	}
	oldest := p.reads[p.next]
	p.reads[p.next] = at
	p.next = (p.next + 1) % busyReads
	p.busy = !oldest.IsZero() && at.Sub(oldest) < busyWindow
}

// silence takes note of a read that brought nothing before it had to end.
func (p *pacer) silence() { *p = pacer{} }

// pause is the time to let pass before the next read.
func (p *pacer) pause() time.Duration {
	if p.busy && !p.plenty {
		return fillTime
	}
	return 0
}
