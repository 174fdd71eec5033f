package replication

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pombo-cdc/pombo/migrations"
)

const (
	// setupLock is the advisory lock that keeps two setups of a database from doing the same at once.
	setupLock = 0x706f6d626f // "pombo"

	// quietTime is how long the slot may take before setup says what it waits for.
	quietTime = time.Second
)

// SetupOptions say what Setup may do besides the usual.
type SetupOptions struct {
	CreateTable bool // make the outbox table and processed_event too
	AcceptGap   bool // make a new slot in place of one that is gone, or take one as it is that was moved, without the events in between
	DryRun      bool // print the SQL, change nothing
}

// setup is one call of Setup.
type setup struct {
	conn    *pgx.Conn
	src     Source
	opts    SetupOptions
	out     io.Writer
	catalog *catalog
	rights  *rights
	memory  *memory // nil: no slot is remembered
	db      *sql.DB // a second session, for what the first is too busy for
	state   *migrations.State
}

// Setup makes what is missing and tells out what it did, a line a step; it is safe to run again.
// Before it changes anything it looks for everything that stands in the way, and its error joins
// an ActionError for each.
//
// The order matters: a slot decodes a row with the catalog as it was when the row was written, so the
// publication has to be older than the slot.
func Setup(ctx context.Context, conn *pgx.Conn, src Source, opts SetupOptions, out io.Writer) error {
	db := stdlib.OpenDB(*conn.Config())
	defer func() { _ = db.Close() }()
	s := &setup{conn: conn, src: src, opts: opts, out: out, db: db}
	if !opts.DryRun {
		unlock, err := s.lock(ctx)
		if err != nil {
			return err
		}
		defer unlock()
	}
	if err := s.look(ctx); err != nil {
		return err
	}
	findings := slices.Concat(s.catalog.checkWALLevel(), s.obstacles(), checkState(s.catalog, s.rights))
	privileges := slices.Concat(s.catalog.checkRole(), s.missingPrivileges())
	if !opts.DryRun { // whose output is for a role that has them
		findings = append(findings, privileges...)
	}
	if err := errors.Join(findings...); err != nil {
		return err
	}
	steps, err := s.steps(ctx)
	if err != nil {
		return err
	}
	if opts.DryRun {
		s.print(steps, privileges)
		return nil
	}
	return s.take(ctx, steps)
}

