package decoder

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTransaction(t *testing.T) {
	d := New(outboxLayout(), 0)
	require.False(t, d.InTransaction())
	require.Zero(t, d.CommitEnd())

	outcome, err := d.Decode(beginMessage(), nil)
	require.NoError(t, err)
	require.Equal(t, None, outcome)
	require.True(t, d.InTransaction())
	require.Zero(t, d.CommitEnd())

	outcome, err = d.Decode(commitMessage(0x2000), nil)
	require.NoError(t, err)
	require.Equal(t, Commit, outcome)
	require.False(t, d.InTransaction())
	require.Equal(t, pglogrepl.LSN(0x2000), d.CommitEnd())

	_, err = d.Decode(beginMessage(), nil)
	require.NoError(t, err)
	require.Equal(t, pglogrepl.LSN(0x2000), d.CommitEnd(), "until the next commit")
}

func TestCommitTime(t *testing.T) {
	d := started(t, outboxLayout(), outboxRelation())
	e := decodeRow(t, d, insertMessage(outboxID, "1", "Order", "42", "E", "{}"), emptyBatch(outboxLayout(), 1<<10))

	at := time.Date(2026, 11, 21, 0, 0, 0, 123_456_000, time.UTC)
	require.True(t, at.Equal(e.CommitTime()), e.CommitTime())
	require.Equal(t, at.UnixMilli(), e.CommitMillis())
}

func TestMessagesWithoutAnEvent(t *testing.T) {
	tests := []struct {
		name string
		msg  string
	}{
		{"type", "Y\x00\x00\x40\x02public\x00kind\x00"},
		{"origin", "O\x00\x00\x00\x00\x00\x00\x10\x00elsewhere\x00"},
		{"emitted message", "M\x01\x00\x00\x00\x00\x00\x00\x10\x00prefix\x00\x00\x00\x00\x02hi"},
		{"update", "U\x00\x00\x40\x07N\x00\x05nnnnn"},
		{"update with an unchanged value", "U\x00\x00\x40\x07N\x00\x05nnnnu"},
		{"delete", "D\x00\x00\x40\x07K\x00\x05nnnnn"},
		{"truncate", "T\x00\x00\x00\x01\x00\x00\x00\x40\x07"},
		{"stray stream abort", "A\x00\x00\x02\xdb\x00\x00\x02\xdb"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := started(t, outboxLayout(), outboxRelation())
			b := emptyBatch(outboxLayout(), 1<<10)
			outcome, err := d.Decode([]byte(test.msg), b)
			require.NoError(t, err)
			require.Equal(t, None, outcome)
			require.Zero(t, b.Len())
			require.True(t, d.InTransaction())
		})
	}
}

func TestProtocolErrors(t *testing.T) {
	row := func(tuple string) string { return "I\x00\x00\x40\x07N" + tuple }
	tests := []struct {
		name string
		msg  string
		want string
	}{
		{"nothing", "", "an empty message"},
		{"unknown type", "Z", `message type 'Z'`},
		{"stream start", "S\x00\x00\x02\xdb\x01", `message type 'S'`},
		{"begin inside a transaction", string(beginMessage()), "begin inside a transaction"},
		{"short begin", string(beginMessage()[:20]), "begin of 20 bytes"},
		{"long begin", string(beginMessage()) + "x", "begin of 22 bytes"},
		{"short commit", string(commitMessage(1)[:25]), "commit of 25 bytes"},
		{"long commit", string(commitMessage(1)) + "x", "commit of 27 bytes"},
		{"long relation", string(outboxRelation()) + "x", "malformed relation"},
		{"short insert", "I\x00\x00\x40\x07N\x00", "malformed insert"},
		{"insert of an old row", "I\x00\x00\x40\x07O\x00\x00", "malformed insert"},
		{"insert without its relation", "I\x00\x00\x40\x08N\x00\x00", "insert without its relation"},
		{"fewer columns than the relation", row("\x00\x04nnnn"), "4 columns in a row of 5"},
		{"more columns than the relation", row("\x00\x06nnnnnn"), "6 columns in a row of 5"},
		{"row without its last column", row("\x00\x05nnnn"), "a row ends early"},
		{"row that ends in a length", row("\x00\x05nnnnt\x00\x00\x00"), "a row ends early"},
		{"row that ends in a value", row("\x00\x05nnnnt\x00\x00\x00\x02x"), "a column is longer than its row"},
		{"value of 4 GiB", row("\x00\x05nnnnt\xff\xff\xff\xffx"), "a column is longer than its row"},
		{"bytes after the row", row("\x00\x05nnnnnx"), "1 bytes after a row"},
		{"unchanged value", row("\x00\x05nnnnu"), `column kind 'u' in an inserted row`},
		{"binary value", row("\x00\x05nnnnb\x00\x00\x00\x01x"), `column kind 'b' in an inserted row`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := started(t, outboxLayout(), outboxRelation()).Decode([]byte(test.msg), emptyBatch(outboxLayout(), 1<<10))
			require.ErrorIs(t, err, ErrProtocol)
			require.EqualError(t, err, "unexpected pgoutput data: "+test.want)
		})
	}
}

