package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Health is what Check has found where nothing keeps a stream from working.
type Health struct {
	Slot      Slot
	Warnings  []string // sentences about what is allowed and can surprise
	MayRecord bool     // the role may keep a Record
}

// Check verifies what streaming needs. Its error joins an ActionError for each thing that is wrong, or is
// one that may pass: the server cannot be asked, or is a standby. A slot that another session holds is no
// error: see its ActivePID.
//
// The role needs no privilege but LOGIN and REPLICATION.
func Check(ctx context.Context, conn *pgx.Conn, src Source) (Health, error) {
	c, err := readCatalog(ctx, conn, src)
	if err != nil {
		return Health{}, err
	}
	var m *memory
	if c.Slot == nil || !c.Slot.Active { // otherwise it has been looked at, and a standby asks often
		if m, err = c.recall(ctx, conn, src); err != nil {
			return Health{}, err
		}
	}
	findings := c.checkStream(src)
	if c.Slot == nil {
		return Health{}, errors.Join(append(findings, missingSlot(src, m))...)
	}
	findings = slices.Concat(findings, c.checkSlot(src), c.checkMemory(src, m))
	return Health{
		Slot:      *c.Slot,
		Warnings:  slices.Concat(c.Table.warnings(src), c.doubt(m)),
		MayRecord: c.MayRecord,
	}, errors.Join(findings...)
}

// CheckStream verifies what streaming needs beside a slot of one's own. Its error is as that of Check.
func CheckStream(ctx context.Context, conn *pgx.Conn, src Source) error {
	c, err := readCatalog(ctx, conn, src)
	if err != nil {
		return err
	}
	return errors.Join(c.checkStream(src)...)
}

func (c *catalog) checkStream(src Source) []error {
	return slices.Concat(c.checkWALLevel(), c.checkRole(), c.checkTable(src), c.checkPublication(src))
}

// finding returns an ActionError whose problem is formatted.
func finding(cure, problem string, args ...any) error {
	return &ActionError{Problem: fmt.Sprintf(problem, args...), Cure: cure}
}

func (c *catalog) checkWALLevel() []error {
	if c.Server.WALLevel == "logical" {
		return nil
	}
	return []error{finding(
		"run `ALTER SYSTEM SET wal_level = logical` and restart Postgres (on Amazon RDS set rds.logical_replication = 1)",
		"wal_level is %s, and replication of rows needs logical", c.Server.WALLevel)}
}

func (c *catalog) checkRole() []error {
	if c.Role.MayReplicate {
		return nil
	}
	role := pgx.Identifier{c.Role.Name}.Sanitize()
	return []error{finding(
		fmt.Sprintf("run `ALTER ROLE %s REPLICATION` as a superuser (on Amazon RDS `GRANT rds_replication TO %s`)", role, role),
		"role %q lacks REPLICATION", c.Role.Name)}
}

func (c *catalog) checkTable(src Source) []error {
	t := c.Table
	if t == nil {
		return []error{finding("create it, with `pombo setup --create-table` if you like, or name another one with --table",
			"table %s does not exist in database %q", src.table(), c.Server.Database)}
	}
	if t.Kind != "r" && t.Kind != "p" { // ordinary or partitioned
		return []error{finding("name the outbox table with --table", "%s is no table but %s, which is not replicated", src.table(), t.kind())}
	}
	var findings []error
	if t.Persistence != "p" {
		findings = append(findings, finding(fmt.Sprintf("run `ALTER TABLE %s SET LOGGED`", src.table()),
			"table %s is unlogged, so its rows are not in the WAL", src.table()))
	}
	var missing, generated []string
	for _, column := range t.Columns {
		switch {
		case !column.Exists:
			missing = append(missing, fmt.Sprintf("%q", column.Name))
		case column.Generated && !c.publishesGenerated(column.Name):
			generated = append(generated, fmt.Sprintf("%q", column.Name))
		}
	}
	if len(missing) > 0 {
		findings = append(findings, finding("add what is missing, or say which columns to take with --column and --header",
			"table %s has no column %s", src.table(), strings.Join(missing, ", ")))
	}
	if len(generated) > 0 {
		findings = append(findings, finding("store the value in an ordinary column, or take another with --column and --header",
			"table %s computes %s, and generated columns are not replicated", src.table(), strings.Join(generated, ", ")))
	}
	return findings
}

// warnings are of what the table has that is not replicated. There may be no table.
func (t *table) warnings(src Source) []string {
	if t == nil || len(t.Children) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("table %s has children by inheritance (%s), whose rows are not published: write to the table itself, or partition it",
		src.table(), strings.Join(t.Children, ", "))}
}

// kind names what is not a table.
func (t *table) kind() string {
	switch t.Kind {
	case "v", "m":
		return "a view"
	case "f":
		return "a foreign table"
	default:
		return "something else"
	}
}

