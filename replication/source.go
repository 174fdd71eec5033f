// Package replication is Pombo's Postgres side: the slot, the publication and the stream
// that they feed. It creates and checks them, receives the stream, and confirms to Postgres
// what has been acknowledged, never more.
package replication

import (
	"github.com/jackc/pgx/v5"
)

// Source names what is replicated. Names are as Postgres stores them: unquoted.
type Source struct {
	Postgres    *pgx.ConnConfig
	Slot        string
	Publication string
	Schema      string
	Table       string
	Columns     []string // that an event needs
}

// table is the outbox table as SQL spells it.
func (s Source) table() string { return pgx.Identifier{s.Schema, s.Table}.Sanitize() }

// publication is the publication as SQL spells it.
func (s Source) publication() string { return pgx.Identifier{s.Publication}.Sanitize() }
