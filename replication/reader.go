package replication

import (
	"net"
	"time"
)

const (
	// readBuffer is how much of the stream is taken from the socket at once, in bytes.
	readBuffer = 1 << 20

	// tcpFillTime and unixFillTime are how long a socket may fill. A Unix socket holds few rows, whatever their size.
	tcpFillTime  = 2 * time.Millisecond
	unixFillTime = 200 * time.Microsecond

	// plenty of bytes in one read, and the next needs no pause.
	plenty = 256 << 10
)

// burstReader is the read side of a replication connection, below TLS. Once it is attached, it fills a large buffer from
// the socket and returns os.ErrDeadlineExceeded when the wake time comes first, with nothing lost: the next read goes on
// where the last one stopped.
//
// The walsender makes one send a row, so an eager reader is woken for every row, and both sides pay for it. While the
// stream is late anyway, the socket gets time to fill before each read.
type burstReader struct {
	net.Conn
	fillTime time.Duration // how long the socket of a late stream may fill before it is read
	late     bool          // set by the owner while the stream is behind the commits
	size     int           // of the last read
	wake     time.Time
	last     time.Time // when the socket last gave something

	interrupted func() bool // whether to stop waiting at once
	pause       func(time.Duration)

	buf  []byte // nil until attached
	r, w int
}

// attach takes over from pgconn: from now on the wake time counts.
func (b *burstReader) attach() {
	b.buf = make([]byte, readBuffer)
	b.fillTime = tcpFillTime
	if b.RemoteAddr().Network() == "unix" {
		b.fillTime = unixFillTime
	}
	b.pause = pause
	b.last = time.Now()
}

// Read implements io.Reader.
func (b *burstReader) Read(p []byte) (int, error) {
	if b.buf == nil {
		return b.Conn.Read(p)
	}
	if b.r == b.w {
		if err := b.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, b.buf[b.r:b.w])
	b.r += n
	return n, nil
}

// buffered is the number of bytes that can be read without waiting.
func (b *burstReader) buffered() int { return b.w - b.r }

func (b *burstReader) fill() error {
	b.r, b.w = 0, 0
	if b.late && b.size < plenty {
		b.pause(b.fillTime)
	}
	if err := b.arm(); err != nil {
		return err
	}
	n, err := b.Conn.Read(b.buf)
	b.w, b.size = n, n
	if n == 0 {
		return err
	}
	b.last = time.Now()
	return nil
}

// arm sets the read deadline. An interrupt sets it too, to the past and from another goroutine, so
// it is looked for after the deadline has been moved.
func (b *burstReader) arm() error {
	if err := b.SetReadDeadline(b.wake); err != nil {
		return err
	}
	if b.interrupted() {
		return b.SetReadDeadline(past)
	}
	return nil
}

// interrupt has a read that waits return at once. It may be called by any goroutine.
func (b *burstReader) interrupt() { _ = b.SetReadDeadline(past) }

// past is a deadline that is over: it wakes a read that waits.
var past = time.Unix(1, 0)
