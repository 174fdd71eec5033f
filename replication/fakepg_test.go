package replication

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// tester is what *testing.T and *rapid.T have in common.
type tester interface {
	rapid.TB
	Cleanup(func())
	Context() context.Context
}

// fakePostgres is a server with one replication connection, whose stream the test writes message by message: a real
// server cannot be made to say the wrong thing at the wrong time. Its connections are pipes in memory, which work in
// the bubble of a synctest, where time passes at once, and exactly as far as it has to.
//
// Set the fields before the first connection.
type fakePostgres struct {
	t tester

	confirmed     pglogrepl.LSN           // of the slot
	senderTimeout time.Duration           // wal_sender_timeout
	refusal       *pgproto3.ErrorResponse // of START_REPLICATION
	silentAt      string                  // in the first request that is not answered; none after it is
	tcp           bool                    // connections are of loopback, for tests outside a bubble

	requests chan string // SQL, and the names below, as they come
	startup  chan map[string]string
	reports  chan report
	gone     chan struct{} // closed when the client has closed the replication connection

	out chan []byte // what is yet to be written to the replication connection; nil closes it
}

// Requests that are no SQL, and the parts that tell those that are.
const (
	requestStartup   = "startup of replication"
	requestCopyDone  = "end of the stream"
	requestTimeout   = "wal_sender_timeout"
	requestStart     = "START_REPLICATION"
	requestConfirmed = "confirmed_flush_lsn"
)

// report is a standby status update.
type report struct {
	lsn   pglogrepl.LSN
	reply bool
	at    time.Time
}

const slotPosition = pglogrepl.LSN(0x5000)

func newFakePostgres(t tester) *fakePostgres {
	return &fakePostgres{
		t:             t,
		confirmed:     slotPosition,
		senderTimeout: time.Minute,
		requests:      make(chan string, 64),
		startup:       make(chan map[string]string, 1),
		reports:       make(chan report, 1<<12),
		gone:          make(chan struct{}),
		out:           make(chan []byte, 1<<12),
	}
}

// source leads to the server.
func (f *fakePostgres) source() Source {
	cfg, err := pgx.ParseConfig("host=127.0.0.1 port=5432 user=pombo dbname=shop sslmode=disable")
	require.NoError(f.t, err)
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	cfg.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		if f.tcp {
			client, server = loopback(f.t)
		}
		go f.serve(server)
		return client, nil
	}
	return Source{Postgres: cfg, Slot: "orders", Publication: "pombo", Schema: "public", Table: "outbox_event"}
}

// open opens a stream as the connector does.
func (f *fakePostgres) open(ctx context.Context, src Source) (*Stream, error) {
	lasting := context.WithoutCancel(ctx)
	control, err := pgx.ConnectConfig(lasting, src.Postgres)
	require.NoError(f.t, err)
	defer func() { _ = control.Close(lasting) }()
	return Open(ctx, src, control)
}

func (f *fakePostgres) mustOpen() *Stream {
	s, err := f.open(f.t.Context(), f.source())
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = s.Close() })
	return s
}

// loopback returns the two ends of a TCP connection.
func loopback(t tester) (client, server net.Conn) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	client, err = net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	server, err = listener.Accept()
	require.NoError(t, err)
	return client, server
}

// serve answers the requests of one connection until the client closes it.
func (f *fakePostgres) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	b := pgproto3.NewBackend(conn, conn)
	first, err := b.ReceiveStartupMessage()
	startup, ok := first.(*pgproto3.StartupMessage)
	if err != nil || !ok { // a connection of its own asks to cancel a query
		return
	}
	request := "startup"
	if startup.Parameters["replication"] != "" {
		defer close(f.gone)
		f.startup <- startup.Parameters
		request = requestStartup
	}
	answer := []pgproto3.BackendMessage{
		&pgproto3.AuthenticationOk{},
		&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"},
		&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"},
		&pgproto3.BackendKeyData{ProcessID: 4711, SecretKey: []byte("1234")},
		&pgproto3.ReadyForQuery{TxStatus: 'I'},
	}
	for silent := false; ; {
		f.requests <- request
		if silent = silent || f.silences(request); !silent {
			for _, msg := range answer {
				b.Send(msg)
			}
			if b.Flush() != nil {
				return
			}
		}
		if strings.HasPrefix(request, requestStart) && f.refusal == nil && !silent {
			f.stream(b, conn)
			return
		}
		msg, err := b.Receive()
		if err != nil {
			return
		}
		switch msg := msg.(type) {
		case *pgproto3.Query:
			request, answer = msg.String, f.answer(msg.String)
		case *pgproto3.Terminate:
			return
		default:
			f.t.Errorf("unexpected message %T", msg)
			return
		}
	}
}