func TestProtocolErrorsOutsideATransaction(t *testing.T) {
	for name, msg := range map[string][]byte{
		"commit": commitMessage(0x2000),
		"insert": insertMessage(outboxID, "1", "Order", "42", "E", "{}"),
	} {
		t.Run(name, func(t *testing.T) {
			d := New(outboxLayout(), 0)
			_, err := d.Decode(outboxRelation(), nil)
			require.NoError(t, err)
			_, err = d.Decode(msg, emptyBatch(outboxLayout(), 1<<10))
			require.ErrorIs(t, err, ErrProtocol)
			require.EqualError(t, err, "unexpected pgoutput data: "+name+" outside a transaction")
		})
	}
}

// A message that is cut off is an error at whatever byte, and bytes behind it are one too.
func TestTruncatedMessages(t *testing.T) {
	layout := outboxLayout()
	for _, msg := range [][]byte{
		outboxRelation(),
		insertMessage(outboxID, "1", "Order", nil, "", "{}"),
		commitMessage(0x2000),
	} {
		for n := range msg {
			_, err := started(t, layout, outboxRelation()).Decode(msg[:n], emptyBatch(layout, 1<<10))
			require.ErrorIs(t, err, ErrProtocol, "%q", msg[:n])
		}
		_, err := started(t, layout, outboxRelation()).Decode(append(msg, 0), emptyBatch(layout, 1<<10))
		require.ErrorIs(t, err, ErrProtocol, "%q", msg)
	}
}

func TestColumnsAreFoundByName(t *testing.T) {
	layout := NewLayout("public", "outbox_event")
	layout.Columns[Payload] = "body"
	trace := layout.Column("trace")
	id := layout.Column("id")
	require.Equal(t, ID, id, "two uses of one column share it")

	tests := []struct {
		name     string
		relation []byte
		insert   []byte
	}{
		{
			name:     "in the order of the layout",
			relation: relationMessage(outboxID, "public", "outbox_event", "id", "aggregate_type", "aggregate_id", "event_type", "body", "trace"),
			insert:   insertMessage(outboxID, "1", "Order", "42", "E", "{}", "t"),
		},
		{
			name:     "in another order with others between",
			relation: relationMessage(outboxID, "public", "outbox_event", "trace", "payload", "body", typed{"n", pgtype.Int4OID}, "event_type", "aggregate_id", "aggregate_type", "ID", "id", typed{"b", pgtype.ByteaOID}),
			insert:   insertMessage(outboxID, "t", "not the payload here", "{}", "7", "E", "42", "Order", "not the id", "1", `\x00`),
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := started(t, layout, test.relation)
			e := decodeRow(t, d, test.insert, emptyBatch(layout, 1<<10))
			require.Equal(t, []any{"1", "Order", "42", "E", "{}", "t"}, values(e))
			require.Equal(t, "t", string(e.Column(trace)))
		})
	}
}

func TestMissingColumns(t *testing.T) {
	layout := outboxLayout()
	layout.Column("trace")
	_, err := New(layout, 0).Decode(relationMessage(outboxID, "public", "outbox_event", "id", "Payload", "aggregate_id", "event_type"), nil)

	var missing *MissingColumnsError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, &MissingColumnsError{Table: "public.outbox_event", Columns: []string{"aggregate_type", "payload", "trace"}}, missing)
	require.EqualError(t, err, writtenWithout("aggregate_type, payload, trace"))
	require.NotErrorIs(t, err, ErrProtocol, "an operator can cure it")
}

func TestOneColumnInTwoRoles(t *testing.T) {
	layout := outboxLayout()
	layout.Columns[AggregateID], layout.Columns[Payload] = "data", "data"
	_, err := New(layout, 0).Decode(outboxRelation(), nil)
	require.EqualError(t, err, writtenWithout("data"))

	relation := relationMessage(outboxID, "public", "outbox_event", "id", "aggregate_type", "event_type", typed{"data", pgtype.ByteaOID})
	d := started(t, layout, relation)
	e := decodeRow(t, d, insertMessage(outboxID, "1", "Order", "E", `\xc0ffee`), emptyBatch(layout, 1<<10))
	require.Equal(t, "\xc0\xff\xee", string(e.Column(AggregateID)))
	require.Equal(t, "\xc0\xff\xee", string(e.Column(Payload)))
}

