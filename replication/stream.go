package replication

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	// statusInterval is how often Postgres hears what it may forget.
	statusInterval = time.Second

	writeTimeout = 10 * time.Second
	closeTimeout = 2 * time.Second
)

// ErrSlotInUse says that another session reads the slot: an instance that is active while this one
// is its standby.
var ErrSlotInUse = errors.New("slot is in use")

// errTick says that the wake time came before a message.
var errTick = errors.New("nothing to read yet")

// errEnded says that Postgres ended the stream in an orderly way, as it does when it shuts down.
var errEnded = errors.New("Postgres ended the replication stream") //nolint:staticcheck // a proper name

// Stream is a replication connection that has a slot. One goroutine owns it: it alone reads and writes.
type Stream struct {
	conn      *pgconn.PgConn
	reader    *burstReader
	interval  time.Duration // between two reports
	silence   time.Duration // how long Postgres may say nothing although it is asked
	confirmed pglogrepl.LSN
	table     uint32 // OID of the outbox table; 0 is not known
}

// Open starts to stream from the slot's own position. The error wraps ErrSlotInUse when another
// session has the slot. control is a connection to the same server, used during the call.
func Open(ctx context.Context, src Source, control *pgx.Conn) (*Stream, error) {
	s, err := dial(ctx, src)
	if err != nil {
		return nil, err
	}
	if err := s.start(ctx, src, src.Slot); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	// Only now, with the slot ours, does its position stand still. It must never be reported lower.
	const query = `
SELECT confirmed_flush_lsn::text,
  coalesce((SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $3 AND c.relname = $4), 0)
FROM pg_replication_slots WHERE slot_name = $1 AND active_pid = $2`
	var confirmed string
	err = control.QueryRow(ctx, query, src.Slot, s.conn.PID(), src.Schema, src.Table).Scan(&confirmed, &s.table)
	if err == nil {
		s.confirmed, err = pglogrepl.ParseLSN(confirmed)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read position of slot %s: %w", src.Slot, err), s.Close())
	}
	return s, nil
}

// OpenTemporary streams what is committed from now on through a slot that Postgres drops with the connection.
func OpenTemporary(ctx context.Context, src Source) (*Stream, error) {
	s, err := dial(ctx, src)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("pombo_tail_%d", s.conn.PID())
	slot, err := pglogrepl.CreateReplicationSlot(ctx, s.conn, name, "pgoutput", pglogrepl.CreateReplicationSlotOptions{Temporary: true})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create temporary slot: %w", err), s.Close())
	}
	if s.confirmed, err = pglogrepl.ParseLSN(slot.ConsistentPoint); err != nil {
		return nil, errors.Join(fmt.Errorf("read consistent point: %w", err), s.Close())
	}
	if err := s.start(ctx, src, name); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// sessionSettings make the text form of values independent of what the role or database has set.
var sessionSettings = map[string]string{
	"replication":          "database",
	"client_encoding":      "UTF8",
	"DateStyle":            "ISO",
	"IntervalStyle":        "postgres",
	"TimeZone":             "UTC",
	"bytea_output":         "hex",
	"extra_float_digits":   "1",
	"statement_timeout":    "0",
	"idle_session_timeout": "0",
}