func (f *fakePostgres) silences(request string) bool {
	return f.silentAt != "" && strings.Contains(request, f.silentAt)
}

// answer returns the answer to a query.
func (f *fakePostgres) answer(sql string) []pgproto3.BackendMessage {
	switch {
	case strings.Contains(sql, requestTimeout):
		return row(strconv.FormatInt(f.senderTimeout.Milliseconds(), 10))
	case strings.Contains(sql, requestConfirmed):
		answer := row(f.confirmed.String(), "16384")
		answer[0].(*pgproto3.RowDescription).Fields[1].DataTypeOID = pgtype.OIDOID
		return answer
	case strings.HasPrefix(sql, "CREATE_REPLICATION_SLOT"):
		return row("", f.confirmed.String(), "", "pgoutput")
	case !strings.HasPrefix(sql, requestStart):
		f.t.Errorf("unexpected query %s", sql)
		return nil
	case f.refusal != nil:
		return []pgproto3.BackendMessage{f.refusal, &pgproto3.ReadyForQuery{TxStatus: 'I'}}
	default:
		return []pgproto3.BackendMessage{&pgproto3.CopyBothResponse{}}
	}
}

// row is a result of one row of text.
func row(values ...string) []pgproto3.BackendMessage {
	description, data := new(pgproto3.RowDescription), new(pgproto3.DataRow)
	for _, v := range values {
		description.Fields = append(description.Fields, pgproto3.FieldDescription{Name: []byte("?"), DataTypeOID: pgtype.TextOID})
		data.Values = append(data.Values, []byte(v))
	}
	return []pgproto3.BackendMessage{
		description, data,
		&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")},
		&pgproto3.ReadyForQuery{TxStatus: 'I'},
	}
}

// stream is the walsender: it writes what the test sends and collects reports.
func (f *fakePostgres) stream(b *pgproto3.Backend, conn net.Conn) {
	done := make(chan struct{})
	defer close(done)
	go f.write(conn, done)
	last := f.confirmed
	for {
		msg, err := b.Receive()
		if err != nil {
			return
		}
		switch msg := msg.(type) {
		case *pgproto3.CopyData:
			last = f.status(msg.Data, last)
		case *pgproto3.CopyDone:
			f.requests <- requestCopyDone
			if !f.silences(requestCopyDone) {
				f.sendRaw(copyDone...)
			}
		case *pgproto3.Terminate:
			return
		default:
			f.t.Errorf("unexpected message %T in a replication stream", msg)
		}
	}
}

// write writes what is sent, as fast as it is read.
func (f *fakePostgres) write(conn net.Conn, done <-chan struct{}) {
	for {
		select {
		case frames := <-f.out:
			if frames == nil {
				_ = conn.Close()
				return
			}
			if _, err := conn.Write(frames); err != nil {
				return
			}
		case <-done:
			return
		}
	}
}

// status takes a report. That it is well formed and takes nothing back (I2) holds for every report of every test.
func (f *fakePostgres) status(data []byte, last pglogrepl.LSN) pglogrepl.LSN {
	if len(data) != 1+8+8+8+8+1 || data[0] != pglogrepl.StandbyStatusUpdateByteID {
		f.t.Errorf("malformed status %x", data)
		return last
	}
	write, flush, apply := readLSN(data[1:]), readLSN(data[9:]), readLSN(data[17:])
	if write != flush || flush != apply {
		f.t.Errorf("reported write %s, flush %s and apply %s", write, flush, apply)
	}
	if flush < last {
		f.t.Errorf("reported %s after %s", flush, last)
	}
	f.reports <- report{lsn: flush, reply: data[33] == 1, at: time.Now()}
	return flush
}

func readLSN(b []byte) pglogrepl.LSN { return pglogrepl.LSN(binary.BigEndian.Uint64(b)) }

// copyDone is how a server ends a stream.
var copyDone = []pgproto3.BackendMessage{
	&pgproto3.CopyDone{},
	&pgproto3.CommandComplete{CommandTag: []byte("COPY 0")},
	&pgproto3.ReadyForQuery{TxStatus: 'I'},
}

// sendRaw writes messages to the replication connection, in order, as soon as they are read. They can be read at once.
func (f *fakePostgres) sendRaw(messages ...pgproto3.BackendMessage) {
	var frames []byte
	for _, msg := range messages {
		var err error
		frames, err = msg.Encode(frames)
		require.NoError(f.t, err)
	}
	f.out <- frames
}

// send writes messages of the streaming replication protocol one by one, as Postgres does.
func (f *fakePostgres) send(messages ...[]byte) {
	for _, msg := range messages {
		f.out <- frame(msg)
	}
}

