package replication

import (
	"io"
	"net"
	"time"
)

// readBuffer is how much of the stream is taken from the socket at once, in bytes. The walsender makes
// one small send a row; fewer, larger reads spare both sides a wake-up for each.
const readBuffer = 1 << 20

// A stream that delivers faster than quickRead a row, busyReads times in a row, is busy: letting the socket fill for a
// moment then costs no latency that anybody could notice and saves most of the wake-ups. Transactions that come one
// by one, even thousands a second, never look like that.
const (
	quickRead  = 300 * time.Microsecond
	busyReads  = 32
	enough     = 64 << 10 // bytes in one read that make a pause pointless
	firstPause = 100 * time.Microsecond
	lastPause  = time.Millisecond
)

// burstReader is the read side of a replication connection. It fills a large buffer from the socket and
// returns os.ErrDeadlineExceeded when the wake time comes first, with nothing lost: the next read
// goes on where the last one stopped.
type burstReader struct {
	src  io.Reader
	conn net.Conn // whose read deadline is moved; nil while pgconn still minds it
	unix bool
	wake time.Time
	last time.Time // when the socket last gave something

	interrupted func() bool // whether to stop waiting at once

	quick int           // reads in a row that came at once and brought little
	pause time.Duration // before the next read

	buf  []byte
	r, w int
}

func newBurstReader(src io.Reader) *burstReader {
	return &burstReader{src: src, buf: make([]byte, readBuffer)}
}

// attach takes over from pgconn: from now on the wake time counts.
func (b *burstReader) attach(conn net.Conn) {
	b.conn = conn
	b.unix = conn.RemoteAddr().Network() == "unix"
	b.last = time.Now()
}

// Read implements io.Reader.
func (b *burstReader) Read(p []byte) (int, error) {
	if b.r == b.w {
		if err := b.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, b.buf[b.r:b.w])
	b.r += n
	return n, nil
}

func (b *burstReader) fill() error {
	b.r, b.w = 0, 0
	if b.conn == nil {
		n, err := b.src.Read(b.buf)
		b.w = n
		return err
	}
	if b.pause > 0 {
		time.Sleep(b.pause) //nolint:forbidigo // the point is to let time pass: data is waiting already
	}
	if err := b.arm(); err != nil {
		return err
	}
	asked := time.Now()
	n, err := b.src.Read(b.buf)
	b.w = n
	if n == 0 {
		b.quick, b.pause = 0, 0
		return err
	}
	b.last = time.Now()
	b.adapt(b.last.Sub(asked), n)
	return nil
}

// adapt finds the pause that makes reads large while the stream is busy, and drops it when it is not. A Unix socket
// holds too little for that.
func (b *burstReader) adapt(waited time.Duration, n int) {
	switch {
	case waited > quickRead || b.unix:
		b.quick, b.pause = 0, 0
	case n >= enough:
		b.pause /= 2
	default:
		if b.quick++; b.quick >= busyReads {
			b.pause = min(max(firstPause, 2*b.pause), lastPause)
		}
	}
}

// arm sets the read deadline. An interrupt sets it too, to the past and from another goroutine, so
// it is looked for after the deadline has been moved.
func (b *burstReader) arm() error {
	if err := b.conn.SetReadDeadline(b.wake); err != nil {
		return err
	}
	if b.interrupted() {
		return b.conn.SetReadDeadline(past)
	}
	return nil
}

// past is a deadline that is over: it wakes a read that waits.
var past = time.Unix(1, 0)
