package integration

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// E01, E03, E04, E06, D06: what only an operator can cure ends the connector with exit code 3 and a sentence that names the
// thing and the way out. Nothing is repaired behind the operator's back.
func TestWhatOnlyAnOperatorCanCureEndsWithExitCode3(t *testing.T) {
	for name, c := range map[string]struct{ breakIt, says, cure string }{
		"slot dropped": {
			`SELECT pg_drop_replication_slot(current_database())`, "slot", "setup",
		},
		"slot of another plugin": {
			`SELECT pg_drop_replication_slot(current_database()); SELECT pg_create_logical_replication_slot(current_database(), 'test_decoding')`, "test_decoding", "pgoutput",
		},
		"physical slot": {
			`SELECT pg_drop_replication_slot(current_database()); SELECT pg_create_physical_replication_slot(current_database())`, "physical", "slot",
		},
		"publication dropped": {
			`DO $$ BEGIN EXECUTE 'DROP PUBLICATION ' || current_database(); END $$`, "publication", "setup",
		},
		"publication without the table": {
			`DO $$ BEGIN EXECUTE 'ALTER PUBLICATION ' || current_database() || ' DROP TABLE outbox_event'; END $$`, "publication", "ADD TABLE",
		},
		"publication without inserts": {
			`DO $$ BEGIN EXECUTE 'ALTER PUBLICATION ' || current_database() || ' SET (publish = ''update'')'; END $$`, "insert", "ALTER PUBLICATION",
		},
		"table dropped and created again": {
			`CREATE TABLE again (LIKE outbox_event INCLUDING ALL); DROP TABLE outbox_event; ALTER TABLE again RENAME TO outbox_event`, "publication", "ADD TABLE",
		},
		"column renamed": {
			`ALTER TABLE outbox_event RENAME payload TO body`, "payload", "--column",
		},
		"table missing": {
			`DROP TABLE outbox_event`, "outbox_event", "--create-table",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutbox(t)
			_, err := o.conn.PgConn().Exec(o.ctx, c.breakIt).ReadAll()
			require.NoError(t, err)
			p := o.run()
			require.Equal(t, 3, p.wait())
			require.Contains(t, p.out.String(), c.says)
			require.Contains(t, p.out.String(), c.cure)
			require.NotContains(t, p.out.String(), "streaming")
		})
	}
}

// E01: a slot that vanished is not made anew by accident.
func TestSetupDoesNotHideAGap(t *testing.T) {
	o := newOutbox(t)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	code, out := pombo(t, o.args("setup")...)
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "--accept-gap")
	o.setup("--accept-gap")
	o.streaming()
}

// E06: a publication that is younger than the slot cannot be used at the slot's position.
func TestAPublicationThatIsYoungerThanTheSlotIsExplained(t *testing.T) {
	o := newDatabase(t)
	o.exec(looseTable)
	o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, o.name)
	o.insertRow("Order", "k", "t", "v")
	o.exec(`CREATE PUBLICATION ` + o.name + ` FOR TABLE outbox_event WITH (publish = 'insert')`)
	p := o.run()
	require.Equal(t, 3, p.wait())
	require.Contains(t, p.out.String(), "did not exist at the position")
	require.Contains(t, p.out.String(), "pombo setup")
}

// E10.
func TestWalLevelThatIsNotLogicalIsExplained(t *testing.T) {
	o, _ := newDatabaseOnOwnPostgres(t, map[string]string{"wal_level": "replica"})
	code, out := pombo(t, o.args("setup", "--create-table")...)
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "wal_level")
	require.Contains(t, out, "restart")
	p := o.run()
	require.Equal(t, 3, p.wait())
	require.Contains(t, p.out.String(), "wal_level")
}

// E12: streaming needs LOGIN and REPLICATION, and nothing else.
func TestARoleThatMayOnlyReplicateCanRun(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	role := o.role("NOREPLICATION", "secret")
	p := o.run("--postgres", o.dsnOf(role, "secret"))
	require.Equal(t, 3, p.wait())
	require.Contains(t, p.out.String(), "REPLICATION")

	o.exec(`ALTER ROLE ` + role + ` REPLICATION`)
	o.streaming("--postgres", o.dsnOf(role, "secret"))
	o.commit(o.event("Order", "k", "t", "v"))
	o.arrived()
}

func (o *outbox) role(attributes, password string) string {
	o.t.Helper()
	role := o.name + "_role"
	o.exec(`CREATE ROLE ` + role + ` LOGIN ` + attributes + ` PASSWORD '` + strings.ReplaceAll(password, "'", "''") + `'`)
	o.t.Cleanup(func() {
		_, err := o.conn.Exec(context.Background(), `DROP ROLE `+role)
		require.NoError(o.t, err)
	})
	return role
}

func (o *outbox) dsnOf(role, password string) string {
	o.t.Helper()
	u, err := url.Parse(o.dsn)
	require.NoError(o.t, err)
	u.User = url.UserPassword(role, password)
	return u.String()
}

