package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// memory is a line of pombo.slot: a slot was made. If it is gone, so are the events that it kept.
type memory struct {
	Publication string
	LSN         pglogrepl.LSN
	CreatedAt   time.Time
	Timeline    int32 // of the server's history
	SameServer  bool  // made in this database of this server, not in what it was copied from
	Current     int32 // the timeline that the server is on now
}

const (
	// currentTimeline is the start of a WAL file's name, because pg_control has the timeline of the last checkpoint.
	currentTimeline = `('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int`

	recallQuery = `
SELECT m.publication, m.lsn::text, m.created_at, m.timeline,
  m.system_identifier = c.system_identifier AND m.database_oid = d.oid, ` + currentTimeline + `
FROM pombo.slot m, pg_control_system() c, pg_database d
WHERE m.name = $1 AND d.datname = current_database()`
)

// recall returns what is remembered of the slot, and nil where nothing is or the role may not read it.
func (c *catalog) recall(ctx context.Context, conn *pgx.Conn, src Source) (*memory, error) {
	if !c.MayRecall {
		return nil, nil //nolint:nilnil // a slot without a memory is a usual answer
	}
	m := new(memory)
	err := conn.QueryRow(ctx, recallQuery, src.Slot).
		Scan(&m.Publication, &m.LSN, &m.CreatedAt, &m.Timeline, &m.SameServer, &m.Current)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil //nolint:nilnil // as above
	case err != nil:
		return nil, fmt.Errorf("read pombo.slot: %w", err)
	}
	return m, nil
}

// rememberSQL writes the memory of a slot that exists, or brings it up to date.
func rememberSQL(src Source) string {
	return fmt.Sprintf(`INSERT INTO pombo.slot (name, publication, database, database_oid, system_identifier, timeline, lsn)
SELECT s.slot_name, %s, s.database, s.datoid, c.system_identifier, %s, s.confirmed_flush_lsn
FROM pg_replication_slots s, pg_control_system() c
WHERE s.slot_name = %s
ON CONFLICT (name) DO UPDATE SET (publication, database, database_oid, system_identifier, timeline, lsn, created_at) =
  (excluded.publication, excluded.database, excluded.database_oid, excluded.system_identifier, excluded.timeline, excluded.lsn, now())`,
		quoteLiteral(src.Publication), currentTimeline, quoteLiteral(src.Slot))
}

// missingSlot is the finding that there is no slot, with what is known of one that was.
func missingSlot(src Source, m *memory) error {
	if m == nil {
		return finding("run `pombo setup`", "slot %q does not exist", src.Slot)
	}
	made := fmt.Sprintf("made on %s at %s", m.CreatedAt.UTC().Format(time.DateTime+" UTC"), m.LSN)
	switch {
	case !m.SameServer:
		made += " on another server or in another database, which this one is a copy of"
	case m.Timeline != m.Current:
		made += fmt.Sprintf(" on timeline %d, and a failover to timeline %d has left it behind", m.Timeline, m.Current)
	}
	return finding("publish those from the table, and run `pombo setup --accept-gap` to create a new slot",
		"slot %q, %s, is gone, and events that were not published by then or were committed since are not in the stream", src.Slot, made)
}
