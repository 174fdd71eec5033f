package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// catalog is what one server, asked once, says about a Source.
type catalog struct {
	Server      server       `json:"server"`
	Role        role         `json:"role"`
	Table       *table       `json:"table"`       // nil: there is none
	Publication *publication `json:"publication"` // nil: there is none
	Slot        *Slot        `json:"slot"`        // nil: there is none
	MayRecall   bool         `json:"may_recall"`  // pombo.slot exists and may be read
	MayRecord   bool         `json:"may_record"`  // and may be written
}

type server struct {
	Version    int    `json:"version"` // as server_version_num
	Database   string `json:"database"`
	WALLevel   string `json:"wal_level"`
	InRecovery bool   `json:"in_recovery"`
}

type role struct {
	Name         string `json:"name"`
	MayReplicate bool   `json:"may_replicate"`
}

type table struct {
	Kind        string   `json:"kind"`        // pg_class.relkind
	Persistence string   `json:"persistence"` // pg_class.relpersistence
	Owned       bool     `json:"owned"`       // by the role or one that it belongs to
	Columns     []column `json:"columns"`     // those of Source.Columns
	Children    []string `json:"children"`    // the first few that inherit from it and are no partitions
}

type column struct {
	Name      string `json:"name"`
	Exists    bool   `json:"exists"`
	Generated bool   `json:"generated"`
}

type publication struct {
	AllTables bool     `json:"puballtables"`
	Insert    bool     `json:"pubinsert"`
	ViaRoot   bool     `json:"pubviaroot"`
	Owned     bool     `json:"owned"`
	Tables    []string `json:"tables"` // the first few that it contains
	Entry     *entry   `json:"entry"`  // nil: it lacks the table
}

// entry is the table's line in pg_publication_tables, which has filters and columns since version 15.
type entry struct {
	RowFilter string   `json:"rowfilter"`
	Columns   []string `json:"attnames"`
}

// Slot is a replication slot as pg_replication_slots shows it.
type Slot struct {
	Name               string        `json:"slot_name"`
	Type               string        `json:"slot_type"`
	Plugin             string        `json:"plugin"`
	Database           string        `json:"database"`
	Temporary          bool          `json:"temporary"`
	Active             bool          `json:"active"`
	ActivePID          int32         `json:"active_pid"` // of the session that holds it
	RestartLSN         pglogrepl.LSN `json:"restart_lsn"`
	ConfirmedFlush     pglogrepl.LSN `json:"confirmed_flush_lsn"`
	WALStatus          string        `json:"wal_status"`
	SafeWALSize        *int64        `json:"safe_wal_size"`       // bytes until it is lost; nil: no limit
	InvalidationReason string        `json:"invalidation_reason"` // since version 17
}

// catalogQuery answers with one JSON document, in which a column that a version lacks is a key that is
// absent. It needs no privilege on the table, unlike information_schema, which shows a role only what it may use.
const catalogQuery = `
SELECT jsonb_build_object(
  'server', jsonb_build_object(
    'version', current_setting('server_version_num')::int,
    'database', current_database(),
    'wal_level', current_setting('wal_level'),
    'in_recovery', pg_is_in_recovery()),
  'role', (
    SELECT jsonb_build_object(
      'name', r.rolname,
      'may_replicate', r.rolsuper OR r.rolreplication OR EXISTS (
        SELECT FROM pg_roles rds WHERE rds.rolname = 'rds_replication' AND pg_has_role(rds.oid, 'MEMBER')))
    FROM pg_roles r WHERE r.rolname = current_user),
  'table', (
    SELECT jsonb_build_object(
      'kind', c.relkind,
      'persistence', c.relpersistence,
      'owned', pg_has_role(c.relowner, 'USAGE'),
      'children', (
        SELECT jsonb_agg(few.name) FROM (
          SELECT i.inhrelid::regclass::text AS name
          FROM pg_inherits i WHERE i.inhparent = c.oid AND c.relkind = 'r' LIMIT 3) few),
      'columns', (
        SELECT jsonb_agg(jsonb_build_object(
          'name', wanted, 'exists', a.attname IS NOT NULL, 'generated', coalesce(a.attgenerated <> '', false)))
        FROM unnest($5::text[]) wanted
        LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = wanted AND a.attnum > 0 AND NOT a.attisdropped))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $3 AND c.relname = $4),
  'publication', (
    SELECT to_jsonb(p) || jsonb_build_object(
      'owned', pg_has_role(p.pubowner, 'USAGE'),
      'tables', (
        SELECT jsonb_agg(few.name) FROM (
          SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) AS name
          FROM pg_publication_tables WHERE pubname = p.pubname LIMIT 3) few),
      'entry', (
        SELECT to_jsonb(e) FROM pg_publication_tables e
        WHERE e.pubname = p.pubname AND e.schemaname = $3 AND e.tablename = $4))
    FROM pg_publication p WHERE p.pubname = $2),
  'slot', (
    SELECT to_jsonb(s) || jsonb_build_object(
      'restart_lsn', s.restart_lsn - '0/0'::pg_lsn,
      'confirmed_flush_lsn', s.confirmed_flush_lsn - '0/0'::pg_lsn)
    FROM pg_replication_slots s WHERE s.slot_name = $1),
  'may_recall', (
    SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'pombo' AND c.relname = 'slot'),
  'may_record', (
    SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'UPDATE')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE n.nspname = 'pombo' AND c.relname = 'slot' AND a.attname = 'session'))`

// errInRecovery is no ActionError: a standby can become the primary at any time.
var errInRecovery = errors.New("the server is a standby in recovery, which cannot serve the slot before it is promoted")

func readCatalog(ctx context.Context, conn *pgx.Conn, src Source) (*catalog, error) {
	c := new(catalog)
	err := conn.QueryRow(ctx, catalogQuery, src.Slot, src.Publication, src.Schema, src.Table, src.Columns).Scan(c)
	if err != nil {
		return nil, fmt.Errorf("read catalog: %w", err)
	}
	if c.Server.InRecovery {
		return nil, errInRecovery
	}
	return c, nil
}
