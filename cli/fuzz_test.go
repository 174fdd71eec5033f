package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever a config file says, it makes a Config, or a list of mistakes.
func FuzzConfigFile(f *testing.F) {
	for _, text := range []string{
		"", "# nothing\n", "slot: shop\n", "route: [A=a, B=b]\n", "brokers:\n- k1\n- k2:1\n", "slot: a\nslot: b\n", "slot: &a x\npublication: *a\n",
		"header: {a: b}\n", "buffer: 3 parsecs\n", "a: &a [*a]\n", "- a\n", "--- a\n--- b\n", "slot: !!binary AA==\n", "<<: {slot: a}\n",
		"postgres: postgres://app:secret@[::1:5432/shop\n", "topic: '{{lower .AggregateType}}'\n", "slot:\n", "\x00", "\xff: a",
	} {
		f.Add(text)
	}
	path := filepath.Join(f.TempDir(), "pombo.yaml")
	f.Fuzz(func(t *testing.T, text string) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		s, err := readSettings("run", runFlags(), []string{"--config", path, "--brokers", "k1"})
		require.NoError(t, err)
		s.runConfig(s.logger(io.Discard))
		err = s.err()
		if err == nil {
			return
		}
		var usage *usageError
		require.True(t, errors.As(err, &usage), err)
		require.NotEmpty(t, usage.mistakes)
	})
}
