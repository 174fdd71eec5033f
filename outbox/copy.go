package outbox

import (
	"encoding/binary"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pombo-cdc/pombo/decoder"
)

// copySQL takes what copyData yields.
const copySQL = `COPY pombo.parked_event (slot, lane, event_id, topic, key, reason, columns, cells, digest, size, committed_at)
FROM STDIN (FORMAT binary)`

const copyFields = 11

// copyData is an io.Reader of rows in the binary format of COPY, which takes the values out of the events' memory as they are
// read: a large one is not copied as a whole.
//
// The format is that of the PostgreSQL documentation, "COPY", section "Binary Format"; a value is as the type's receive
// function takes it. That of an array is Int32 dimensions, Int32 1 if an element is NULL, Int32 type of the elements, and for
// each dimension an Int32 size and an Int32 lower bound; then for each element an Int32 length, -1 for NULL, and its bytes.
type copyData struct {
	slot    string
	columns []string
	sources []decoder.Column // of columns
	rows    []row            // that are not in parts yet
	parts   net.Buffers      // to be read
	ended   bool
}

func newCopyData(slot string, layout *decoder.Layout, rows []row) *copyData {
	c := &copyData{slot: slot, rows: rows}
	seen := make(map[string]bool)
	for i, name := range layout.Columns { // two roles may share one
		if !seen[name] {
			c.columns, c.sources = append(c.columns, name), append(c.sources, decoder.Column(i))
		}
		seen[name] = true
	}
	c.text("PGCOPY\n\xff\r\n\x00")
	c.uint32(0) // flags
	c.uint32(0) // bytes of the header's extension
	return c
}

// Read implements io.Reader.
func (c *copyData) Read(p []byte) (int, error) {
	if len(c.parts) == 0 {
		switch {
		case len(c.rows) > 0:
			c.row(&c.rows[0])
			c.rows = c.rows[1:]
		case !c.ended:
			c.uint16(0xffff)
			c.ended = true
		default:
			return 0, io.EOF
		}
	}
	n, _ := c.parts.Read(p) // its io.EOF is only the end of a row
	return n, nil
}

// row adds the parts of a row.
func (c *copyData) row(r *row) {
	c.uint16(copyFields)
	c.field([]byte(c.slot))
	c.int64(int64(r.Lane))
	c.field(r.eventID)
	c.optional(r.Topic)
	c.field(r.Event.Column(decoder.AggregateID))
	c.optional(printableReason(r.Reason))
	c.array(pgtype.TextOID, len(c.columns), func(i int) []byte { return []byte(c.columns[i]) })
	c.array(pgtype.ByteaOID, len(c.columns), func(i int) []byte { return r.Event.Column(c.sources[i]) })
	c.field(r.digest[:])
	c.int64(int64(r.size))
	c.int64(r.committed - postgresEpoch)
}

// printableReason returns a reason as Postgres takes it, whatever it quotes of the event.
func printableReason(reason string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(reason, "?"), "\x00", "?")
}

// postgresEpoch is 2000-01-01 in Unix microseconds: a timestamptz counts from there.
const postgresEpoch = 946_684_800_000_000

// array adds a field that is an array of one dimension.
func (c *copyData) array(element uint32, n int, value func(int) []byte) {
	size, nulls := 5*4, uint32(0)
	for i := range n {
		v := value(i)
		size += 4 + len(v)
		if v == nil {
			nulls = 1
		}
	}
	c.uint32(uint32(size))
	c.uint32(1)
	c.uint32(nulls)
	c.uint32(element)
	c.uint32(uint32(n))
	c.uint32(1)
	for i := range n {
		c.field(value(i))
	}
}

// optional adds a field of text that is NULL where it is empty.
func (c *copyData) optional(text string) {
	if text == "" {
		c.field(nil)
		return
	}
	c.field([]byte(text))
}

// field adds a value behind its length; nil is NULL.
func (c *copyData) field(value []byte) {
	if value == nil {
		c.uint32(0xffffffff)
		return
	}
	c.uint32(uint32(len(value)))
	c.parts = append(c.parts, value)
}

func (c *copyData) int64(v int64) { c.field(binary.BigEndian.AppendUint64(nil, uint64(v))) }

func (c *copyData) uint32(v uint32) { c.parts = append(c.parts, binary.BigEndian.AppendUint32(nil, v)) }

func (c *copyData) uint16(v uint16) { c.parts = append(c.parts, binary.BigEndian.AppendUint16(nil, v)) }

func (c *copyData) text(s string) { c.parts = append(c.parts, []byte(s)) }
