package stack

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// faults are what is wrong with one direction of a Proxy; the zero value is a good network.
type faults struct {
	stalled       bool
	delay, jitter time.Duration
	rate          int // bytes a second; 0 is no limit
}

// pieceTime is how long a piece of a throttled stream takes. Faults end, and connections take turns, between pieces.
const pieceTime = 50 * time.Millisecond

// link is what all connections of a Proxy share in one direction.
type link struct {
	mu      sync.Mutex
	faults  faults
	changed chan struct{} // closed when faults change
	free    time.Time     // when the next piece may pass, as long as there is a rate
}

func newLink() *link { return &link{changed: make(chan struct{})} }

func (l *link) change(edit func(*faults)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	edit(&l.faults)
	close(l.changed)
	l.changed = make(chan struct{})
}

// admit waits until the first bytes of a chunk may pass, and returns how many. It returns 0 when ended is closed before.
func (l *link) admit(c chunk, ended <-chan struct{}) int {
	for {
		l.mu.Lock()
		n, wait, changed := l.try(c)
		l.mu.Unlock()
		if n > 0 {
			return n
		}
		var due <-chan time.Time
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-due:
		case <-changed:
		case <-ended:
			return 0
		}
	}
}

// try returns how many bytes of a chunk may pass now; of none, how long they have to wait, if that is known.
func (l *link) try(c chunk) (n int, wait time.Duration, changed <-chan struct{}) {
	if l.faults.stalled {
		return 0, 0, l.changed
	}
	now := time.Now()
	due := c.came.Add(l.faults.delay + time.Duration(c.luck*float64(l.faults.jitter)))
	if l.faults.rate > 0 && due.Before(l.free) {
		due = l.free
	}
	if due.After(now) {
		return 0, due.Sub(now), l.changed
	}
	n = max(1, len(c.data)) // the end of a stream passes as a byte
	if l.faults.rate > 0 {
		n = min(n, max(1, int(int64(l.faults.rate)*int64(pieceTime)/int64(time.Second))))
		l.free = now.Add(time.Duration(n) * time.Second / time.Duration(l.faults.rate))
	}
	return n, 0, nil
}

// chunk is what one read of a connection returned. Without data it is the orderly end of the stream.
type chunk struct {
	data []byte
	came time.Time
	luck float64 // where in the range of the jitter it is, from -1 to 1
}

const (
	chunkBytes = 32 << 10
	// chunksUnderWay bound what a delay keeps in memory, and with that the throughput of a delayed connection.
	chunksUnderWay = 16
)

// tunnel is a client's connection and the one to the server that serves it.
type tunnel struct {
	mu    sync.Mutex
	ends  []*net.TCPConn
	ended chan struct{} // closed by end
	over  bool
}

// join adds the server's end. It is reset with the rest if that has happened already.
func (t *tunnel) join(server *net.TCPConn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		_ = abort(server)
		return false
	}
	t.ends = append(t.ends, server)
	for _, end := range t.ends {
		_ = end.SetReadBuffer(socketBuffer)
	}
	return true
}

// reset ends both connections with an RST.
func (t *tunnel) reset() { t.end(abort) }

// end closes both connections, each in the way of how. A second call does nothing.
func (t *tunnel) end(how func(*net.TCPConn) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return
	}
	t.over = true
	close(t.ended)
	for _, end := range t.ends {
		_ = how(end)
	}
}

func abort(c *net.TCPConn) error {
	_ = c.SetLinger(0)
	return c.Close()
}

// pump passes on what one end sends until that is over; an error on either end resets both.
func (t *tunnel) pump(to, from *net.TCPConn, l *link) {
	chunks := make(chan chunk, chunksUnderWay)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(chunks)
		t.read(from, chunks)
	})
	if !t.write(to, chunks, l) {
		t.reset()
	}
	reading.Wait()
}

// read fills chunks until the stream has ended; if not in an orderly way, then without a last chunk that says so.
func (t *tunnel) read(from *net.TCPConn, chunks chan<- chunk) {
	for {
		buffer := make([]byte, chunkBytes)
		n, err := from.Read(buffer)
		if err != nil && !errors.Is(err, io.EOF) {
			return
		}
		select {
		case chunks <- chunk{data: buffer[:n], came: time.Now(), luck: 2*rand.Float64() - 1}:
		case <-t.ended:
			return
		}
		if err != nil {
			return
		}
	}
}

// write passes chunks on and reports whether the stream ended in an orderly way.
func (t *tunnel) write(to *net.TCPConn, chunks <-chan chunk, l *link) bool {
	for c := range chunks {
		for first := true; first || len(c.data) > 0; first = false {
			n := l.admit(c, t.ended)
			switch {
			case n == 0:
				return false
			case len(c.data) == 0:
				return to.CloseWrite() == nil
			}
			if _, err := to.Write(c.data[:n]); err != nil {
				return false
			}
			c.data = c.data[n:]
		}
	}
	return false
}