// publishesGenerated reports whether the publication has been told to publish a generated column, which is
// possible since version 18. Version 15 lists such columns although it leaves them out.
func (c *catalog) publishesGenerated(column string) bool {
	return c.Server.Version >= 180000 && c.Publication != nil && c.Publication.Entry != nil &&
		slices.Contains(c.Publication.Entry.Columns, column)
}

// tooLate warns of what a change of the publication cannot bring back.
const tooLate = "rows written before that are not in the stream, so publish those yourself"

func (c *catalog) checkPublication(src Source) []error {
	p := c.Publication
	switch {
	case p == nil && c.Slot == nil:
		return []error{finding("run `pombo setup`", "publication %q does not exist in database %q", src.Publication, c.Server.Database)}
	case p == nil:
		return []error{finding("run `pombo teardown`, then `pombo setup`, and publish from the table what the old slot had not confirmed",
			"publication %q does not exist, and a new one would be younger than slot %q, which can then not be decoded", src.Publication, src.Slot)}
	}
	alter := func(change string) string {
		return fmt.Sprintf("run `ALTER PUBLICATION %s %s`", src.publication(), change)
	}
	var findings []error
	if !p.Insert {
		findings = append(findings, finding(alter("SET (publish = 'insert')")+"; "+tooLate,
			"publication %q does not publish inserts", src.Publication))
	}
	switch {
	case c.Table != nil && c.Table.Kind == "p" && !p.ViaRoot:
		findings = append(findings, finding(alter("SET (publish_via_partition_root = true)")+"; "+tooLate,
			"publication %q publishes rows of the partitioned table %s under the names of its partitions", src.Publication, src.table()))
	case p.Entry == nil && !p.AllTables:
		findings = append(findings, finding(alter("ADD TABLE "+src.table())+"; "+tooLate,
			"publication %q lacks table %s%s: it was never added, or the table was dropped, renamed or made anew", src.Publication, src.table(), p.contents()))
	case p.Entry == nil && c.Table != nil && c.Table.Kind == "r" && c.Table.Persistence == "p":
		findings = append(findings, finding("name the partitioned table with --table",
			"table %s is a partition, and publication %q publishes its rows under the name of the whole", src.table(), src.Publication))
	case p.Entry != nil:
		findings = append(findings, c.checkEntry(src, p.Entry)...)
	}
	return findings
}

// contents says what the publication has instead of the table.
func (p *publication) contents() string {
	if len(p.Tables) == 0 {
		return " and is empty"
	}
	return " (it has " + strings.Join(p.Tables, ", ") + ")"
}

// checkEntry looks for rows and columns that the publication leaves out.
func (c *catalog) checkEntry(src Source, e *entry) []error {
	var findings []error
	whole := fmt.Sprintf("run `BEGIN; ALTER PUBLICATION %[1]s DROP TABLE %[2]s; ALTER PUBLICATION %[1]s ADD TABLE %[2]s; COMMIT`; %[3]s",
		src.publication(), src.table(), tooLate)
	if e.RowFilter != "" {
		findings = append(findings, finding(whole,
			"publication %q leaves out rows of table %s, by the filter %s", src.Publication, src.table(), e.RowFilter))
	}
	if e.Columns == nil || c.Table == nil {
		return findings
	}
	var lacking []string
	for _, column := range c.Table.Columns {
		if column.Exists && !column.Generated && !slices.Contains(e.Columns, column.Name) {
			lacking = append(lacking, fmt.Sprintf("%q", column.Name))
		}
	}
	if len(lacking) > 0 {
		findings = append(findings, finding(whole,
			"publication %q leaves out column %s of table %s", src.Publication, strings.Join(lacking, ", "), src.table()))
	}
	return findings
}

func (c *catalog) checkSlot(src Source) []error {
	s := c.Slot
	another := "name another slot with --slot, and run `pombo setup` to create it"
	switch {
	case s.Type != "logical":
		return []error{finding(another, "slot %q is a physical one, which serves a standby server", src.Slot)}
	case s.Temporary:
		return []error{finding(another, "slot %q is temporary: it ends with the session that made it", src.Slot)}
	case s.Plugin != "pgoutput":
		return []error{finding(another, "slot %q was made with plugin %s, and pgoutput is needed", src.Slot, s.Plugin)}
	case s.Database != c.Server.Database:
		return []error{finding(another, "slot %q belongs to database %q, not to %q", src.Slot, s.Database, c.Server.Database)}
	case s.WALStatus == "lost":
		return []error{lostSlot(s)}
	}
	return nil
}

func lostSlot(s *Slot) error {
	reason := s.InvalidationReason
	if reason == "" {
		reason = "it fell behind by more than max_slot_wal_keep_size"
	}
	return finding("publish from the table what was committed after that, and run `pombo teardown`, then `pombo setup`",
		"slot %q is lost (%s): what it had not confirmed at %s can no longer be read from it", s.Name, reason, s.ConfirmedFlush)
}
