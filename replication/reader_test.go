package replication

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// unattached returns a reader of conn that nobody interrupts, and that is not attached yet, as below a TLS handshake.
func unattached(conn net.Conn) *burstReader {
	return &burstReader{Conn: conn, interrupted: func() bool { return false }}
}

// attached returns one that is.
func attached(conn net.Conn) *burstReader {
	b := unattached(conn)
	b.attach()
	return b
}

func TestBytesComeInOrderHoweverTheyAreCut(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		chunks := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 1, 3000), 1, -1).Draw(rt, "chunks")
		gaps := rapid.SliceOfN(rapid.IntRange(0, 15), len(chunks), len(chunks)).Draw(rt, "milliseconds before each")
		sizes := rapid.SliceOfN(rapid.IntRange(1, 5000), 1, 20).Draw(rt, "sizes of reads")
		inBubble(t, rt, func(t tester) {
			client, server := net.Pipe()
			go func() {
				for i, chunk := range chunks {
					pass(time.Duration(gaps[i]) * time.Millisecond)
					_, _ = server.Write(chunk)
				}
				_ = server.Close()
			}()
			b := attached(client)
			require.Equal(t, bytes.Join(chunks, nil), readAll(t, b, b, sizes))
		})
	})
}

// readAll reads to the end what comes through b, with a wake time all 10 ms.
func readAll(t tester, conn io.Reader, b *burstReader, sizes []int) []byte {
	var all []byte
	for i := 0; ; i++ {
		b.wake = time.Now().Add(10 * time.Millisecond)
		p := make([]byte, sizes[i%len(sizes)])
		n, err := conn.Read(p)
		all = append(all, p[:n]...)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrClosedPipe): // a pipe that was closed takes no deadline
			return all
		case errors.Is(err, os.ErrDeadlineExceeded):
			require.Zero(t, n)
			require.False(t, time.Now().Before(b.wake))
		default:
			require.NoError(t, err)
		}
	}
}

// TLS keeps what it has of a record when a deadline ends a read.
func TestBytesComeInOrderThroughTLS(t *testing.T) {
	https := httptest.NewTLSServer(nil)
	t.Cleanup(https.Close)
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		sent := bytes.Repeat([]byte("0123456789abcdef"), 1000)
		var writer sync.WaitGroup
		writer.Go(func() {
			slow := tls.Server(trickle{server}, &tls.Config{Certificates: https.TLS.Certificates})
			_, _ = slow.Write(sent)
			_ = slow.Close()
		})
		defer writer.Wait()
		b := unattached(client)
		conn := tls.Client(b, &tls.Config{InsecureSkipVerify: true})
		require.NoError(t, conn.Handshake())
		b.attach()
		require.Equal(t, sent, readAll(t, conn, b, []int{1000}))
	})
}

// trickle writes a few bytes at a time, with pauses longer than the reader waits.
type trickle struct{ net.Conn }

func (c trickle) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = c.Conn.Write(p[n:min(n+100, len(p))])
		n += m
		pass(15 * time.Millisecond)
	}
	return n, err
}

func TestAReadEndsAtTheWakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := net.Pipe()
		b := attached(client)
		for range 3 {
			b.wake = time.Now().Add(time.Second)
			_, err := b.Read(make([]byte, 1))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.Equal(t, b.wake, time.Now())
		}
	})
}

// Whenever it comes: before the deadline is set, between that and the look at interrupted, or while the read waits.
func TestAnInterruptIsNotMissed(t *testing.T) {
	for name, interrupt := range map[string]func(b *burstReader, now func()){
		"before":  func(_ *burstReader, now func()) { now() },
		"between": func(b *burstReader, now func()) { b.interrupted = func() bool { now(); return true } },
		"during":  func(_ *burstReader, now func()) { go func() { synctest.Wait(); now() }() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, _ := net.Pipe()
				b := attached(client)
				b.wake = time.Now().Add(time.Hour)
				asked := time.Now()
				interrupt(b, func() {
					b.interrupted = func() bool { return true }
					require.NoError(t, client.SetReadDeadline(past))
				})
				_, err := b.Read(make([]byte, 1))
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				require.Equal(t, asked, time.Now())
			})
		})
	}
}

func TestALateStreamIsReadInPauses(t *testing.T) {
	for name, c := range map[string]struct {
		network string
		late    bool
		size    int // of each of ten reads
		pauses  int
	}{
		"a late one":               {"tcp", true, 100, 11}, // the last one finds the end
		"one that is not late":     {"tcp", false, 100, 0},
		"a read that brought much": {"tcp", true, plenty, 1}, // the first one cannot know
		"a Unix socket":            {"unix", true, 100, 11},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				go func() {
					for range 10 {
						_, _ = server.Write(make([]byte, c.size))
					}
					_ = server.Close()
				}()
				b := attached(named{client, c.network})
				b.late = c.late
				pauses := 0
				b.pause = func(time.Duration) { pauses++ }
				readAll(t, b, b, []int{c.size})
				require.Equal(t, c.pauses, pauses)
			})
		})
	}
}

// named is a connection of another network.
type named struct {
	net.Conn
	network string
}

func (c named) RemoteAddr() net.Addr { return address(c.network) }

type address string

func (a address) Network() string { return string(a) }
func (a address) String() string  { return string(a) }