// lock waits until no other setup runs in the database.
func (s *setup) lock(ctx context.Context) (unlock func(), err error) {
	var locked bool
	if err := s.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, setupLock).Scan(&locked); err != nil {
		return nil, fmt.Errorf("lock out other setups: %w", err)
	}
	if !locked {
		fmt.Fprintln(s.out, "waiting for another setup to end")
		if _, err := s.conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, setupLock); err != nil {
			return nil, fmt.Errorf("lock out other setups: %w", err)
		}
	}
	return func() {
		// Where this fails, the end of the session unlocks.
		_, _ = s.conn.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock($1)`, setupLock)
	}, nil
}

// look reads how things are.
func (s *setup) look(ctx context.Context) (err error) {
	if s.catalog, err = readCatalog(ctx, s.conn, s.src); err != nil {
		return err
	}
	if s.rights, err = readRights(ctx, s.conn, s.src); err != nil {
		return err
	}
	if s.memory, err = s.catalog.recall(ctx, s.conn, s.src); err != nil {
		return err
	}
	s.state, err = migrations.NewState(s.db)
	return err
}

// step makes one thing that may be there already.
type step struct {
	object string // what it is called in the report
	exists bool
	sql    string                      // that makes it
	take   func(context.Context) error // that makes it in place of sql, with the same effect
}

// steps lists what setup takes care of, in the order in which it has to be made.
func (s *setup) steps(ctx context.Context) ([]step, error) {
	c, src := s.catalog, s.src
	tables, err := s.tables()
	if err != nil {
		return nil, err
	}
	pending, err := s.state.Pending(ctx)
	if err != nil {
		return nil, err
	}
	return append(tables,
		step{object: "schema pombo", exists: s.rights.StateExists, sql: "CREATE SCHEMA pombo;\n"},
		step{object: "state in schema pombo", exists: pending == "", sql: pending, take: s.state.Up},
		step{object: "publication " + src.Publication, exists: c.Publication != nil, sql: fmt.Sprintf(
			"CREATE PUBLICATION %s FOR TABLE %s WITH (publish = 'insert', publish_via_partition_root = true);\n", src.publication(), src.table())},
		step{object: "slot " + src.Slot, exists: c.Slot != nil, sql: createSlotSQL(src) + ";\n", take: s.createSlot},
		step{object: "record of slot " + src.Slot + " in pombo.slot", exists: c.Slot != nil && s.remembers(), sql: rememberSQL(src) + ";\n"},
	), nil
}

// remembers reports whether what is remembered is the slot that exists, as it is.
func (s *setup) remembers() bool {
	return s.memory != nil && s.memory.Publication == s.src.Publication && len(s.catalog.checkMemory(s.src, s.memory)) == 0
}

// tables are the steps that concern the user's schema.
func (s *setup) tables() ([]step, error) {
	src := s.src
	outbox := step{object: fmt.Sprintf("table %s.%s", src.Schema, src.Table), exists: s.catalog.Table != nil}
	if !s.opts.CreateTable {
		return []step{outbox}, nil
	}
	processed := step{object: fmt.Sprintf("table %s.processed_event", src.Schema), exists: s.rights.ProcessedExists}
	var err error
	if outbox.sql, err = migrations.Outbox(src.Schema, src.Table); err != nil {
		return nil, err
	}
	if processed.sql, err = migrations.ProcessedEvent(src.Schema); err != nil {
		return nil, err
	}
	return []step{outbox, processed}, nil
}

// print writes the steps for a person with the privileges to take them.
func (s *setup) print(steps []step, privileges []error) {
	s.comment("For database %s, by psql or statement by statement: a slot cannot be created in a transaction that writes.",
		s.catalog.Server.Database)
	for _, err := range privileges {
		s.comment("Not by this role: %v.", err)
	}
	for _, step := range steps {
		fmt.Fprintln(s.out)
		if step.exists {
			s.comment("%s exists", step.object)
			continue
		}
		s.comment("create %s", step.object)
		fmt.Fprint(s.out, step.sql)
	}
}

// comment writes an SQL comment, which no name in it can end.
func (s *setup) comment(format string, args ...any) {
	fmt.Fprintln(s.out, "--", strings.NewReplacer("\n", " ", "\r", " ").Replace(fmt.Sprintf(format, args...)))
}

// take takes the steps that are missing.
func (s *setup) take(ctx context.Context, steps []step) error {
	for _, step := range steps {
		if step.exists {
			fmt.Fprintf(s.out, "%s exists\n", step.object)
			continue
		}
		take := step.take
		if take == nil {
			take = func(ctx context.Context) error { return execScript(ctx, s.conn, step.sql) }
		}
		if err := take(ctx); err != nil {
			return fmt.Errorf("create %s: %w", step.object, err)
		}
		fmt.Fprintf(s.out, "created %s\n", step.object)
	}
	return nil
}

// execScript runs statements in one transaction.
func execScript(ctx context.Context, conn *pgx.Conn, script string) error {
	_, err := conn.Exec(ctx, script, pgx.QueryExecModeSimpleProtocol)
	return err
}

func createSlotSQL(src Source) string {
	return fmt.Sprintf("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", quoteLiteral(src.Slot))
}

// createSlot creates the slot, which takes until the transactions that write now have ended. While it
// waits it says for whom.
func (s *setup) createSlot(ctx context.Context) error {
	creator := s.conn.PgConn().PID()
	created := make(chan error, 1)
	go func() {
		_, err := s.conn.Exec(ctx, createSlotSQL(s.src))
		created <- err
	}()
	ticker := time.NewTicker(quietTime)
	defer ticker.Stop()
	said := ""
	for {
		select {
		case err := <-created:
			return err
		case <-ticker.C:
			if blocker := s.blocker(ctx, creator); blocker != said {
				said = blocker
				fmt.Fprintf(s.out, "slot %s waits for %s to end\n", s.src.Slot, blocker)
			}
		}
	}
}

// blocker names the transaction that the session with the given pid waits for.
func (s *setup) blocker(ctx context.Context, pid uint32) string {
	const query = `
SELECT b.pid, coalesce(a.usename, ''), coalesce(a.application_name, '')
FROM unnest(pg_blocking_pids($1)) b(pid) LEFT JOIN pg_stat_activity a USING (pid)
LIMIT 1`
	var (
		blocking          int32
		role, application string
	)
	switch err := s.db.QueryRowContext(ctx, query, pid).Scan(&blocking, &role, &application); {
	case err != nil:
		return "open transactions" // whose they are is a courtesy
	case blocking == 0:
		return "a prepared transaction"
	}
	return fmt.Sprintf("the transaction of pid %d (role %q, application %q)", blocking, role, application)
}
