package replication

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pombo-cdc/pombo/migrations"
)

// rights is what the role may do and what is there for it to do it with: what only setup and teardown ask.
type rights struct {
	CreateInDatabase bool `json:"create_in_database"`
	SchemaExists     bool `json:"schema_exists"` // that of the table
	CreateInSchema   bool `json:"create_in_schema"`
	ProcessedExists  bool `json:"processed_exists"`
	StateExists      bool `json:"state_exists"` // schema pombo
	UseState         bool `json:"use_state"`
	SlotsLeft        int  `json:"slots_left"` // of max_replication_slots
}

const rightsQuery = `
SELECT jsonb_build_object(
  'create_in_database', has_database_privilege(current_database(), 'CREATE'),
  'schema_exists', EXISTS (SELECT FROM pg_namespace WHERE nspname = $1),
  'create_in_schema', (SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = $1),
  'processed_exists', EXISTS (
    SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname = 'processed_event'),
  'state_exists', EXISTS (SELECT FROM pg_namespace WHERE nspname = 'pombo'),
  'use_state', (
    SELECT has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE') AND (
      SELECT coalesce(bool_and(has_table_privilege(c.oid, privilege)), true)
      FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) privilege
      WHERE c.relnamespace = n.oid AND c.relkind = 'r')
    FROM pg_namespace n WHERE n.nspname = 'pombo'),
  'slots_left', current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots))`

func readRights(ctx context.Context, conn *pgx.Conn, src Source) (*rights, error) {
	r := new(rights)
	if err := conn.QueryRow(ctx, rightsQuery, src.Schema).Scan(r); err != nil {
		return nil, fmt.Errorf("read privileges: %w", err)
	}
	return r, nil
}

// obstacles are what keeps setup from doing its work, but for missing privileges.
func (s *setup) obstacles() []error {
	c, src := s.catalog, s.src
	var findings []error
	if c.Table != nil || !s.opts.CreateTable {
		findings = append(findings, c.checkTable(src)...)
	} else {
		findings = append(findings, s.checkNewTable()...)
	}
	// What is missing altogether is made.
	if c.Publication != nil || c.Slot != nil {
		findings = append(findings, c.checkPublication(src)...)
	}
	switch {
	case c.Slot != nil:
		findings = append(findings, c.checkSlot(src)...)
		if !s.opts.AcceptGap {
			findings = append(findings, c.checkMemory(src, s.memory)...)
		}
	case s.memory != nil && !s.opts.AcceptGap:
		findings = append(findings, missingSlot(src, s.memory))
	}
	if c.Slot == nil && s.rights.SlotsLeft <= 0 {
		findings = append(findings, finding("drop a slot that nobody needs, or raise max_replication_slots and restart Postgres",
			"all slots that max_replication_slots allows are taken"))
	}
	return findings
}

// checkNewTable looks whether the table that --create-table makes would do.
func (s *setup) checkNewTable() []error {
	var findings []error
	if !s.rights.SchemaExists {
		findings = append(findings, finding(fmt.Sprintf("run `CREATE SCHEMA %s`", pgx.Identifier{s.src.Schema}.Sanitize()),
			"schema %q does not exist", s.src.Schema))
	}
	var lacking []string
	for _, name := range s.src.Columns {
		if !slices.Contains(migrations.Columns(), name) {
			lacking = append(lacking, fmt.Sprintf("%q", name))
		}
	}
	if len(lacking) > 0 {
		findings = append(findings, finding("create the table yourself, or leave out --column and --header",
			"the table that --create-table makes has no column %s", strings.Join(lacking, ", ")))
	}
	return findings
}

// missingPrivileges are the privileges that the role lacks for what is left to do.
func (s *setup) missingPrivileges() []error {
	c, r, src := s.catalog, s.rights, s.src
	role := pgx.Identifier{c.Role.Name}.Sanitize()
	var findings []error
	grant := func(lacking bool, right, cure string, args ...any) {
		if lacking {
			findings = append(findings, finding(
				"run `"+fmt.Sprintf(cure, args...)+"`, or let another role run what `pombo setup --dry-run` prints",
				"role %q lacks %s", c.Role.Name, right))
		}
	}
	grant(!r.CreateInDatabase && (c.Publication == nil || !r.StateExists),
		fmt.Sprintf("CREATE on database %q", c.Server.Database),
		"GRANT CREATE ON DATABASE %s TO %s", pgx.Identifier{c.Server.Database}.Sanitize(), role)
	grant(s.opts.CreateTable && r.SchemaExists && !r.CreateInSchema && (c.Table == nil || !r.ProcessedExists),
		fmt.Sprintf("CREATE on schema %q", src.Schema),
		"GRANT USAGE, CREATE ON SCHEMA %s TO %s", pgx.Identifier{src.Schema}.Sanitize(), role)
	grant(c.Publication == nil && c.Table != nil && !c.Table.Owned,
		fmt.Sprintf("ownership of table %s, which a publication of it takes", src.table()),
		"ALTER TABLE %s OWNER TO %s", src.table(), role)
	return findings
}

// checkState looks whether the role may use what setup has made before, perhaps in another role's name.
func checkState(c *catalog, r *rights) []error {
	if !r.StateExists || r.UseState {
		return nil
	}
	return []error{finding(fmt.Sprintf(
		"run `GRANT USAGE, CREATE ON SCHEMA pombo TO %[1]s; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pombo TO %[1]s`",
		pgx.Identifier{c.Role.Name}.Sanitize()), "role %q lacks privileges on schema pombo", c.Role.Name)}
}
