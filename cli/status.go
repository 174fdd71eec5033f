package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/jackc/pgx/v5"
	urfave "github.com/urfave/cli/v2"

	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/outbox"
	"github.com/pombo-cdc/pombo/replication"
)

func (a *app) status() *urfave.Command {
	flags := []urfave.Flag{
		postgresFlag(), slotFlag(), configFlag(),
		toggle(inGeneral, "json", "print a JSON object"),
	}
	return a.command("status", "says how far the slot is behind", flags, func(ctx context.Context, s *settings) error {
		src := s.source(new(decoder.Layout))
		asJSON := s.on("json")
		if err := s.err(); err != nil {
			return err
		}
		return withPostgres(ctx, src.Postgres, func(conn *pgx.Conn) error {
			status, err := replication.ReadStatus(ctx, conn, src)
			if err != nil {
				return err
			}
			if status.ParkedEvents, err = outbox.CountParked(ctx, conn, src.Slot); err != nil {
				return err
			}
			if asJSON {
				out := json.NewEncoder(a.stdout)
				out.SetIndent("", "  ")
				return out.Encode(status)
			}
			return printStatus(a.stdout, status)
		})
	})
}

func printStatus(w io.Writer, s replication.Status) error {
	reader := "not active: start `pombo run`, or if it runs, see in its log what keeps it from the slot or from Kafka"
	if s.Active {
		reader = fmt.Sprintf("active (pid %d)", s.ActivePID)
	}
	wal := s.WALStatus
	if s.InvalidationReason != "" {
		wal += " (" + s.InvalidationReason + ")"
	}
	safe := "no limit (max_slot_wal_keep_size)"
	switch {
	case s.WALStatus == "lost":
		safe = "none: the slot is lost, and `pombo setup` says what to do"
	case s.SafeWALBytes != nil:
		safe = size(*s.SafeWALBytes) + " until the slot is lost"
	}
	lines := [][2]string{
		{"slot", fmt.Sprintf("%s in database %s", s.Slot, s.Database)},
		{"reader", reader},
		{"lag", size(s.LagBytes)},
		{"confirmed", s.ConfirmedLSN.String()},
		{"retained WAL", size(s.RetainedBytes) + " from " + s.RestartLSN.String()},
		{"safe WAL", safe},
		{"WAL status", wal},
	}
	if s.ParkedEvents != nil {
		lines = append(lines, [2]string{"parked", parkedEvents(*s.ParkedEvents)})
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range lines {
		fmt.Fprintf(out, "%s\t%s\n", line[0], line[1])
	}
	return out.Flush()
}

func parkedEvents(n int64) string {
	if n == 0 {
		return "no events"
	}
	return events(n) + ": `pombo parked list` says why"
}

// size is a number of bytes for a glance, and exactly.
func size(n int64) string {
	exact := humanize.Comma(n) + " bytes"
	if n < 1<<10 {
		return exact
	}
	return fmt.Sprintf("%s (%s)", humanize.IBytes(uint64(n)), exact)
}
