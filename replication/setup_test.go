package replication

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

func TestSetupMakesWhatIsMissingAndSaysSo(t *testing.T) {
	db := newDatabase(t)
	assert.Equal(t, db.named(`created table public.outbox_event
created table public.processed_event
created schema pombo
created state in schema pombo
created publication pombo
created slot SLOT
created record of slot SLOT in pombo.slot
`), db.mustSetup(SetupOptions{CreateTable: true}))

	again := db.mustSetup(SetupOptions{CreateTable: true})
	assert.Equal(t, 7, strings.Count(again, " exists\n"))
	assert.NotContains(t, again, "created")

	db.exec(`DROP TABLE processed_event`)
	assert.Contains(t, db.mustSetup(SetupOptions{CreateTable: true}), "created table public.processed_event")
}

// A slot that somebody else has made is as good, and is remembered from then on.
func TestSetupAdoptsASlot(t *testing.T) {
	db := newDatabase(t)
	db.createTable()
	db.exec(`CREATE PUBLICATION pombo FOR TABLE outbox_event WITH (publish = 'insert')`,
		`SELECT pg_create_logical_replication_slot('`+db.src.Slot+`', 'pgoutput')`)
	out := db.mustSetup(SetupOptions{})
	assert.Contains(t, out, db.named("publication pombo exists\nslot SLOT exists\ncreated record of slot SLOT"))
}

func TestDryRunPrintsTheSQLThatSetupRuns(t *testing.T) {
	for _, opts := range []SetupOptions{{CreateTable: true}, {}} {
		made, printed := newDatabase(t), newDatabase(t)
		if !opts.CreateTable {
			made.createTable()
			printed.createTable()
		}
		made.mustSetup(opts)

		before := printed.state()
		opts.DryRun = true
		script := printed.mustSetup(opts)
		assert.Equal(t, before, printed.state(), "a dry run changes nothing")
		printed.exec(statements(script)...)
		assert.Equal(t, made.state(), printed.state(), "%s", script)

		again := printed.mustSetup(opts)
		assert.Empty(t, statements(again), "what exists is not printed again: %s", again)
		assert.Contains(t, again, "-- publication pombo exists")
	}
}

func TestSetupRefusesToHideAGap(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	db.exec(`SELECT pg_drop_replication_slot('` + db.src.Slot + `')`)

	_, err := db.setup(SetupOptions{})
	got := findings(t, err)
	require.Len(t, got, 1)
	assert.Regexp(t, db.named(`^slot "SLOT", made on \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC and last seen at [0-9A-F/]+, is gone, `+
		`and events that were not published by then or were committed since are not in the stream: .*pombo setup --accept-gap`), got[0])
	_, err = Check(t.Context(), db.Conn, db.src)
	assert.Equal(t, got, findings(t, err), "run says the same")

	out := db.mustSetup(SetupOptions{AcceptGap: true})
	assert.Contains(t, out, db.named("created slot SLOT\ncreated record of slot SLOT"))
	_, err = Check(t.Context(), db.Conn, db.src)
	require.NoError(t, err)
}

func TestSetupTellsACopyFromAFailover(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	db.exec(`SELECT pg_drop_replication_slot('`+db.src.Slot+`')`, `UPDATE pombo.slot SET timeline = timeline + 6`)
	_, err := db.setup(SetupOptions{})
	require.ErrorContains(t, err, "on timeline 7, and a failover to timeline 1 has left it behind")
	db.exec(`UPDATE pombo.slot SET system_identifier = 1`)
	_, err = db.setup(SetupOptions{})
	require.ErrorContains(t, err, "on another server or in another database, which this one is a copy of")
}

