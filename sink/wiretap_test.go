package sink

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// wiretap sits between the brokers of a fake cluster and their clients. It notes every produce request
// when it arrives, however late the broker looks at it, and can hold back or lose what passes.
type wiretap struct {
	t tester

	mu       sync.Mutex
	moved    *sync.Cond // something below has changed
	requests []*produceRequest
	mostOpen map[int]int // by broker
	conns    map[*tappedConn]bool
	brokers  []*tappedListener
	hold     func(node int, key int16) bool      // requests that the broker does not get yet
	mute     func(*produceRequest) bool          // answers that the client does not get yet
	lose     func(*produceRequest) bool          // answers in place of which the connection ends
	deaf     bool                                // nothing is read from clients any more
	throttle func(*produceRequest) time.Duration // for how long answers tell the client to spare the broker
}

// produceRequest is a request to produce as it was on the wire.
type produceRequest struct {
	node     int
	batches  []producedBatch
	answered bool // the client has the answer

	conn *tappedConn
	id   int32
}

type producedBatch struct {
	topic     string
	partition int32
	raw       []byte // the record batch in Kafka's format
	kmsg.RecordBatch
	code int16 // of the answer
}

func newWiretap(t tester) *wiretap {
	w := &wiretap{t: t, mostOpen: make(map[int]int), conns: make(map[*tappedConn]bool)}
	w.moved = sync.NewCond(&w.mu)
	w.set(nil, nil, nil)
	w.throttle = func(*produceRequest) time.Duration { return 0 }
	return w
}

// set says what to hold back and lose from now on; nil is nothing.
func (w *wiretap) set(hold func(node int, key int16) bool, mute, lose func(*produceRequest) bool) {
	w.change(func() {
		w.hold, w.mute, w.lose = hold, mute, lose
		if hold == nil {
			w.hold = func(int, int16) bool { return false }
		}
		if mute == nil {
			w.mute = func(*produceRequest) bool { return false }
		}
		if lose == nil {
			w.lose = func(*produceRequest) bool { return false }
		}
	})
}

func (w *wiretap) change(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
	w.moved.Broadcast()
}

// all returns the produce requests so far, in the order in which they arrived.
func (w *wiretap) all() []produceRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]produceRequest, len(w.requests))
	for i, r := range w.requests {
		all[i] = *r
		all[i].batches = append([]producedBatch(nil), r.batches...)
	}
	return all
}

// batches returns the record batches that arrived for a topic so far, retries included.
func (w *wiretap) batches(topic string) []producedBatch {
	var found []producedBatch
	for _, r := range w.all() {
		for _, b := range r.batches {
			if b.topic == topic {
				found = append(found, b)
			}
		}
	}
	return found
}

// cut ends the connections to a broker that carry produce requests.
func (w *wiretap) cut(node int) {
	w.end(func(c *tappedConn) bool { return c.node == node && c.produces })
}

// connected reports whether there are connections to all of some brokers.
func (w *wiretap) connected(nodes ...int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	there := make(map[int]bool)
	for c := range w.conns {
		there[c.node] = true
	}
	return !slices.ContainsFunc(nodes, func(node int) bool { return !there[node] })
}

func (w *wiretap) end(which func(*tappedConn) bool) {
	w.mu.Lock()
	var ending []*tappedConn
	for c := range w.conns {
		if which(c) {
			ending = append(ending, c)
		}
	}
	w.mu.Unlock()
	for _, c := range ending {
		_ = c.Close()
	}
}

// stop has a broker refuse connections until start.
func (w *wiretap) stop(node int) {
	w.change(func() { _ = w.brokers[node].socket.Close() })
	w.end(func(c *tappedConn) bool { return c.node == node })
}

func (w *wiretap) start(node int) {
	w.change(func() {
		l := w.brokers[node]
		socket, err := net.Listen("tcp", l.addr.String())
		require.NoError(w.t, err)
		l.socket = socket
		go l.accept(socket)
	})
}

// listen implements kfake.ListenFn.
func (w *wiretap) listen(network, address string) (net.Listener, error) {
	socket, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	l := &tappedListener{tap: w, addr: socket.Addr(), socket: socket, conns: make(chan net.Conn), closed: make(chan struct{})}
	w.change(func() {
		l.node = len(w.brokers)
		w.brokers = append(w.brokers, l)
	})
	go l.accept(socket)
	return l, nil
}

type tappedListener struct {
	tap    *wiretap
	node   int
	addr   net.Addr
	socket net.Listener // guarded by tap.mu
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *tappedListener) accept(socket net.Listener) {
	for {
		conn, err := socket.Accept()
		if err != nil {
			return
		}
		select {
		case l.conns <- conn:
		case <-l.closed:
			_ = conn.Close()
			return
		}
	}
}

func (l *tappedListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		c := &tappedConn{Conn: conn, tap: l.tap, node: l.node, open: make(map[int32]*produceRequest)}
		l.tap.change(func() { l.tap.conns[c] = true })
		go c.receive()
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *tappedListener) Addr() net.Addr { return l.addr }

func (l *tappedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	l.tap.mu.Lock()
	defer l.tap.mu.Unlock()
	return l.socket.Close()
}

