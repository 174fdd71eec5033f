package replication

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// Record is the line of pombo.slot in the hands of one session. It says how far the slot can be, so that a slot that
// somebody else has moved is found at the next start.
//
// A session writes under a name of its own: what it writes late, when another one has the slot, changes nothing. Where its first
// write failed, the slot still counts as at rest, and a later write makes up for that: otherwise the next start would
// take what this session has confirmed for the work of somebody else.
type Record struct {
	slot    string
	session string
}

// NewRecord begins the record of a session that has the slot and has not confirmed anything yet. It returns the Record even where
// that cannot be written.
func NewRecord(ctx context.Context, conn *pgx.Conn, src Source, lsn pglogrepl.LSN) (*Record, error) {
	r := &Record{slot: src.Slot, session: rand.Text()}
	return r, r.write(ctx, conn, `UPDATE pombo.slot SET session = $2, lsn = $3 WHERE name = $1`, lsn)
}

// Follow notes how far the slot is.
func (r *Record) Follow(ctx context.Context, conn *pgx.Conn, lsn pglogrepl.LSN) error {
	return r.write(ctx, conn, `UPDATE pombo.slot SET session = $2, lsn = $3 WHERE name = $1 AND (session = $2 OR session IS NULL AND lsn <= $3)`, lsn)
}

// End notes that the session is over, and that it never confirmed anything beyond lsn.
func (r *Record) End(ctx context.Context, conn *pgx.Conn, lsn pglogrepl.LSN) error {
	return r.write(ctx, conn, `UPDATE pombo.slot SET session = NULL, lsn = $3 WHERE name = $1 AND (session = $2 OR session IS NULL AND lsn <= $3)`, lsn)
}

// write does not wait for a synchronous standby, which may be away for long.
func (r *Record) write(ctx context.Context, conn *pgx.Conn, sql string, lsn pglogrepl.LSN) error {
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error { // whatever the role's default
		if _, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = local`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sql, r.slot, r.session, lsn.String())
		return err
	})
	if err != nil {
		return fmt.Errorf("write pombo.slot: %w", err)
	}
	return nil
}