func TestNullIsNotEmpty(t *testing.T) {
	d := started(t, outboxLayout(), outboxRelation())
	b := emptyBatch(outboxLayout(), 1<<10)
	e := decodeRow(t, d, insertMessage(outboxID, "1", nil, "", nil, ""), b)

	require.Nil(t, e.Column(AggregateType))
	require.Equal(t, []byte{}, e.Column(AggregateID))
	require.Nil(t, e.Column(EventType))
	require.Equal(t, []byte{}, e.Column(Payload), "at the very end of the row")
}

// What a sink appends to a value must not run into the next one.
func TestValuesHaveNoSpareCapacity(t *testing.T) {
	d := started(t, outboxLayout(), outboxRelation())
	b := emptyBatch(outboxLayout(), 1<<10)
	e := decodeRow(t, d, insertMessage(outboxID, "1", "Order", "42", "E", "{}"), b)
	_ = append(e.Column(AggregateType), "overwritten"...)
	require.Equal(t, []any{"1", "Order", "42", "E", "{}"}, values(e))
}

func TestBytea(t *testing.T) {
	tests := []struct {
		text string
		want string
		err  string
	}{
		{text: `\x`, want: ""},
		{text: `\x00`, want: "\x00"},
		{text: `\x00ff5c27DeadBeef`, want: "\x00\xff\\'\xde\xad\xbe\xef"},
		{text: ``, err: "a bytea that is not in hex form"},
		{text: `\`, err: "a bytea that is not in hex form"},
		{text: `\000abc`, err: "a bytea that is not in hex form"},
		{text: `\x0`, err: "bytea: encoding/hex: odd length hex string"},
		{text: `\x0g`, err: "bytea: encoding/hex: invalid byte: U+0067 'g'"},
	}
	relation := relationMessage(outboxID, "public", "outbox_event", "id", "aggregate_type", "aggregate_id", typed{"payload", pgtype.ByteaOID}, "event_type")
	for _, test := range tests {
		t.Run(test.text, func(t *testing.T) {
			d := started(t, outboxLayout(), relation)
			b := emptyBatch(outboxLayout(), 1<<10)
			outcome, err := d.Decode(insertMessage(outboxID, "1", "Order", "42", test.text, "E"), b)
			if test.err != "" {
				require.ErrorIs(t, err, ErrProtocol)
				require.EqualError(t, err, "unexpected pgoutput data: "+test.err)
				require.Zero(t, b.Len())
				return
			}
			require.NoError(t, err)
			require.Equal(t, Row, outcome)
			require.Equal(t, []any{"1", "Order", "42", "E", test.want}, values(b.Event(0)))
		})
	}
}

func writtenWithout(columns string) string {
	return "rows of table public.outbox_event that are not published yet were written without " + columns + ", and no change of the table changes them: " +
		"name other columns with --column and --header, or publish them from the table, and run `pombo teardown`, then `pombo setup`"
}

func TestForeignTables(t *testing.T) {
	d := started(t, outboxLayout(), outboxRelation())
	b := emptyBatch(outboxLayout(), 1<<10)
	for id, name := range [][2]string{{"public", "other"}, {"audit", "outbox_event"}, {"public", "outbox_event_2026"}} {
		_, err := d.Decode(relationMessage(uint32(id), name[0], name[1], "a", "b"), nil)
		require.NoError(t, err)
		for _, batch := range []*Batch{b, nil} { // its rows take no room
			outcome, err := d.Decode(insertMessage(uint32(id), "1", strings.Repeat("x", 2<<10)), batch)
			require.NoError(t, err)
			require.Equal(t, None, outcome)
		}
	}
	require.Zero(t, b.Len())
}

// The stream has the names of the time when a row was written.
func TestATableThatWasRenamedSinceIsKnownByItsOID(t *testing.T) {
	d := New(outboxLayout(), outboxID)
	b := emptyBatch(outboxLayout(), 1<<10)
	for _, msg := range [][]byte{beginMessage(), relationMessage(outboxID, "archive", "outbox", "id", "aggregate_type", "aggregate_id", "event_type", "payload")} {
		_, err := d.Decode(msg, nil)
		require.NoError(t, err)
	}
	e := decodeRow(t, d, insertMessage(outboxID, "1", "Order", "42", "E", "{}"), b)
	require.Equal(t, []any{"1", "Order", "42", "E", "{}"}, values(e))
}

// Postgres describes the table anew before the next row of it.
func TestRelationChangesInsideATransaction(t *testing.T) {
	d := started(t, outboxLayout(), outboxRelation())
	b := emptyBatch(outboxLayout(), 1<<10)
	before := decodeRow(t, d, insertMessage(outboxID, "1", "Order", "42", "E", "before"), b)

	renamed := relationMessage(outboxID, "public", "outbox_event", "id", "aggregate_type", "aggregate_id", "event_type", "body")
	_, err := d.Decode(renamed, b)
	require.EqualError(t, err, writtenWithout("payload"))

	_, err = d.Decode(relationMessage(outboxID, "public", "outbox_event", "payload", "added", "id", "aggregate_type", "aggregate_id", "event_type"), b)
	require.NoError(t, err)
	after := decodeRow(t, d, insertMessage(outboxID, "after", "x", "2", "Order", "42", "E"), b)

	require.Equal(t, []any{"1", "Order", "42", "E", "before"}, values(before))
	require.Equal(t, []any{"2", "Order", "42", "E", "after"}, values(after))
}

// DROP and CREATE gives the table another id, and a foreign table may get its name.
func TestRelationIsReplaced(t *testing.T) {
	d := started(t, outboxLayout(), outboxRelation())
	b := emptyBatch(outboxLayout(), 1<<10)
	for _, msg := range [][]byte{
		relationMessage(outboxID, "public", "outbox_event_old", "id"),
		relationMessage(outboxID+1, "public", "outbox_event", "payload", "id", "aggregate_type", "aggregate_id", "event_type"),
	} {
		_, err := d.Decode(msg, b)
		require.NoError(t, err)
	}
	outcome, err := d.Decode(insertMessage(outboxID, "old"), b)
	require.NoError(t, err)
	require.Equal(t, None, outcome)
	e := decodeRow(t, d, insertMessage(outboxID+1, "{}", "1", "Order", "42", "E"), b)
	require.Equal(t, []any{"1", "Order", "42", "E", "{}"}, values(e))
}

// The message is borrowed from the connection, which reads the next one into the same memory.
func TestMessageIsOnlyReadDuringTheCall(t *testing.T) {
	d := New(outboxLayout(), 0)
	b := emptyBatch(outboxLayout(), 1<<10)
	for _, msg := range [][]byte{outboxRelation(), beginMessage(), insertMessage(outboxID, "1", "Order", "42", "E", "{}")} {
		read := strings.Clone(string(msg))
		_, err := d.Decode(msg, b)
		require.NoError(t, err)
		require.Equal(t, read, string(msg), "and only read")
		for i := range msg {
			msg[i] = 'X'
		}
	}
	require.Equal(t, []any{"1", "Order", "42", "E", "{}"}, values(b.Event(0)))
}

// Any table, any rows, batches of any size: what Postgres encodes is what comes out.
func TestRowsComeOutAsTheyWentIn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layout := outboxLayout()
		var table []any
		for i := range rapid.IntRange(0, 4).Draw(t, "others") {
			table = append(table, fmt.Sprint("other", i))
		}
		for range rapid.IntRange(0, 2).Draw(t, "extra columns") {
			layout.Column(fmt.Sprint("extra", len(layout.Columns)))
		}
		isBytea := make(map[string]bool)
		for _, name := range layout.Columns {
			oid := rapid.SampledFrom([]uint32{pgtype.TextOID, pgtype.UUIDOID, pgtype.ByteaOID}).Draw(t, "type")
			isBytea[name] = oid == pgtype.ByteaOID
			table = append(table, typed{name, oid})
		}
		table = rapid.Permutation(table).Draw(t, "table")
		d := started(t, layout, relationMessage(outboxID, "public", "outbox_event", table...))

		var batches []*Batch
		var want [][]any
		value := rapid.OneOf(
			rapid.Just[any](nil),
			rapid.Map(rapid.StringN(0, 40, -1), func(s string) any { return s }),
			rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 300), func(b []byte) any { return string(b) }),
		)
		arena := rapid.IntRange(0, 1000).Draw(t, "arena")
		batch := emptyBatch(layout, arena)
		for range rapid.IntRange(0, 50).Draw(t, "rows") {
			sent := make([]any, len(table))
			expected := make([]any, len(layout.Columns))
			for i, c := range table {
				v := value.Draw(t, "value")
				sent[i] = v
				if c, ok := c.(typed); ok {
					expected[layout.Column(c.name)] = v
					if isBytea[c.name] && v != nil {
						sent[i] = fmt.Sprintf(`\x%x`, v)
					}
				}
			}
			want = append(want, expected)
			msg := insertMessage(outboxID, sent...)
			outcome, err := d.Decode(msg, batch)
			require.NoError(t, err)
			if outcome == Full {
				require.NotZero(t, batch.Len())
				require.Greater(t, batch.Bytes()+d.Need(), arena)
				batches = append(batches, batch)
				batch = emptyBatch(layout, arena)
				outcome, err = d.Decode(msg, batch)
				require.NoError(t, err)
			}
			require.Equal(t, Row, outcome)
		}
		batches = append(batches, batch)

		var got [][]any
		for _, b := range batches {
			for i := range b.Len() {
				got = append(got, values(b.Event(i)))
			}
		}
		require.Equal(t, want, got)
	})
}
