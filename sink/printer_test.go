package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/decoder"
)

// awkward are rows with what is easily printed wrong.
func awkward() []row {
	return []row{
		{"1", "orders", "key", "Created", `{"total": 5}`},
		{"2", "orders", nil, nil, nil},
		{"3", "orders", "", "", ""},
		{"4", "orders", "é🕊", "Größe", "<&> \"quoted\""},
		{"5", "orders", "\xff", "\x1b[2J", "line\r\nfeed"},
		{"6", "orders", "\u009b2J", "\x7f", "tab\t\x00"},
		{"7", nil, "key", "Created", "x"},
		{"8", "no\x1b[2Jtopic", "key", "Created", "x"},
	}
}

// printed runs rows through a printer and requires that their batches come back.
func printed(t *testing.T, asJSON bool, rows []row) string {
	s := newSource(t)
	s.time = time.UnixMilli(1_700_000_000_999)
	s.commit(rows[:1]...)
	s.commit(rows[1:]...)
	close(s.filled)
	var out bytes.Buffer
	require.NoError(t, NewPrinter(&out, asJSON, s.router()).Run(t.Context(), s.filled, s.pool, s.flushed))
	require.Equal(t, s.committed, s.flushed.Load())
	require.Equal(t, decoder.Batches, s.pool.Available())
	return out.String()
}

func TestPrintForPeople(t *testing.T) {
	const illegal = `"no\x1b[2Jtopic" has '\x1b', but Kafka takes only a-z, A-Z, 0-9, '.', '_' and '-'`
	require.Equal(t, strings.Join([]string{
		`2023-11-14T22:13:21.999Z  orders  key=key  eventId=1  eventType=Created`,
		`    {"total": 5}`,
		`2023-11-14T22:13:22.999Z  orders  key=null  eventId=2`,
		`    null`,
		`2023-11-14T22:13:22.999Z  orders  key=  eventId=3  eventType=`,
		`    `,
		`2023-11-14T22:13:22.999Z  orders  key=é🕊  eventId=4  eventType=Größe`,
		`    <&> "quoted"`,
		`2023-11-14T22:13:22.999Z  orders  key="\xff"  eventId=5  eventType="\x1b[2J"`,
		`    "line\r\nfeed"`,
		`2023-11-14T22:13:22.999Z  orders  key="\u009b2J"  eventId=6  eventType="\x7f"`,
		`    "tab\t\x00"`,
		`2023-11-14T22:13:22.999Z  (cannot be published: no topic: column aggregate_type is NULL or empty)  key=key  eventId=7  eventType=Created`,
		`    x`,
		`2023-11-14T22:13:22.999Z  (cannot be published: no topic for aggregate type "no\x1b[2Jtopic": ` + illegal + `)  key=key  eventId=8  eventType=Created`,
		`    x`,
		``,
	}, "\n"), printed(t, false, awkward()))
}

func TestPrintJSON(t *testing.T) {
	lines := strings.Split(printed(t, true, awkward()), "\n")
	require.Equal(t, []string{
		`{"topic":"orders","key":"key","headers":[{"name":"eventId","value":"1"},{"name":"eventType","value":"Created"}],"value":"{\"total\": 5}","timestamp":"2023-11-14T22:13:21.999Z"}`,
		`{"topic":"orders","key":null,"headers":[{"name":"eventId","value":"2"}],"value":null,"timestamp":"2023-11-14T22:13:22.999Z"}`,
		`{"topic":"orders","key":"","headers":[{"name":"eventId","value":"3"},{"name":"eventType","value":""}],"value":"","timestamp":"2023-11-14T22:13:22.999Z"}`,
	}, lines[:3])
	require.Contains(t, lines[4], `"key":{"base64":"/w=="}`)
	require.Contains(t, lines[5], `"key":"\u009b2J"`)
	require.Contains(t, lines[6], `"topic":"","key":"key"`)
	require.Contains(t, lines[6], `"error":"no topic: column aggregate_type is NULL or empty"`)
	require.Len(t, lines, len(awkward())+1)

	// What is not in base64 reads back as it was.
	for i, r := range awkward() {
		var event struct {
			Value *string `json:"value"`
		}
		require.NoError(t, json.Unmarshal([]byte(lines[i]), &event))
		if r[4] == nil {
			require.Nil(t, event.Value)
			continue
		}
		require.Equal(t, r[4], *event.Value)
	}
}

// No event can send a command to the terminal.
func TestPrintedControlCharactersAreHarmless(t *testing.T) {
	var all strings.Builder
	for r := range rune(0x100) {
		all.WriteRune(r)
	}
	dangerous := all.String()
	rows := []row{{dangerous, "orders", dangerous, dangerous, dangerous}, {"2", dangerous, "\x9b\xff", dangerous, dangerous}}
	for _, asJSON := range []bool{false, true} {
		for line := range strings.Lines(printed(t, asJSON, rows)) {
			require.False(t, strings.ContainsFunc(strings.TrimSuffix(line, "\n"), unicode.IsControl), "%q", line)
		}
	}
}

// A batch is written before the printer waits for the next one.
func TestPrinterFlushesEachBatch(t *testing.T) {
	s := newSource(t)
	reader, writer := io.Pipe()
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- NewPrinter(writer, false, s.router()).Run(ctx, s.filled, s.pool, s.flushed) }()
	s.commit(row{"1", "orders", "key", "Created", "x"})
	out := make([]byte, 1000)
	n, err := reader.Read(out)
	require.NoError(t, err)
	require.Contains(t, string(out[:n]), "eventId=1")
	cancel(errStop)
	require.ErrorIs(t, <-ended, errStop)
}

// What is not written is not flushed.
func TestPrinterEndsWhenItsReaderIsGone(t *testing.T) {
	s := newSource(t)
	reader, writer := io.Pipe()
	gone := errors.New("gone")
	require.NoError(t, reader.CloseWithError(gone))
	s.commit(row{"1", "orders", "key", "Created", "x"})
	require.ErrorIs(t, NewPrinter(writer, true, s.router()).Run(t.Context(), s.filled, s.pool, s.flushed), gone)
	require.Zero(t, s.flushed.Load())
	require.Equal(t, decoder.Batches-1, s.pool.Available())
}
