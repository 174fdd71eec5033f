//go:build unix

package replication

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
)

// dialed returns both ends of a connection. The first is a socket.
func dialed(t testing.TB, network string) (net.Conn, net.Conn) {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	listener, err := net.Listen(network, address)
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	polled, err := net.Dial(network, listener.Addr().String())
	require.NoError(t, err)
	server, err := listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	client, err := unpolled(polled)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client, server
}

func networks() []string { return []string{"tcp", "unix"} }

func TestASocketIsAConnection(t *testing.T) {
	for _, network := range networks() {
		t.Run(network, func(t *testing.T) {
			nettest.TestConn(t, func() (client, server net.Conn, stop func(), err error) {
				client, server = dialed(t, network)
				return client, server, func() { _, _ = client.Close(), server.Close() }, nil
			})
		})
	}
}

func TestASocketReadsToTheEndOfTheStream(t *testing.T) {
	for _, network := range networks() {
		t.Run(network, func(t *testing.T) {
			client, server := dialed(t, network)
			sent := bytes.Repeat([]byte("0123456789"), 1<<20)
			var writer sync.WaitGroup
			writer.Go(func() {
				_, _ = server.Write(sent)
				_ = server.Close()
			})
			defer writer.Wait()
			received, err := io.ReadAll(client)
			require.NoError(t, err)
			require.True(t, bytes.Equal(sent, received))
		})
	}
}

// What the caller asks for: io.ErrClosed, a reset, and a deadline are told apart, and say which connection it was.
func TestErrorsOfASocketNameTheirKind(t *testing.T) {
	client, server := dialed(t, "tcp")
	require.NoError(t, client.SetReadDeadline(past))
	_, err := client.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	var netErr net.Error
	require.ErrorAs(t, err, &netErr)
	require.True(t, netErr.Timeout())
	require.ErrorContains(t, err, server.LocalAddr().String())

	require.NoError(t, client.SetReadDeadline(time.Time{}))
	require.NoError(t, server.(*net.TCPConn).SetLinger(0)) // closing resets
	require.NoError(t, server.Close())
	_, err = client.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)

	require.NoError(t, client.Close())
	_, err = client.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, client.Close(), net.ErrClosed)
	require.ErrorIs(t, client.SetDeadline(past), net.ErrClosed)
}

// A read and a write that wait, each in its own goroutine, end when the socket is closed or their deadline comes.
func TestWhoWaitsAtASocketIsWoken(t *testing.T) {
	full := make([]byte, 64<<20) // more than the kernel takes
	for name, wake := range map[string]func(net.Conn) error{
		"closed":   net.Conn.Close,
		"deadline": func(c net.Conn) error { return c.SetDeadline(past) },
	} {
		t.Run(name, func(t *testing.T) {
			client, _ := dialed(t, "tcp")
			ended := make(chan error)
			go func() {
				_, err := client.Read(make([]byte, 1))
				ended <- err
			}()
			go func() {
				_, err := client.Write(full)
				ended <- err
			}()
			s := client.(*socket)
			require.Eventually(t, func() bool { return s.reading.waiting.Load() && s.writing.waiting.Load() }, 10*time.Second, time.Millisecond)
			require.NoError(t, wake(client))
			for range 2 {
				err := <-ended
				require.True(t, errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded), "%v", err)
			}
		})
	}
}

func TestASocketLeavesNoDescriptorBehind(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/dev/fd")
		require.NoError(t, err)
		return len(entries)
	}
	before := count()
	for range 20 {
		client, server := dialed(t, "tcp")
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	}
	require.Equal(t, before, count())
}

// A connection that has no descriptor, as that of a proxy may, is used as it is.
func TestAConnectionWithoutADescriptorStaysAsItIs(t *testing.T) {
	client, _ := net.Pipe()
	same, err := unpolled(client)
	require.NoError(t, err)
	require.Same(t, client, same)
}

// TLS gives back one record a read, and the walsender makes one of each row: a pause before each would be the end of speed.
func TestALateStreamPausesForASocketfulOfTLSRecords(t *testing.T) {
	const rows = 200
	https := httptest.NewTLSServer(nil)
	t.Cleanup(https.Close)
	client, server := dialed(t, "tcp")
	b := unattached(client)
	written := make(chan struct{})
	go func() {
		defer close(written)
		secure := tls.Server(server, &tls.Config{Certificates: https.TLS.Certificates})
		for range rows {
			_, _ = secure.Write(make([]byte, 100))
		}
		_ = secure.Close()
	}()
	conn := tls.Client(b, &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, conn.Handshake())
	<-written
	b.attach()
	b.late = true
	pauses := 0
	b.pause = func(time.Duration) { pauses++ }
	require.Len(t, readAll(t, conn, b, []int{1000}), rows*100)
	require.Less(t, pauses, 10)
}