func TestSetupRefusesAPublicationYoungerThanTheSlot(t *testing.T) {
	db := newDatabase(t)
	db.createTable()
	db.exec(`SELECT pg_create_logical_replication_slot('` + db.src.Slot + `', 'pgoutput')`)
	_, err := db.setup(SetupOptions{})
	got := findings(t, err)
	require.Len(t, got, 1)
	assert.Contains(t, got[0], db.named(`publication "pombo" does not exist, and a new one would be younger than slot "SLOT"`))
	assert.Contains(t, got[0], "run `pombo teardown`, then `pombo setup`")
}

func TestSetupNamesEveryMissingPrivilegeBeforeItChangesAnything(t *testing.T) {
	db := newDatabase(t)
	db.createTable()
	db.exec(`REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	before := db.state()
	app := db.as("")
	_, err := app.setup(SetupOptions{CreateTable: true})
	got := findings(t, err)
	require.Len(t, got, 4)
	for i, right := range []string{"REPLICATION", "CREATE on database", `CREATE on schema "public"`, `ownership of table "public"."outbox_event"`} {
		assert.Contains(t, got[i], "lacks "+right)
	}
	assert.Equal(t, before, db.state())

	for _, finding := range got {
		db.exec(inBackticks(finding)[0])
	}
	app.mustSetup(SetupOptions{CreateTable: true})
	_, err = Check(t.Context(), app.Conn, app.src)
	require.NoError(t, err)
}

func TestSetupNamesThePrivilegesOnAStateThatAnotherRoleMade(t *testing.T) {
	db := newDatabase(t)
	script := db.mustSetup(SetupOptions{CreateTable: true, DryRun: true})
	db.exec(statements(script)...)
	app := db.as("REPLICATION")
	_, err := app.setup(SetupOptions{})
	got := findings(t, err)
	require.Len(t, got, 1)
	assert.Contains(t, got[0], "lacks privileges on schema pombo")
	db.exec(inBackticks(got[0])[0])
	assert.NotContains(t, app.mustSetup(SetupOptions{}), "created")
}

// What a role may not do, a DBA may: the dry run is for them.
func TestDryRunNeedsNoPrivileges(t *testing.T) {
	db := newDatabase(t)
	app := db.as("")
	script := app.mustSetup(SetupOptions{CreateTable: true, DryRun: true})
	assert.Contains(t, script, "-- Not by this role: role \""+app.Config().User+"\" lacks REPLICATION: ")
	db.exec(statements(script)...)
	_, err := Check(t.Context(), db.Conn, db.src)
	require.NoError(t, err)
}

func TestSetupRefusesATableThatTheEventsDoNotFit(t *testing.T) {
	db := newDatabase(t)
	db.src.Schema = "app"
	db.src.Columns = append(db.src.Columns, "tenant")
	_, err := db.setup(SetupOptions{CreateTable: true})
	got := findings(t, err)
	require.Len(t, got, 2)
	assert.Contains(t, got[0], "schema \"app\" does not exist: run `CREATE SCHEMA \"app\"`")
	assert.Contains(t, got[1], `the table that --create-table makes has no column "tenant"`)
}

func TestSetupRefusesWhereNoSlotIsLeft(t *testing.T) {
	s := &setup{catalog: new(catalog), rights: &rights{SchemaExists: true}, opts: SetupOptions{CreateTable: true}}
	got := findings(t, errors.Join(s.obstacles()...))
	assert.Equal(t, []string{"all slots that max_replication_slots allows are taken: drop a slot that nobody needs, or raise max_replication_slots and restart Postgres"}, got)
	s.rights.SlotsLeft = 1
	assert.Empty(t, s.obstacles())
}