func dial(ctx context.Context, src Source) (*Stream, error) {
	cfg := src.Postgres.Config.Copy()
	maps.Copy(cfg.RuntimeParams, sessionSettings)
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if conn, err = unpolled(conn); err != nil {
			return nil, err
		}
		return &burstReader{Conn: conn}, nil
	}
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open replication connection: %w", err)
	}
	s := &Stream{conn: conn, reader: readerOf(conn.Conn())}
	if err := s.adoptTimeout(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// readerOf returns the reader that is below a connection, or below its TLS.
func readerOf(conn net.Conn) *burstReader {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	return conn.(*burstReader)
}

// adoptTimeout reports several times within wal_sender_timeout, however short that is, and waits for as long: a
// walsender that skips a large transaction of other tables looks at what it is asked only when half of it is over.
func (s *Stream) adoptTimeout(ctx context.Context) error {
	const query = `SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'` // in milliseconds
	results, err := s.conn.Exec(ctx, query).ReadAll()
	if err != nil {
		return fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	timeout, err := time.ParseDuration(string(results[0].Rows[0][0]) + "ms")
	if err != nil {
		return fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	s.interval, s.silence = statusInterval, max(silenceLimit, timeout)
	if timeout > 0 {
		s.interval = min(s.interval, timeout/3)
	}
	return nil
}

// start begins at 0/0, which means: where the slot is. The slot is the only checkpoint.
func (s *Stream) start(ctx context.Context, src Source, slot string) error {
	err := pglogrepl.StartReplication(ctx, s.conn, pgx.Identifier{slot}.Sanitize(), 0, pglogrepl.StartReplicationOptions{PluginArgs: []string{
		"proto_version '1'",
		"publication_names " + quoteLiteral(pgx.Identifier{src.Publication}.Sanitize()),
	}})
	if err != nil {
		return fmt.Errorf("start replication from slot %s: %w", slot, startError(err, src))
	}
	s.reader.attach()
	return nil
}

// quoteLiteral quotes a string for the grammar of replication commands, which knows no escapes but
// the doubled quote.
func quoteLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// startError gives the errors of START_REPLICATION their meaning.
func startError(err error, src Source) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	switch pgErr.Code {
	case "55006": // object_in_use
		return fmt.Errorf("%w: %w", ErrSlotInUse, err)
	case "42704": // undefined_object
		return &ActionError{
			Problem: fmt.Sprintf("slot %q does not exist", src.Slot),
			Cure:    "run `pombo setup`, which says what it takes; events committed since the slot was dropped are not in the stream",
		}
	case "55000": // object_not_in_prerequisite_state: invalidated slots, among others
		if strings.Contains(pgErr.Message, "can no longer") || strings.Contains(pgErr.Message, "cannot read from logical replication slot") {
			return &ActionError{
				Problem: fmt.Sprintf("slot %q is lost: Postgres has removed WAL that it still needed (%s)", src.Slot, pgErr.Message),
				Cure:    "publish from the table what it had not confirmed, and run `pombo teardown`, then `pombo setup`",
			}
		}
	}
	return err
}

// streamError gives the errors that end a stream their meaning. Postgres looks for the publication only when it
// decodes, as of the position that it decodes.
func streamError(err error, src Source) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42704" { // undefined_object
		return &ActionError{
			Problem: fmt.Sprintf("publication %q did not exist at the position that slot %q reads, so Postgres cannot decode from there", src.Publication, src.Slot),
			Cure:    "run `pombo teardown` and `pombo setup`, which makes the publication before the slot; what was committed in between is still in the table",
		}
	}
	return err
}

// next lends the payload of the next CopyData message until the following call. It returns errTick
// when the reader's wake time comes first.
func (s *Stream) next() ([]byte, error) {
	for {
		msg, err := s.conn.Frontend().Receive()
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil, errTick
			}
			return nil, fmt.Errorf("read replication stream: %w", err)
		}
		switch msg := msg.(type) {
		case *pgproto3.CopyData:
			return msg.Data, nil
		case *pgproto3.ErrorResponse:
			return nil, pgconn.ErrorResponseToPgError(msg)
		case *pgproto3.CopyDone, *pgproto3.CommandComplete, *pgproto3.ReadyForQuery:
			return nil, errEnded
		case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus:
			// of no concern here
		default:
			return nil, fmt.Errorf("read replication stream: unexpected message %T", msg)
		}
	}
}

// buffered is the number of bytes of further messages that are here already.
func (s *Stream) buffered() int { return s.reader.buffered() + s.conn.Frontend().ReadBufferLen() }

// report tells Postgres what it may forget. All three positions are set: where flush or apply is zero,
// pglogrepl would put the write position, which confirms too early.
func (s *Stream) report(ctx context.Context, flushed pglogrepl.LSN, reply bool) error {
	if flushed == 0 {
		return errors.New("send status: no position to report")
	}
	if err := s.conn.Conn().SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	err := pglogrepl.SendStandbyStatusUpdate(ctx, s.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: flushed,
		WALFlushPosition: flushed,
		WALApplyPosition: flushed,
		ReplyRequested:   reply,
	})
	if err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	return nil
}

// finish ends the stream so that the last report is known to have been read: Postgres answers
// CopyDone only after it.
func (s *Stream) finish() error {
	s.conn.Frontend().Send(&pgproto3.CopyDone{})
	if err := s.conn.Frontend().Flush(); err != nil {
		return fmt.Errorf("end replication stream: %w", err)
	}
	s.reader.interrupted = func() bool { return false }
	s.reader.wake = time.Now().Add(closeTimeout)
	for {
		switch _, err := s.next(); {
		case errors.Is(err, errEnded):
			return nil
		case errors.Is(err, errTick) && time.Now().Before(s.reader.wake):
			// an interrupt that was meant for the reads before
		case errors.Is(err, errTick):
			return fmt.Errorf("end replication stream: no answer from Postgres within %s", closeTimeout)
		case err != nil:
			return fmt.Errorf("end replication stream: %w", err)
		}
	}
}

// Confirmed is the slot's position when the stream was opened.
func (s *Stream) Confirmed() pglogrepl.LSN { return s.confirmed }

// Walsender is the process id of the backend that serves the stream.
func (s *Stream) Walsender() uint32 { return s.conn.PID() }

// Close drops the connection.
func (s *Stream) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return s.conn.Close(ctx)
}