// tappedConn is the broker's end of a connection.
type tappedConn struct {
	net.Conn
	tap  *wiretap
	node int

	// guarded by tap.mu
	frames   []frame // that the broker has not read
	produces bool
	open     map[int32]*produceRequest
	ended    bool
}

// frame is a request on its way to the broker.
type frame struct {
	key  int16
	rest []byte
	read bool // in part
}

// receive reads requests as fast as they come.
func (c *tappedConn) receive() {
	defer c.end()
	for {
		bytes := make([]byte, 4)
		if _, err := io.ReadFull(c.Conn, bytes); err != nil {
			return
		}
		c.listen()
		bytes = append(bytes, make([]byte, binary.BigEndian.Uint32(bytes))...)
		if _, err := io.ReadFull(c.Conn, bytes[4:]); err != nil {
			return
		}
		c.note(bytes)
	}
}

// listen waits while the broker is deaf.
func (c *tappedConn) listen() {
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	for !c.ended && c.tap.deaf {
		c.tap.moved.Wait()
	}
}

// note records a request. Its header is Int32 length, Int16 key, Int16 version, Int32 correlation id, String client id.
func (c *tappedConn) note(bytes []byte) {
	f := frame{key: int16(binary.BigEndian.Uint16(bytes[4:])), rest: bytes}
	c.tap.change(func() {
		c.frames = append(c.frames, f)
		if f.key != int16(kmsg.Produce) {
			return
		}
		request := kmsg.NewPtrProduceRequest()
		request.SetVersion(int16(binary.BigEndian.Uint16(bytes[6:])))
		clientID := int(binary.BigEndian.Uint16(bytes[12:]))
		if !assert.NoError(c.tap.t, request.ReadFrom(bytes[14+clientID:])) {
			return
		}
		r := &produceRequest{node: c.node, conn: c, id: int32(binary.BigEndian.Uint32(bytes[8:]))}
		for _, topic := range request.Topics {
			for _, p := range topic.Partitions {
				b := producedBatch{topic: topic.Topic, partition: p.Partition, raw: p.Records}
				assert.NoError(c.tap.t, b.ReadFrom(p.Records))
				r.batches = append(r.batches, b)
			}
		}
		c.produces = true
		c.open[r.id] = r
		c.tap.requests = append(c.tap.requests, r)
		open := 0
		for other := range c.tap.conns {
			if other.node == c.node {
				open += len(other.open)
			}
		}
		c.tap.mostOpen[c.node] = max(c.tap.mostOpen[c.node], open)
	})
}

func (c *tappedConn) Read(dst []byte) (int, error) {
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	for !c.ended && (len(c.frames) == 0 || !c.frames[0].read && c.tap.hold(c.node, c.frames[0].key)) {
		c.tap.moved.Wait()
	}
	if c.ended {
		return 0, io.EOF
	}
	f := &c.frames[0]
	n := copy(dst, f.rest)
	f.rest, f.read = f.rest[n:], true
	if len(f.rest) == 0 {
		c.frames = c.frames[1:]
	}
	return n, nil
}

var errAnswerLost = errors.New("the wiretap lost the answer")

// Write passes one answer on: Int32 length, Int32 correlation id, body.
func (c *tappedConn) Write(answer []byte) (int, error) {
	if !c.pass(answer) {
		_ = c.Close()
		return 0, errAnswerLost
	}
	return c.Conn.Write(answer)
}

// pass waits until an answer may pass and notes it, before the client can have it.
func (c *tappedConn) pass(answer []byte) bool {
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	r := c.open[int32(binary.BigEndian.Uint32(answer[4:]))]
	if r == nil {
		return true
	}
	if c.tap.lose(r) {
		return false
	}
	for !c.ended && c.tap.mute(r) {
		c.tap.moved.Wait()
	}
	if spare := c.tap.throttle(r); spare > 0 {
		binary.BigEndian.PutUint32(answer[len(answer)-4:], uint32(spare.Milliseconds())) // the last field of version 7
	}
	if !c.ended {
		c.noteAnswer(r, answer[8:])
	}
	return !c.ended
}

func (c *tappedConn) noteAnswer(r *produceRequest, body []byte) {
	delete(c.open, r.id)
	response := kmsg.NewPtrProduceResponse()
	response.SetVersion(produceVersion)
	if !assert.NoError(c.tap.t, response.ReadFrom(body)) {
		return
	}
	r.answered = true
	for _, topic := range response.Topics {
		for _, p := range topic.Partitions {
			for i := range r.batches {
				if r.batches[i].topic == topic.Topic && r.batches[i].partition == p.Partition {
					r.batches[i].code = p.ErrorCode
				}
			}
		}
	}
	c.tap.moved.Broadcast()
}

func (c *tappedConn) Close() error {
	c.end()
	return c.Conn.Close()
}

func (c *tappedConn) end() {
	c.tap.change(func() {
		c.ended = true
		delete(c.tap.conns, c)
	})
}

// newCluster starts a fake cluster of n brokers behind a wiretap.
func newCluster(t tester, n int, opts ...kfake.Opt) (*kfake.Cluster, *wiretap) {
	t.Helper()
	tap := newWiretap(t)
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(n), kfake.ListenFn(tap.listen)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	return cluster, tap
}