// Creating a slot waits until those who write have ended, which can look like a hang.
func TestSetupSaysWhomTheSlotWaitsFor(t *testing.T) {
	db := newDatabase(t)
	db.createTable()
	writer := connect(t, db.dsn)
	tx, err := writer.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `CREATE TABLE unfinished ()`)
	require.NoError(t, err)

	lines, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := Setup(t.Context(), db.Conn, db.src, SetupOptions{}, out)
		_ = out.Close()
		done <- err
	}()
	note := fmt.Sprintf("slot %s waits for the transaction of pid %d ", db.src.Slot, writer.PgConn().PID())
	for scanner := bufio.NewScanner(lines); scanner.Scan(); {
		if strings.HasPrefix(scanner.Text(), note) {
			require.NoError(t, tx.Rollback(t.Context()))
			note = "-" // and from now on it is done as usual
		}
	}
	require.NoError(t, <-done)
	assert.Equal(t, "-", note, "setup has said whom it waits for")
}

func TestSetupThatWaitsCanBeStopped(t *testing.T) {
	db := newDatabase(t)
	db.createTable()
	tx, err := connect(t, db.dsn).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `CREATE TABLE unfinished ()`)
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	pid := db.Conn.PgConn().PID()
	require.ErrorIs(t, Setup(ctx, db.Conn, db.src, SetupOptions{}, io.Discard), context.DeadlineExceeded)
	db.Conn = connect(t, db.dsn)
	require.Eventually(t, func() bool { // the request to cancel is on its way; after a rollback that comes first, the slot is made
		var left int
		require.NoError(t, db.Conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, pid).Scan(&left))
		return left == 0
	}, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, tx.Rollback(t.Context()))
	assert.Contains(t, db.mustSetup(SetupOptions{}), "created slot", "nothing half made is in the way")
}

func TestSetupsAtTheSameTimeDoNotMeet(t *testing.T) {
	db := newDatabase(t)
	var group errgroup.Group
	for range 4 {
		conn := connect(t, db.dsn)
		group.Go(func() error {
			return Setup(t.Context(), conn, db.src, SetupOptions{CreateTable: true}, io.Discard)
		})
	}
	require.NoError(t, group.Wait())
	_, err := Check(t.Context(), db.Conn, db.src)
	require.NoError(t, err)
}

func (db *database) createTable() {
	db.exec(`CREATE TABLE outbox_event (id uuid, aggregate_type text, aggregate_id text, event_type text, payload text)`)
}

// named puts the name of the slot in its place.
func (db *database) named(text string) string { return strings.ReplaceAll(text, "SLOT", db.src.Slot) }

// state describes all that setup makes, without names and times that differ from run to run.
func (db *database) state() string {
	db.t.Helper()
	const query = `
SELECT jsonb_pretty(jsonb_build_object(
  'columns', (SELECT jsonb_agg(concat_ws(' ', c.relnamespace::regnamespace, c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.atthasdef)
    ORDER BY c.relname, a.attnum) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relkind = 'r' AND a.attnum > 0 AND c.relnamespace::regnamespace::text IN ('public', 'pombo')),
  'indexes', (SELECT jsonb_agg(indexdef ORDER BY indexdef) FROM pg_indexes WHERE schemaname IN ('public', 'pombo')),
  'publications', (SELECT jsonb_agg(to_jsonb(p) - 'oid') FROM pg_publication p),
  'published', (SELECT jsonb_agg(to_jsonb(t)) FROM pg_publication_tables t),
  'slots', (SELECT jsonb_agg(concat_ws(' ', plugin, slot_type, temporary, two_phase)) FROM pg_replication_slots WHERE database = current_database()),
  'migrations', CASE WHEN to_regclass('pombo.migration') IS NOT NULL THEN (SELECT query_to_xml('SELECT version_id, is_applied FROM pombo.migration ORDER BY id', true, true, ''))::text END,
  'slot memory', CASE WHEN to_regclass('pombo.slot') IS NOT NULL THEN (SELECT query_to_xml('SELECT publication, system_identifier, timeline, database_oid = (SELECT oid FROM pg_database WHERE datname = current_database()) FROM pombo.slot', true, true, ''))::text END
))`
	var state string
	db.exec(`SET jit = off`) // compiling the query takes far longer than running it
	require.NoError(db.t, db.QueryRow(db.t.Context(), query).Scan(&state))
	return state
}
