package cli

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	urfave "github.com/urfave/cli/v2"

	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/outbox"
)

func (a *app) parkedShow() *urfave.Command {
	flags := append([]urfave.Flag{
		postgresFlag(), slotFlag(), configFlag(),
		text(inEvents, "only", "", "`COLUMN` to print alone, byte for byte"),
		toggle(inGeneral, "json", "print a JSON object"),
	}, whichFlags()...)
	return a.command("show", "shows one parked event with its row", flags, func(ctx context.Context, s *settings) error {
		src := s.source(new(decoder.Layout))
		which, only, asJSON := s.needWhich(), s.text("only"), s.on("json")
		if err := s.err(); err != nil {
			return err
		}
		return withPostgres(ctx, src.Postgres, func(conn *pgx.Conn) error {
			p, err := outbox.FindParked(ctx, conn, src.Slot, which)
			if err != nil {
				return err
			}
			columns, cells, err := outbox.ReadRow(ctx, conn, p.Seq)
			switch {
			case err != nil:
				return err
			case only != "":
				return a.printOnly(only, columns, cells)
			case asJSON:
				out := json.NewEncoder(a.stdout)
				out.SetIndent("", "  ")
				return out.Encode(newRowJSON(p, columns, cells))
			}
			return printParked(a.stdout, p, columns, cells)
		})
	})
}

func (a *app) printOnly(column string, columns []string, cells [][]byte) error {
	i := slices.Index(columns, column)
	if i < 0 {
		return fmt.Errorf("the event has no column %q, only %s", column, strings.Join(columns, ", "))
	}
	_, err := a.stdout.Write(cells[i])
	return err
}

func printParked(w io.Writer, p outbox.Parked, columns []string, cells [][]byte) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range [][2]string{
		{"seq", strconv.FormatInt(p.Seq, 10)},
		{"id", shownID(p.ID)},
		{"topic", shownTopic(p.Topic)},
		{"key", shownValue(p.Key)},
		{"reason", shownReason(p)},
		{"size", size(p.Size)},
		{"committed", p.CommittedAt.UTC().Format(time.RFC3339Nano)},
		{"parked", p.ParkedAt.UTC().Format(time.RFC3339Nano)},
		{"waiting", events(p.Waiting) + " of its topic and key behind it"},
	} {
		fmt.Fprintf(out, "%s\t%s\n", line[0], line[1])
	}
	if err := out.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nIts row:")
	for i, column := range columns {
		if _, err := fmt.Fprintf(w, "%s: %s\n", column, shownCell(column, cells[i])); err != nil {
			return err
		}
	}
	return nil
}

// maxShown is how much of a value is shown to people, in bytes.
const maxShown = 4 << 10

// shownCell is the value of a column for people. Text may have lines.
func shownCell(column string, cell []byte) string {
	isText := func(r rune) bool { return unicode.IsPrint(r) || r == '\n' || r == '\t' || r == '\r' }
	switch {
	case cell == nil:
		return "NULL"
	case len(cell) > maxShown || !utf8.Valid(cell) || bytes.ContainsFunc(cell, func(r rune) bool { return !isText(r) }):
		return fmt.Sprintf("(%s, --only %s prints them)", size(int64(len(cell))), column)
	}
	return string(cell)
}

// shownValue is a value for people, in one word or line.
func shownValue(value []byte) string {
	switch {
	case value == nil:
		return "NULL"
	case !utf8.Valid(value):
		return asHex(value)
	case len(value) == 0:
		return `""`
	}
	return printableText(string(value))
}

func shownID(id *string) string {
	if id == nil {
		return "NULL"
	}
	return shownValue([]byte(*id))
}

func shownTopic(topic string) string {
	if topic == "" {
		return "(none)"
	}
	return topic
}

func shownReason(p outbox.Parked) string {
	if p.Reason == "" {
		return "waits behind another of its topic and key"
	}
	return printableText(p.Reason)
}

// printableText quotes text that would do something to a terminal.
func printableText(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

func asHex(value []byte) string { return `\x` + hex.EncodeToString(value) }

// parkedJSON is a parked event for programs. What is no text is in hex, as Postgres prints a bytea.
type parkedJSON struct {
	Seq         int64     `json:"seq"`
	ID          *string   `json:"id"`
	Topic       *string   `json:"topic"`
	Key         *string   `json:"key"`
	Reason      *string   `json:"reason"`
	SizeBytes   int64     `json:"size_bytes"`
	CommittedAt time.Time `json:"committed_at"`
	ParkedAt    time.Time `json:"parked_at"`
	Waiting     int64     `json:"waiting_behind"`

	Row map[string]*string `json:"row,omitempty"`
}

func newParkedJSON(p outbox.Parked) parkedJSON {
	return parkedJSON{
		Seq: p.Seq, ID: p.ID, Topic: orNull(p.Topic), Key: textOrHex(p.Key), Reason: orNull(p.Reason),
		SizeBytes: p.Size, CommittedAt: p.CommittedAt.UTC(), ParkedAt: p.ParkedAt.UTC(), Waiting: p.Waiting,
	}
}

func newRowJSON(p outbox.Parked, columns []string, cells [][]byte) parkedJSON {
	j := newParkedJSON(p)
	j.Row = make(map[string]*string)
	for i, column := range columns {
		j.Row[column] = textOrHex(cells[i])
	}
	return j
}

func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func textOrHex(value []byte) *string {
	if value == nil {
		return nil
	}
	text := string(value)
	if !utf8.Valid(value) {
		text = asHex(value)
	}
	return &text
}
