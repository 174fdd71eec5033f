package replication

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// Status is how far a slot is behind its server. All sizes are in bytes.
type Status struct {
	Slot               string        `json:"slot"`
	Database           string        `json:"database"`
	Active             bool          `json:"active"`
	ActivePID          int32         `json:"active_pid"` // 0: nobody reads the slot
	WALStatus          string        `json:"wal_status"` // as pg_replication_slots has it
	InvalidationReason string        `json:"invalidation_reason"`
	ConfirmedLSN       pglogrepl.LSN `json:"confirmed_lsn"`
	RestartLSN         pglogrepl.LSN `json:"restart_lsn"`
	LagBytes           int64         `json:"lag_bytes"`          // written to the WAL since ConfirmedLSN, by all tables
	RetainedBytes      int64         `json:"retained_wal_bytes"` // kept on disk for the slot
	SafeWALBytes       *int64        `json:"safe_wal_bytes"`     // may be written before the slot is lost; nil: no limit

	// ParkedEvents is the number of events in pombo.parked_event, where it is known. ReadStatus leaves it to the caller.
	ParkedEvents *int64 `json:"parked_events,omitempty"`
}

// MarshalJSON implements json.Marshaler: positions are text, as Postgres prints them.
func (s Status) MarshalJSON() ([]byte, error) {
	type plain Status
	return json.Marshal(struct {
		plain
		ConfirmedLSN string `json:"confirmed_lsn"`
		RestartLSN   string `json:"restart_lsn"`
	}{plain(s), s.ConfirmedLSN.String(), s.RestartLSN.String()})
}

// statusQuery works on a standby too, where a slot can stand that was copied from the primary.
const statusQuery = `
SELECT s.slot_name, coalesce(s.database, ''), s.active, coalesce(s.active_pid, 0), coalesce(s.wal_status, ''),
  coalesce(to_jsonb(s) ->> 'invalidation_reason', ''),
  coalesce(s.confirmed_flush_lsn, '0/0')::text, coalesce(s.restart_lsn, '0/0')::text,
  coalesce(now.lsn - s.confirmed_flush_lsn, 0)::bigint, coalesce(now.lsn - s.restart_lsn, 0)::bigint, s.safe_wal_size
FROM pg_replication_slots s,
  (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END) now(lsn)
WHERE s.slot_name = $1`

// ReadStatus asks the server. The error is an ActionError where the slot is missing.
func ReadStatus(ctx context.Context, conn *pgx.Conn, src Source) (Status, error) {
	var s Status
	err := conn.QueryRow(ctx, statusQuery, src.Slot).Scan(
		&s.Slot, &s.Database, &s.Active, &s.ActivePID, &s.WALStatus, &s.InvalidationReason,
		&s.ConfirmedLSN, &s.RestartLSN, &s.LagBytes, &s.RetainedBytes, &s.SafeWALBytes)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return s, missingSlot(src, nil)
	case err != nil:
		return s, fmt.Errorf("read status of slot %q: %w", src.Slot, err)
	}
	return s, nil
}