// I01: passwords of every kind reach the server, and nobody else.
func TestPasswordsWithSpecialCharactersWorkAndAreNeverShown(t *testing.T) {
	const password = `p@s:s/w%rd #?&'\ ü€"`
	o := newPasswordOutbox(t)
	role := o.role("REPLICATION", password)
	encoded := o.dsnOf(role, password)
	p := o.streaming("--postgres", encoded, "--log-level", "trace")
	code, _ := p.stop()
	require.Zero(t, code)
	require.NotContains(t, p.out.String(), password)

	wrong := o.run("--postgres", o.dsnOf(role, "canary-password"), "--log-level", "trace")
	require.Equal(t, 1, wrong.wait(), "a wrong password at the first start is no reason to wait")
	require.Contains(t, wrong.out.String(), "password authentication failed")
	require.NotContains(t, wrong.out.String(), "canary-password")

	host := encoded[strings.LastIndex(encoded, "@"):]
	raw := "postgres://" + role + ":" + password + host
	code, out := pombo(t, o.args("run", "--brokers", "localhost", "--postgres", raw)...)
	require.Equal(t, 2, code, out)
	require.Contains(t, out, "percent")
	require.NotContains(t, out, "s/w%rd")
}

func TestStatusSaysHowFarTheSlotIs(t *testing.T) {
	o := newOutbox(t)
	o.commit(o.event("Order", "k", "t", "v"))
	code, out := pombo(t, "status", "--postgres", o.dsn, "--slot", o.name)
	require.Zero(t, code, out)
	require.Contains(t, out, "not active")

	p := o.streaming()
	o.awaitConfirmed(o.walEnd())
	code, out = pombo(t, "status", "--postgres", o.dsn, "--slot", o.name, "--json")
	require.Zero(t, code, out)
	var status map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &status))
	require.Equal(t, o.name, status["slot"])
	require.Equal(t, true, status["active"])
	require.Contains(t, status, "lag_bytes")
	code, _ = p.stop()
	require.Zero(t, code)
}

func TestTailPrintsEventsAndLeavesNothingBehind(t *testing.T) {
	o := newOutbox(t)
	p := start(t, "tail", "--postgres", o.dsn, "--publication", o.name, "--json", "--route", "Order=orders")
	o.await("tail has a temporary slot", func() bool { return o.temporarySlots() == 1 })
	e := o.event("Order", "42", "OrderCreated", `{"total":1}`)
	o.commit(e)
	p.await(e.ID)
	code, took := p.stop()
	require.Zero(t, code)
	require.Less(t, took, 5*time.Second)
	for _, want := range []string{`"topic":"orders"`, `"key":"42"`, `{\"total\":1}`, "OrderCreated"} {
		require.Contains(t, p.out.String(), want)
	}
	o.await("the slot is gone", func() bool { return o.temporarySlots() == 0 })
}

func TestTailNamesWhatIsMissing(t *testing.T) {
	o := newOutbox(t)
	code, out := pombo(t, "tail", "--postgres", o.dsn, "--publication", "nowhere")
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "does not exist in database")
	require.NotContains(t, out, "teardown")
}

func (o *outbox) temporarySlots() (n int) {
	o.t.Helper()
	require.NoError(o.t, o.conn.QueryRow(o.ctx, `SELECT count(*) FROM pg_replication_slots WHERE temporary AND active AND database = current_database()`).Scan(&n))
	return n
}

func TestTeardownLeavesTheTable(t *testing.T) {
	o := newOutbox(t)
	p := o.streaming()
	code, out := pombo(t, "teardown", "--postgres", o.dsn, "--slot", o.name, "--publication", o.name, "--yes")
	require.NotZero(t, code)
	require.Contains(t, out, "active")
	code, _ = p.stop()
	require.Zero(t, code)
	code, out = pombo(t, "teardown", "--postgres", o.dsn, "--slot", o.name, "--publication", o.name, "--yes")
	require.Zero(t, code, out)
	var left int
	require.NoError(t, o.conn.QueryRow(o.ctx, `SELECT (SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1) + (SELECT count(*) FROM pg_publication)`, o.name).Scan(&left))
	require.Zero(t, left)
	o.exec(`SELECT FROM outbox_event`)
	o.setup()
	o.streaming()
}

func TestMistakesInTheSettingsAreToldAllAtOnce(t *testing.T) {
	code, out := pombo(t, "run", "--slot", "Not A Slot", "--buffer", "-1", "--compression", "rar", "--colour", "blue", "--brokers", "")
	require.Equal(t, 2, code)
	for _, want := range []string{"slot", "buffer", "compression", "colour", "brokers"} {
		require.Contains(t, out, want)
	}
	code, out = pombo(t, "walk")
	require.Equal(t, 2, code)
	require.Contains(t, out, "walk")
}

// H04: stopped while it waits for Postgres.
func TestAStopWhilePostgresIsAwayEndsAtOnce(t *testing.T) {
	p := start(t, "run", "--postgres", "postgres://postgres@127.0.0.1:1/nowhere", "--brokers", "127.0.0.1:1")
	p.await("127.0.0.1")
	code, took := p.stop()
	require.Zero(t, code)
	require.Less(t, took, 5*time.Second)
}
