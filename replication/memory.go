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
	LSN         pglogrepl.LSN // where the slot was last seen
	AtRest      bool          // the last session has ended, and the slot was not beyond LSN then
	CreatedAt   time.Time
	Timeline    int32 // of the server's history
	SameServer  bool  // made in this database of this server, not in what it was copied from
	Current     int32 // the timeline that the server is on now
}

const (
	// currentTimeline is the start of a WAL file's name, because pg_control has the timeline of the last checkpoint.
	currentTimeline = `('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int`

	// recallQuery reads a table that setup has not brought up to date as one of which nothing is known.
	recallQuery = `
SELECT m.publication, m.lsn::text, to_jsonb(m) -> 'session' IS NOT DISTINCT FROM 'null', m.created_at, m.timeline,
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
		Scan(&m.Publication, &m.LSN, &m.AtRest, &m.CreatedAt, &m.Timeline, &m.SameServer, &m.Current)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil //nolint:nilnil // as above
	case err != nil:
		return nil, fmt.Errorf("read pombo.slot: %w", err)
	}
	return m, nil
}

// rememberSQL writes the memory of a slot that exists, or brings it up to date. A session that reads the slot already
// will not tell when it ends.
func rememberSQL(src Source) string {
	return fmt.Sprintf(`INSERT INTO pombo.slot (name, publication, database, database_oid, system_identifier, timeline, lsn, session)
SELECT s.slot_name, %s, s.database, s.datoid, c.system_identifier, %s, s.confirmed_flush_lsn, CASE WHEN s.active THEN 'unknown' END
FROM pg_replication_slots s, pg_control_system() c
WHERE s.slot_name = %s
ON CONFLICT (name) DO UPDATE SET (publication, database, database_oid, system_identifier, timeline, lsn, session, created_at) =
  (excluded.publication, excluded.database, excluded.database_oid, excluded.system_identifier, excluded.timeline, excluded.lsn, excluded.session, now())`,
		quoteLiteral(src.Publication), currentTimeline, quoteLiteral(src.Slot))
}

// missingSlot is the finding that there is no slot, with what is known of one that was.
func missingSlot(src Source, m *memory) error {
	if m == nil {
		return finding("run `pombo setup`", "slot %q does not exist", src.Slot)
	}
	made := fmt.Sprintf("made on %s and last seen at %s", m.CreatedAt.UTC().Format(time.DateTime+" UTC"), m.LSN)
	switch {
	case !m.SameServer:
		made += " on another server or in another database, which this one is a copy of"
	case m.Timeline != m.Current:
		made += fmt.Sprintf(" on timeline %d, and a failover to timeline %d has left it behind", m.Timeline, m.Current)
	}
	return finding("publish those from the table, and run `pombo setup --accept-gap` to create a new slot",
		"slot %q, %s, is gone, and events that were not published by then or were committed since are not in the stream", src.Slot, made)
}

// checkMemory looks whether a slot that would do is the one that is remembered, and where it was left. While a session reads
// the slot, its position is that session's business.
func (c *catalog) checkMemory(src Source, m *memory) []error {
	s := c.Slot
	const takeIt = "publish those from the table, and run `pombo setup --accept-gap` to go on with the slot as it is"
	switch {
	case m == nil || len(c.checkSlot(src)) > 0:
		return nil
	case !m.SameServer:
		return []error{finding(takeIt, "slot %q was made in another database or server, which this one is a copy of, and events that the slot there had not passed on "+
			"are not in the stream", s.Name)}
	case c.MayRecord && m.AtRest && !s.Active && s.ConfirmedFlush > m.LSN:
		return []error{finding(takeIt, "slot %q is at %s, but Pombo left it at %s: somebody moved it or made it anew, and events committed in between are not in the stream",
			s.Name, s.ConfirmedFlush, m.LSN)}
	}
	return nil
}

// doubt warns where it cannot be told whether the slot was moved. After a crash it may be somewhat beyond where it was last
// seen; that it needs no WAL from there any more is rarer.
func (c *catalog) doubt(m *memory) []string {
	s := c.Slot
	if m == nil || !c.MayRecord || m.AtRest || s.RestartLSN <= m.LSN {
		return nil
	}
	return []string{fmt.Sprintf("slot %q was last seen at %s and now needs WAL from %s only: after a crash in a busy database that can be, "+
		"otherwise somebody moved it or made it anew", s.Name, m.LSN, s.RestartLSN)}
}
