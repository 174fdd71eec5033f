package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/connector"
	"github.com/pombo-cdc/pombo/integration/stack"
)

// shared is the server of the tests of the package that need one.
var shared stack.SharedPostgres

func TestMain(m *testing.M) { shared.Run(m) }

// useDatabase isolates the test and has the commands use a new database, and a slot of its name.
func useDatabase(t *testing.T, name string) *pgx.Conn {
	t.Helper()
	isolate(t)
	ctx := context.Background()
	postgres, err := shared.Get()
	require.NoError(t, err)
	dsn, err := postgres.CreateDatabase(ctx, name)
	require.NoError(t, err)
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close(ctx))
		admin, err := pgx.Connect(ctx, postgres.DSN("postgres"))
		require.NoError(t, err)
		_, err = admin.Exec(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1", name)
		require.NoError(t, err)
		_, err = admin.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
		require.NoError(t, errors.Join(err, admin.Close(ctx)))
	})
	t.Setenv("POMBO_POSTGRES", dsn)
	t.Setenv("POMBO_SLOT", name)
	return conn
}

// isolate clears the environment of everything that settings come from.
func isolate(t *testing.T) {
	t.Helper()
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "POMBO_") || strings.HasPrefix(name, "PG") {
			t.Setenv(name, "") // which restores it in the end
			require.NoError(t, os.Unsetenv(name))
		}
	}
	t.Setenv("HOME", t.TempDir()) // libpq looks for files there
}

// execute runs the program.
func execute(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = Run(t.Context(), append([]string{"pombo"}, args...), strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// configure returns what `pombo run` makes of the arguments.
func configure(t *testing.T, args ...string) (connector.Config, error) {
	t.Helper()
	s, err := readSettings("run", runFlags(), args)
	require.NoError(t, err)
	cfg := s.runConfig(s.logger(io.Discard))
	return cfg, s.err()
}

// minimal is what run needs at least.
func minimal(further ...string) []string {
	return append([]string{"--postgres", "postgres://app@db/shop", "--brokers", "k1"}, further...)
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pombo.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
