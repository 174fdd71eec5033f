package replication

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/stack"
)

// shared is the server of the tests of the package that need one. Each has a database and a slot of its own in it.
var shared stack.SharedPostgres

func TestMain(m *testing.M) { shared.Run(m) }

func postgres(t *testing.T) *stack.Postgres {
	t.Helper()
	server, err := shared.Get()
	require.NoError(t, err)
	return server
}

// database is a database with nothing in it, which goes when the test ends.
type database struct {
	*pgx.Conn // of a superuser
	t         *testing.T
	dsn       string
	src       Source // with the reference system's table
}

func newDatabase(t *testing.T) *database {
	t.Helper()
	name := fmt.Sprintf("pombo_test_%d", rand.Uint32())
	dsn, err := postgres(t).CreateDatabase(t.Context(), name)
	require.NoError(t, err)
	t.Cleanup(func() { dropDatabase(t, name) })
	db := &database{t: t, dsn: dsn, Conn: connect(t, dsn), src: Source{
		Slot: name, Publication: "pombo", Schema: "public", Table: "outbox_event",
		Columns: []string{"id", "aggregate_type", "aggregate_id", "event_type", "payload"},
	}}
	db.src.Postgres = db.Config()
	return db
}

// dropDatabase drops a database with its slots, which would keep it, and its roles.
func dropDatabase(t *testing.T, name string) {
	ctx := context.Background()
	admin, err := pgx.Connect(ctx, postgres(t).DSN("postgres"))
	require.NoError(t, err)
	defer func() { _ = admin.Close(ctx) }()
	_, err = admin.Exec(ctx, `SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE active AND database = $1`, name)
	require.NoError(t, err)
	_, err = admin.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1`, name)
	require.NoError(t, err)
	_, err = admin.Exec(ctx, `DROP DATABASE `+name+` WITH (FORCE)`)
	require.NoError(t, err)
	rows, err := admin.Query(ctx, `SELECT rolname FROM pg_roles WHERE starts_with(rolname, $1)`, name)
	require.NoError(t, err)
	roles, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	for _, role := range roles {
		_, err = admin.Exec(ctx, `DROP ROLE `+role)
		require.NoError(t, err)
	}
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// exec runs statements one by one, as psql does.
func (db *database) exec(statements ...string) {
	db.t.Helper()
	for _, statement := range statements {
		_, err := db.Exec(context.Background(), statement, pgx.QueryExecModeSimpleProtocol)
		require.NoError(db.t, err, statement)
	}
}

func (db *database) setup(opts SetupOptions) (string, error) {
	var out strings.Builder
	err := Setup(db.t.Context(), db.Conn, db.src, opts, &out)
	return out.String(), err
}

func (db *database) mustSetup(opts SetupOptions) string {
	db.t.Helper()
	out, err := db.setup(opts)
	require.NoError(db.t, err)
	return out
}

// as returns the database as a new role with the given attributes sees it.
func (db *database) as(attributes string) *database {
	db.t.Helper()
	role := fmt.Sprintf("%s_role_%d", db.Config().Database, rand.Uint32())
	db.exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'secret' ` + attributes)
	other := *db
	cfg := db.Config()
	cfg.User, cfg.Password = role, "secret"
	var err error
	other.Conn, err = pgx.ConnectConfig(db.t.Context(), cfg)
	require.NoError(db.t, err)
	db.t.Cleanup(func() { _ = other.Close(context.Background()) })
	other.src.Postgres = cfg
	return &other
}

// findings returns the ActionErrors that err joins, and fails if it joins anything else.
func findings(t *testing.T, err error) []string {
	t.Helper()
	var joined interface{ Unwrap() []error }
	require.ErrorAs(t, err, &joined)
	var all []string
	for _, err := range joined.Unwrap() {
		var action *ActionError
		require.ErrorAs(t, err, &action)
		all = append(all, action.Error())
	}
	return all
}

// inBackticks returns the SQL that a finding tells the operator to run.
func inBackticks(finding string) []string {
	var sql []string
	for i, part := range strings.Split(finding, "`") {
		if i%2 == 1 {
			sql = append(sql, part)
		}
	}
	return sql
}

// statements takes a script apart.
func statements(script string) []string {
	all := strings.Split(script, ";\n")
	return all[:len(all)-1]
}

func (db *database) version() int {
	db.t.Helper()
	var version int
	require.NoError(db.t, db.QueryRow(db.t.Context(), `SELECT current_setting('server_version_num')::int`).Scan(&version))
	return version
}

// hold reads the slot in a session of its own until the test ends, and returns that session's pid.
func (db *database) hold() int32 {
	db.t.Helper()
	cfg := db.Config().Config.Copy()
	cfg.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(db.t.Context(), cfg)
	require.NoError(db.t, err)
	db.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	err = pglogrepl.StartReplication(db.t.Context(), conn, db.src.Slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names " + quoteLiteral(db.src.publication())},
	})
	require.NoError(db.t, err)
	return int32(conn.PID())
}
