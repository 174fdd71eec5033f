package stack

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Direction is a way through a Proxy.
type Direction uint8

const (
	Upload   Direction = 1 << iota // from the client to the server
	Download                       // from the server to the client
	Both     = Upload | Download
)

const (
	// socketBuffer bounds what the kernel takes from a sender for a receiver that takes nothing, so that a sender soon
	// notices a slow or silent proxy.
	socketBuffer = 256 << 10
	// dialTimeout is how long a server may take to accept a connection.
	dialTimeout = 10 * time.Second
)

// Proxy passes TCP connections on to a server, over a network that tests make bad while traffic flows. What a fault
// holds up is never dropped from a connection that lives: it arrives, in order, when the fault is over, as with TCP.
//
// Shopify/toxiproxy 2.12 cannot stand in for it: its black hole throws bytes away (pull request 168 there), its reset
// makes no RST of a connection that was open before, and to end a fault under traffic may block for ever (issue 558).
//
// It is safe for concurrent use.
type Proxy struct {
	addr  string
	links map[Direction]*link // of Upload and Download
	work  sync.WaitGroup

	mu       sync.Mutex
	upstream string
	listener net.Listener // nil while cut off
	tunnels  map[*tunnel]struct{}
	closed   bool
}

// NewProxy starts a proxy on a free loopback port that passes connections on to the address upstream.
func NewProxy(upstream string) (*Proxy, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		addr:     loopback(port),
		links:    map[Direction]*link{Upload: newLink(), Download: newLink()},
		upstream: upstream,
		tunnels:  make(map[*tunnel]struct{}),
	}
	return p, p.Heal()
}

// Addr is the host:port that clients connect to.
func (p *Proxy) Addr() string { return p.addr }

// Upstream is the address that connections are passed on to.
func (p *Proxy) Upstream() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.upstream
}

// Delay holds everything up for delay, give or take jitter, without reordering it. A round trip is delayed in both
// directions.
func (p *Proxy) Delay(delay, jitter time.Duration) {
	p.change(Both, func(f *faults) { f.delay, f.jitter = delay, jitter })
}

// Throttle lets all connections together pass so many bytes a second each way that is named.
func (p *Proxy) Throttle(way Direction, bytesPerSecond int) {
	p.change(way, func(f *faults) { f.rate = bytesPerSecond })
}

// Stall is a black hole: connections are accepted and stay open, but nothing passes, not even that a side has gone.
func (p *Proxy) Stall(way Direction) {
	p.change(way, func(f *faults) { f.stalled = true })
}

// Reset ends all connections there are with an RST to either side. New ones are served.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resetAll()
}

// Cut resets all connections and refuses new ones, as a host on which no server runs.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	p.resetAll()
}

// Heal ends all faults. An error is that the port of a proxy that was cut off has been taken.
func (p *Proxy) Heal() error {
	p.change(Both, func(f *faults) { *f = faults{} })
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil || p.closed {
		return nil
	}
	listener, err := net.Listen("tcp", p.addr)
	if err != nil {
		return fmt.Errorf("listen for %s: %w", p.upstream, err)
	}
	p.listener = listener
	p.work.Go(func() { p.serve(listener) })
	return nil
}

// Retarget passes new connections on to another server, and resets those to the old one.
func (p *Proxy) Retarget(upstream string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upstream = upstream
	p.resetAll()
}

// Close ends the proxy and all its connections.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Cut()
	p.work.Wait()
	return nil
}

func (p *Proxy) change(way Direction, edit func(*faults)) {
	for each, l := range p.links {
		if way&each != 0 {
			l.change(edit)
		}
	}
}

// resetAll is called with the lock.
func (p *Proxy) resetAll() {
	for t := range p.tunnels {
		t.reset()
	}
}

func (p *Proxy) serve(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			p.work.Go(func() { p.connect(client.(*net.TCPConn)) })
		}
	}
}

// connect serves a connection until it has ended. A client whose server cannot be reached is reset.
func (p *Proxy) connect(client *net.TCPConn) {
	t := &tunnel{ends: []*net.TCPConn{client}, ended: make(chan struct{})}
	upstream, ok := p.enter(t)
	if !ok {
		return
	}
	defer p.leave(t)
	dialed, err := net.DialTimeout("tcp", upstream, dialTimeout)
	if err != nil || !t.join(dialed.(*net.TCPConn)) {
		return
	}
	server := dialed.(*net.TCPConn)
	var both sync.WaitGroup
	both.Go(func() { t.pump(server, client, p.links[Upload]) })
	both.Go(func() { t.pump(client, server, p.links[Download]) })
	both.Wait()
	t.end((*net.TCPConn).Close) // if it is still there, it came to an orderly end, and what is on its way arrives
}

// enter lists a connection, so that faults reach it. It is reset, and not listed, once the proxy is cut off.
func (p *Proxy) enter(t *tunnel) (upstream string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		t.reset()
		return "", false
	}
	p.tunnels[t] = struct{}{}
	return p.upstream, true
}

func (p *Proxy) leave(t *tunnel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.tunnels, t)
	t.reset()
}
