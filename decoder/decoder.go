// Package decoder turns the pgoutput messages of a logical replication stream into
// batches of outbox events. It owns the memory of the events and knows nothing of
// connections: bytes go in, batches come out.
//
// The message formats are those of the PostgreSQL documentation, "Logical Replication
// Message Formats", protocol version 1.
package decoder

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
)

// Outcome says what a message did.
type Outcome uint8

const (
	None   Outcome = iota // nothing that the caller has to act on
	Row                   // an event was added to the batch
	Commit                // a transaction ended: CommitEnd is its end LSN
	Full                  // the row needs another batch: Need says how large, decode the message again with it
)

// ErrProtocol is wrapped by every error that means the stream is not what pgoutput version 1
// may send. Nothing after it can be trusted.
var ErrProtocol = errors.New("unexpected pgoutput data")

// MissingColumnsError says that rows of the outbox table no longer carry what an event needs.
type MissingColumnsError struct {
	Table   string
	Columns []string
}

func (e *MissingColumnsError) Error() string {
	return fmt.Sprintf("rows of table %s that are not published yet were written without %s, and no change of the table changes them: name other columns with --column and --header, "+
		"or publish them from the table, and run `pombo teardown`, then `pombo setup`", e.Table, strings.Join(e.Columns, ", "))
}

// Decoder holds what a stream has said so far: its relations and the transaction that is open.
// It serves one stream: a new connection needs a new Decoder.
type Decoder struct {
	layout *Layout
	table  uint32 // OID; 0 is not known
	plans  map[uint32]*plan

	open   bool  // between Begin and Commit
	commit int64 // of the open transaction
	end    pglogrepl.LSN
	need   int
}

// New returns a Decoder for the rows of the layout's table. The stream has the name that a table had when its rows were
// written, so one that was renamed since is known by its OID, in table. Zero is not known.
func New(layout *Layout, table uint32) *Decoder {
	return &Decoder{layout: layout, table: table, plans: make(map[uint32]*plan)}
}

// InTransaction reports whether the last Begin still lacks its Commit.
func (d *Decoder) InTransaction() bool { return d.open }

// CommitTime is when the transaction that began last was committed, by the clock of Postgres.
func (d *Decoder) CommitTime() time.Time { return commitTime(d.commit) }

// CommitEnd is the end LSN of the last committed transaction: confirming it means
// that Postgres does not send that transaction again.
func (d *Decoder) CommitEnd() pglogrepl.LSN { return d.end }

// Need is the size in bytes of the row that found the batch Full.
func (d *Decoder) Need() int { return d.need }

// Decode applies one message and adds its row, if it is one of the outbox table, to b.
// The message is only read during the call. b may be nil; a row then finds it Full.
func (d *Decoder) Decode(msg []byte, b *Batch) (Outcome, error) {
	if len(msg) == 0 {
		return None, fmt.Errorf("%w: an empty message", ErrProtocol)
	}
	switch msg[0] {
	case 'I':
		return d.insert(msg, b)
	case 'B':
		return None, d.begin(msg)
	case 'C':
		return Commit, d.endTransaction(msg)
	case 'R':
		return None, d.relation(msg)
	case 'U', 'D', 'T', // not inserts: a publication that somebody else made may send them
		'Y', // the name of a type: values come as text
		'O', // where a transaction was first committed
		'M', // pg_logical_emit_message
		'A': // PostgreSQL 18 sends a stray stream abort even where nothing is streamed
		return None, nil
	default:
		return None, fmt.Errorf("%w: message type %q", ErrProtocol, msg[0])
	}
}

// begin reads Begin: Int64 final LSN, Int64 commit time, Int32 transaction id.
func (d *Decoder) begin(msg []byte) error {
	if len(msg) != 1+8+8+4 {
		return fmt.Errorf("%w: begin of %d bytes", ErrProtocol, len(msg))
	}
	if d.open {
		return fmt.Errorf("%w: begin inside a transaction", ErrProtocol)
	}
	d.open = true
	d.commit = int64(binary.BigEndian.Uint64(msg[9:]))
	return nil
}

