package decoder

import (
	"encoding/binary"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
)

// The functions of this file build messages as Postgres does.

const commitMicros = 848_534_400_123_456 // 2026-11-21 00:00:00.123456 UTC, from 2000-01-01 on

func beginMessage() []byte {
	msg := binary.BigEndian.AppendUint64([]byte("B"), 0x1000)
	msg = binary.BigEndian.AppendUint64(msg, commitMicros)
	return binary.BigEndian.AppendUint32(msg, 731)
}

func commitMessage(end pglogrepl.LSN) []byte {
	msg := binary.BigEndian.AppendUint64([]byte("C\x00"), 0x1000)
	msg = binary.BigEndian.AppendUint64(msg, uint64(end))
	return binary.BigEndian.AppendUint64(msg, commitMicros)
}

type typed struct {
	name string
	oid  uint32
}

// relationMessage describes a table; a column is a name, which means text, or typed.
func relationMessage(id uint32, schema, table string, columns ...any) []byte {
	msg := binary.BigEndian.AppendUint32([]byte("R"), id)
	msg = append(msg, schema+"\x00"+table+"\x00d"...)
	msg = binary.BigEndian.AppendUint16(msg, uint16(len(columns)))
	for _, c := range columns {
		if name, ok := c.(string); ok {
			c = typed{name, pgtype.TextOID}
		}
		msg = append(msg, "\x00"+c.(typed).name+"\x00"...)
		msg = binary.BigEndian.AppendUint32(msg, c.(typed).oid)
		msg = append(msg, "\xff\xff\xff\xff"...)
	}
	return msg
}

// insertMessage is a row; nil is NULL.
func insertMessage(id uint32, values ...any) []byte {
	msg := append(binary.BigEndian.AppendUint32([]byte("I"), id), 'N')
	return append(msg, tupleData(values...)...)
}

func tupleData(values ...any) []byte {
	tuple := binary.BigEndian.AppendUint16(nil, uint16(len(values)))
	for _, v := range values {
		if v == nil {
			tuple = append(tuple, 'n')
			continue
		}
		tuple = append(tuple, 't')
		tuple = binary.BigEndian.AppendUint32(tuple, uint32(len(v.(string))))
		tuple = append(tuple, v.(string)...)
	}
	return tuple
}

const outboxID = 16_391

// outboxRelation has the columns of NewLayout in their order.
func outboxRelation() []byte {
	return relationMessage(outboxID, "public", "outbox_event", "id", "aggregate_type", "aggregate_id", "event_type", "payload")
}

func outboxLayout() *Layout { return NewLayout("public", "outbox_event") }

// started returns a decoder inside a transaction that knows a table.
func started(t require.TestingT, layout *Layout, relation []byte) *Decoder {
	d := New(layout, 0)
	for _, msg := range [][]byte{relation, beginMessage()} {
		outcome, err := d.Decode(msg, nil)
		require.NoError(t, err)
		require.Equal(t, None, outcome)
	}
	return d
}

// emptyBatch returns a batch with an arena of arena bytes.
func emptyBatch(layout *Layout, arena int) *Batch {
	return &Batch{stride: len(layout.Columns), arena: make([]byte, 0, arena)}
}

// decodeRow decodes an insert into b and returns its event.
func decodeRow(t require.TestingT, d *Decoder, msg []byte, b *Batch) Event {
	outcome, err := d.Decode(msg, b)
	require.NoError(t, err)
	require.Equal(t, Row, outcome)
	return b.Event(b.Len() - 1)
}

// values returns the columns of an event as insertMessage takes them.
func values(e Event) []any {
	all := make([]any, len(e.spans))
	for c := range all {
		if v := e.Column(Column(c)); v != nil {
			all[c] = string(v)
		}
	}
	return all
}

func TestMessagesOfTheTestsAreThoseOfPostgres(t *testing.T) {
	captured := capturedStream(t)
	require.Equal(t, captured[2], insertMessage(16_399, "1", "not an event"))
}
