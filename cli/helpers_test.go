package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/connector"
)

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