// endTransaction reads Commit: Int8 flags, Int64 commit LSN, Int64 end LSN, Int64 commit time.
// Only the end LSN is a position to confirm: at the commit LSN Postgres sends the
// transaction again.
func (d *Decoder) endTransaction(msg []byte) error {
	if len(msg) != 1+1+8+8+8 {
		return fmt.Errorf("%w: commit of %d bytes", ErrProtocol, len(msg))
	}
	if !d.open {
		return fmt.Errorf("%w: commit outside a transaction", ErrProtocol)
	}
	d.open = false
	d.end = pglogrepl.LSN(binary.BigEndian.Uint64(msg[10:]))
	return nil
}

// insert reads Insert: Int32 relation id, Byte1 'N', TupleData.
func (d *Decoder) insert(msg []byte, b *Batch) (Outcome, error) {
	if len(msg) < 1+4+1+2 || msg[5] != 'N' {
		return None, fmt.Errorf("%w: malformed insert", ErrProtocol)
	}
	if !d.open {
		return None, fmt.Errorf("%w: insert outside a transaction", ErrProtocol)
	}
	p, known := d.plans[binary.BigEndian.Uint32(msg[1:])]
	if !known {
		return None, fmt.Errorf("%w: insert without its relation", ErrProtocol)
	}
	if p == nil {
		return None, nil
	}
	tuple := msg[6:]
	if b == nil || !b.fits(len(tuple)) {
		d.need = len(tuple)
		return Full, nil
	}
	return Row, d.append(p, tuple, b)
}

// append copies a tuple into the batch in one piece and notes where its columns are.
// TupleData is Int16 columns, then for each a Byte1 kind and, for 't', an Int32 length and
// that many bytes.
func (d *Decoder) append(p *plan, tuple []byte, b *Batch) error {
	if n := int(binary.BigEndian.Uint16(tuple)); n != len(p.columns) {
		return fmt.Errorf("%w: %d columns in a row of %d", ErrProtocol, n, len(p.columns))
	}
	row, offset := b.grab(len(tuple))
	copy(row, tuple)

	first := len(b.spans)
	b.spans = slices.Grow(b.spans, b.stride)[:first+b.stride]
	spans := b.spans[first:]

	at := 2
	for i := range p.columns {
		value, next, err := column(row, at)
		if err != nil {
			return err
		}
		s := span{length: -1}
		if value != nil {
			start := next - len(value)
			if p.columns[i].bytea {
				if value, err = unhex(value); err != nil {
					return err
				}
			}
			s = span{start: int32(offset + start), length: int32(len(value))}
		}
		for _, c := range p.columns[i].to {
			spans[c] = s
		}
		at = next
	}
	if at != len(row) {
		return fmt.Errorf("%w: %d bytes after a row", ErrProtocol, len(row)-at)
	}
	b.commits = append(b.commits, d.commit)
	return nil
}

// column returns the value of the tuple's column at offset at, nil for NULL, and the
// offset of the next one.
func column(row []byte, at int) (value []byte, next int, err error) {
	if at >= len(row) {
		return nil, 0, fmt.Errorf("%w: a row ends early", ErrProtocol)
	}
	switch row[at] {
	case 'n':
		return nil, at + 1, nil
	case 't':
		if len(row)-at < 1+4 {
			return nil, 0, fmt.Errorf("%w: a row ends early", ErrProtocol)
		}
		n := binary.BigEndian.Uint32(row[at+1:])
		at += 1 + 4
		if uint64(n) > uint64(len(row)-at) {
			return nil, 0, fmt.Errorf("%w: a column is longer than its row", ErrProtocol)
		}
		next = at + int(n)
		return row[at:next], next, nil
	default:
		return nil, 0, fmt.Errorf("%w: column kind %q in an inserted row", ErrProtocol, row[at])
	}
}

// unhex decodes the hex form of a bytea (`\x` and two digits a byte) in place: what is
// written stays behind what is read.
func unhex(text []byte) ([]byte, error) {
	digits, ok := bytes.CutPrefix(text, []byte(`\x`))
	if !ok {
		return nil, fmt.Errorf("%w: a bytea that is not in hex form", ErrProtocol)
	}
	n, err := hex.Decode(text, digits)
	if err != nil {
		return nil, fmt.Errorf("%w: bytea: %w", ErrProtocol, err)
	}
	return text[:n], nil
}
