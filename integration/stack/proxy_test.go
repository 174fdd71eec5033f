package stack_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pombo-cdc/pombo/integration/stack"
)

// soon is less time than a fault that has to hold something up lasts.
const soon = 200 * time.Millisecond

// peers are a server behind a proxy, and what it takes to talk to it.
type peers struct {
	t        *testing.T
	proxy    *stack.Proxy
	accepted chan net.Conn
}

func newPeers(t *testing.T) *peers {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) }) // the last one to run
	p := &peers{t: t, accepted: make(chan net.Conn, 100)}
	addr := p.listen()
	var err error
	p.proxy, err = stack.NewProxy(addr)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.proxy.Close()) })
	return p
}

// listen starts a server.
func (p *peers) listen() (addr string) {
	p.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(p.t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			p.accepted <- c
		}
	})
	p.t.Cleanup(func() {
		require.NoError(p.t, listener.Close())
		serving.Wait()
	})
	return listener.Addr().String()
}

// connect returns both ends of a new connection.
func (p *peers) connect() (client, server *net.TCPConn) {
	p.t.Helper()
	c, err := net.Dial("tcp", p.proxy.Addr())
	require.NoError(p.t, err)
	s := <-p.accepted
	p.t.Cleanup(func() { _, _ = c.Close(), s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func send(t *testing.T, to net.Conn, text string) {
	t.Helper()
	_, err := to.Write([]byte(text))
	require.NoError(t, err)
}

func receive(t *testing.T, from net.Conn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	require.NoError(t, from.SetReadDeadline(time.Time{}))
	_, err := io.ReadFull(from, got)
	require.NoError(t, err)
	require.Equal(t, text, string(got))
}

func receiveNothing(t *testing.T, from net.Conn) {
	t.Helper()
	require.NoError(t, from.SetReadDeadline(time.Now().Add(soon)))
	_, err := from.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestAProxyPassesAStreamOnToItsEndEachWay(t *testing.T) {
	client, server := newPeers(t).connect()
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	var writing sync.WaitGroup
	writing.Go(func() {
		_, err := client.Write(large)
		require.NoError(t, errors.Join(err, client.CloseWrite()))
	})
	got, err := io.ReadAll(server)
	require.NoError(t, err)
	require.True(t, bytes.Equal(large, got))
	writing.Wait()
	send(t, server, "answer")
	require.NoError(t, server.Close())
	got, err = io.ReadAll(client)
	require.NoError(t, err)
	require.Equal(t, "answer", string(got))
}

func TestADelayHoldsUpEachWayAndEndsAtOnce(t *testing.T) {
	p := newPeers(t)
	client, server := p.connect()
	const delay, jitter = 100 * time.Millisecond, 50 * time.Millisecond
	p.proxy.Delay(delay, jitter)
	began := time.Now()
	send(t, client, "there")
	receive(t, server, "there")
	send(t, server, "and back")
	receive(t, client, "and back")
	require.GreaterOrEqual(t, time.Since(began), 2*(delay-jitter))

	p.proxy.Delay(time.Hour, 0)
	send(t, client, "waits")
	receiveNothing(t, server)
	require.NoError(t, p.proxy.Heal())
	receive(t, server, "waits")
}

func TestAThrottleIsSharedByAllConnections(t *testing.T) {
	p := newPeers(t)
	const rate, size = 1 << 20, 200 << 10
	p.proxy.Throttle(stack.Upload, rate)
	began := time.Now()
	var all sync.WaitGroup
	for range 2 {
		client, server := p.connect()
		all.Go(func() {
			_, err := client.Write(make([]byte, size))
			require.NoError(t, errors.Join(err, client.CloseWrite()))
		})
		all.Go(func() {
			n, err := io.Copy(io.Discard, server)
			require.NoError(t, err)
			require.EqualValues(t, size, n)
		})
	}
	all.Wait()
	const slack = 60 * time.Millisecond // the first piece of each goes at once
	require.GreaterOrEqual(t, time.Since(began), 2*size*time.Second/rate-2*slack)

	client, server := p.connect()
	p.proxy.Throttle(stack.Both, 1)
	send(t, server, "slowly")
	receive(t, client, "s")
	receiveNothing(t, client)
	require.NoError(t, p.proxy.Heal())
	receive(t, client, "lowly")
}

func TestABlackHoleKeepsConnectionsOpenAndLosesNothing(t *testing.T) {
	p := newPeers(t)
	client, server := p.connect()
	p.proxy.Stall(stack.Upload)
	send(t, client, "up")
	send(t, server, "down")
	receive(t, client, "down")
	receiveNothing(t, server)
	require.NoError(t, p.proxy.Heal())
	receive(t, server, "up")

	p.proxy.Stall(stack.Download)
	send(t, client, "up")
	receive(t, server, "up")
	send(t, server, "down")
	receiveNothing(t, client)

	p.proxy.Stall(stack.Both)
	second, peer := p.connect()
	send(t, second, "new")
	require.NoError(t, second.CloseWrite())
	receiveNothing(t, peer)
	require.NoError(t, p.proxy.Heal())
	receive(t, client, "down")
	receive(t, peer, "new")
	_, err := peer.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

func TestAResetEndsWhatIsOpenAndNothingElse(t *testing.T) {
	p := newPeers(t)
	for _, prepare := range []func(){func() {}, func() { p.proxy.Stall(stack.Both) }} {
		client, server := p.connect()
		prepare()
		p.proxy.Reset()
		for _, end := range []net.Conn{client, server} {
			_, err := end.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
		}
	}
	require.NoError(t, p.proxy.Heal())
	client, server := p.connect()
	send(t, client, "new")
	receive(t, server, "new")
}

func TestACutRefusesConnectionsUntilItIsHealed(t *testing.T) {
	p := newPeers(t)
	client, server := p.connect()
	p.proxy.Cut()
	for _, end := range []net.Conn{client, server} {
		_, err := end.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	_, err := net.Dial("tcp", p.proxy.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, p.proxy.Heal())
	client, server = p.connect()
	send(t, client, "again")
	receive(t, server, "again")
}

func TestAClientOfAServerThatIsGoneIsReset(t *testing.T) {
	p := newPeers(t)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	old, _ := p.connect()
	p.proxy.Retarget(gone.Addr().String())
	_, err = old.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	client, err := net.Dial("tcp", p.proxy.Addr())
	if err == nil { // the reset can be there before the dial is done
		_, err = client.Read(make([]byte, 1))
		require.NoError(t, client.Close())
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)

	p.proxy.Retarget(p.listen())
	again, server := p.connect()
	send(t, server, "another")
	receive(t, again, "another")
}

func TestFaultsUnderTrafficKeepEveryByteInItsPlace(t *testing.T) {
	p := newPeers(t)
	const size = 8 << 20
	var traffic sync.WaitGroup
	for range 4 {
		client, server := p.connect()
		traffic.Go(func() {
			_, err := client.Write(pattern(size))
			require.NoError(t, errors.Join(err, client.CloseWrite()))
		})
		traffic.Go(func() {
			got, err := io.ReadAll(server)
			require.NoError(t, err)
			require.True(t, bytes.Equal(pattern(size), got))
		})
	}
	finished := make(chan struct{})
	go func() {
		traffic.Wait()
		close(finished)
	}()
	faults := []func(){
		func() { p.proxy.Delay(time.Millisecond, time.Millisecond) },
		func() { p.proxy.Throttle(stack.Both, 64<<20) },
		func() { p.proxy.Stall(stack.Upload) },
		func() { p.proxy.Stall(stack.Download) },
	}
	for {
		select {
		case <-finished:
			return
		case <-time.After(time.Millisecond):
			faults[rand.IntN(len(faults))]()
		}
		select {
		case <-finished:
			return
		case <-time.After(time.Millisecond):
			require.NoError(t, p.proxy.Heal())
		}
	}
}

func pattern(size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i * 31 >> 8)
	}
	return data
}