// sendAtOnce writes such messages so that they can be read at once.
func (f *fakePostgres) sendAtOnce(messages ...[]byte) {
	var frames []byte
	for _, msg := range messages {
		frames = append(frames, frame(msg)...)
	}
	f.out <- frames
}

// frame makes a message of the connection out of one of the streaming replication protocol.
func frame(msg []byte) []byte {
	data := binary.BigEndian.AppendUint32([]byte("d"), uint32(4+len(msg)))
	return append(data, msg...)
}

// hangUp closes the connection after all that was sent.
func (f *fakePostgres) hangUp() { f.out <- nil }

// awaitRequest awaits a request that has the given text in it, and returns it.
func (f *fakePostgres) awaitRequest(part string) string {
	f.t.Helper()
	for {
		if request := await(f.t, f.requests, part); strings.Contains(request, part) {
			return request
		}
	}
}

// nextReport awaits a report.
func (f *fakePostgres) nextReport() report {
	f.t.Helper()
	return await(f.t, f.reports, "a report")
}

// newReports are the reports that have come since the last look.
func (f *fakePostgres) newReports() []report {
	var all []report
	for {
		select {
		case r := <-f.reports:
			all = append(all, r)
		default:
			return all
		}
	}
}

// pass lets time pass in a bubble.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // there it is the clock that waits for the program
}

// awaitLimit is how long a test waits for what should happen, in its own time.
const awaitLimit = 10 * time.Minute

func await[T any](t tester, c <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(awaitLimit)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// misleading is where a position must never come from.
const misleading = pglogrepl.LSN(0xdead_0000_0000)

// xlog wraps a message of pgoutput. Its two positions are of no use to anybody.
func xlog(msg []byte) []byte {
	data := binary.BigEndian.AppendUint64([]byte{pglogrepl.XLogDataByteID}, uint64(misleading))
	data = binary.BigEndian.AppendUint64(data, uint64(misleading))
	data = binary.BigEndian.AppendUint64(data, 0)
	return append(data, msg...)
}

// sentLate dates messages of transactions as sent so long after the commit.
func sentLate(late time.Duration, messages [][]byte) [][]byte {
	for _, msg := range messages {
		binary.BigEndian.PutUint64(msg[1+8+8:], uint64(late.Microseconds()))
	}
	return messages
}

func keepalive(walEnd pglogrepl.LSN, reply bool) []byte {
	data := binary.BigEndian.AppendUint64([]byte{pglogrepl.PrimaryKeepaliveMessageByteID}, uint64(walEnd))
	data = binary.BigEndian.AppendUint64(data, 0)
	if reply {
		return append(data, 1)
	}
	return append(data, 0)
}

// commitRecord is how far the commit LSN of a transaction is before its end LSN.
const commitRecord = 0x30

func begin(end pglogrepl.LSN) []byte {
	msg := binary.BigEndian.AppendUint64([]byte("B"), uint64(end-commitRecord))
	return xlog(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(msg, 0), 731))
}

func commit(end pglogrepl.LSN) []byte {
	msg := binary.BigEndian.AppendUint64([]byte("C\x00"), uint64(end-commitRecord))
	msg = binary.BigEndian.AppendUint64(msg, uint64(end))
	return xlog(binary.BigEndian.AppendUint64(msg, 0))
}

const tableOID = 16_391

// relation describes the outbox table with the given columns.
func relation(columns ...string) []byte {
	msg := binary.BigEndian.AppendUint32([]byte("R"), tableOID)
	msg = append(msg, "public\x00outbox_event\x00d"...)
	msg = binary.BigEndian.AppendUint16(msg, uint16(len(columns)))
	for _, name := range columns {
		msg = append(msg, "\x00"+name+"\x00"...)
		msg = binary.BigEndian.AppendUint32(msg, pgtype.TextOID)
		msg = append(msg, "\xff\xff\xff\xff"...)
	}
	return xlog(msg)
}

func outbox() []byte {
	return relation("id", "aggregate_type", "aggregate_id", "event_type", "payload")
}

// event is a row with a payload of size bytes.
func event(id string, size int) []byte {
	msg := append(binary.BigEndian.AppendUint32([]byte("I"), tableOID), 'N', 0, 5)
	for _, v := range []string{id, "Order", "1", "created", strings.Repeat(".", size)} {
		msg = append(msg, 't')
		msg = binary.BigEndian.AppendUint32(msg, uint32(len(v)))
		msg = append(msg, v...)
	}
	return xlog(msg)
}

// transaction is a whole one, of small events.
func transaction(end pglogrepl.LSN, ids ...string) [][]byte {
	all := [][]byte{begin(end), outbox()}
	for _, id := range ids {
		all = append(all, event(id, 0))
	}
	return append(all, commit(end))
}

// errTest is a cause that a test gives.
var errTest = errors.New("the test says so")
