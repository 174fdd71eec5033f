package decoder

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite testdata/stream.golden")

// capturedStream returns what a Postgres sent for testdata/stream.sql, a message each.
func capturedStream(t testing.TB) [][]byte {
	lines, err := os.ReadFile("testdata/stream.pgoutput")
	require.NoError(t, err)
	var messages [][]byte
	for line := range strings.Lines(string(lines)) {
		msg, err := hex.DecodeString(strings.TrimSpace(line))
		require.NoError(t, err)
		messages = append(messages, msg)
	}
	return messages
}

// The golden file says, for each message of the captured stream, what the decoder makes of it.
func TestCapturedStream(t *testing.T) {
	layout := outboxLayout()
	attachment := layout.Column("attachment")
	d := New(layout, 0)
	b := emptyBatch(layout, 64<<10)
	var got bytes.Buffer
	for _, msg := range capturedStream(t) {
		outcome, err := d.Decode(msg, b)
		require.NoError(t, err)
		switch outcome {
		case None:
			fmt.Fprintf(&got, "%c\n", msg[0])
		case Commit:
			fmt.Fprintf(&got, "%c end %s\n", msg[0], d.CommitEnd())
		case Row:
			e := b.Event(b.Len() - 1)
			fmt.Fprintf(&got, "%c committed %s\n", msg[0], e.CommitTime().UTC().Format("2006-01-02T15:04:05.000000Z"))
			for c, name := range layout.Columns {
				switch value := e.Column(Column(c)); {
				case value == nil:
					fmt.Fprintf(&got, "    %s NULL\n", name)
				case Column(c) == attachment:
					fmt.Fprintf(&got, "    %s %x\n", name, value)
				default:
					fmt.Fprintf(&got, "    %s %.60q, %d bytes\n", name, value, len(value))
				}
			}
		default:
			t.Fatalf("outcome %d of %q", outcome, msg)
		}
	}
	require.False(t, d.InTransaction())

	const golden = "testdata/stream.golden"
	if *update {
		require.NoError(t, os.WriteFile(golden, got.Bytes(), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got.String())
}
