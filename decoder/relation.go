package decoder

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"
)

// plan says where the columns of a relation go. A nil plan is that of a foreign table.
type plan struct {
	columns []target
}

// target is what happens to one column of a tuple.
type target struct {
	to    []Column // usually none or one
	bytea bool     // its text form is hex, the event carries the bytes
}

// relation compiles the plan of a table. Columns are found by name, each time the table
// changes, so their order and any further ones do not matter.
//
// Relation is Int32 id, String schema, String table, Int8 replica identity, Int16 columns,
// then for each an Int8 flags, String name, Int32 type, Int32 type modifier.
func (d *Decoder) relation(msg []byte) error {
	r := fieldReader{rest: msg[1:]}
	id, schema, table := r.uint32(), r.text(), r.text()
	r.take(1)
	p := &plan{columns: make([]target, r.uint16())}
	found := make([]bool, len(d.layout.Columns))
	for i := range p.columns {
		r.take(1)
		column := r.text()
		p.columns[i].bytea = r.uint32() == pgtype.ByteaOID
		r.take(4)
		for c, name := range d.layout.Columns {
			if name == column {
				p.columns[i].to = append(p.columns[i].to, Column(c))
				found[c] = true
			}
		}
	}
	if r.short || len(r.rest) > 0 {
		return fmt.Errorf("%w: malformed relation", ErrProtocol)
	}
	known := d.table != 0 && id == d.table
	if !known && (schema != d.layout.Schema || table != d.layout.Table) {
		d.plans[id] = nil
		return nil
	}
	var missing []string
	for c, name := range d.layout.Columns {
		if !found[c] && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	if missing != nil {
		return &MissingColumnsError{Table: schema + "." + table, Columns: missing}
	}
	d.plans[id] = p
	return nil
}

// fieldReader takes the fields of a message from its front. Those that are not there read as
// zero and set short, so that one check at the end will do.
type fieldReader struct {
	rest  []byte
	short bool
}

// take returns the next n bytes.
func (r *fieldReader) take(n int) []byte {
	if n > len(r.rest) {
		r.rest, r.short = nil, true
		return make([]byte, n)
	}
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *fieldReader) uint16() uint16 { return binary.BigEndian.Uint16(r.take(2)) }

func (r *fieldReader) uint32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }

// text reads a String, which ends in a zero byte.
func (r *fieldReader) text() string {
	n := bytes.IndexByte(r.rest, 0)
	if n < 0 {
		r.rest, r.short = nil, true
		return ""
	}
	text := string(r.rest[:n])
	r.take(n + 1)
	return text
}
