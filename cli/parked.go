package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/jackc/pgx/v5"
	urfave "github.com/urfave/cli/v2"

	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/outbox"
)

func (a *app) parked() *urfave.Command {
	return &urfave.Command{
		Name:               "parked",
		Usage:              "looks after events that cannot be published, and those behind them",
		Subcommands:        []*urfave.Command{a.parkedList(), a.parkedShow(), a.parkedRetry(), a.parkedDiscard()},
		HideHelpCommand:    true,
		CustomHelpTemplate: groupHelp,
		Action:             noSubcommand,
		OnUsageError:       badGroupFlag,
	}
}

const groupHelp = `{{.HelpName}} {{.Usage}}.

Usage: {{.HelpName}} COMMAND [FLAGS]

Commands:{{range .Subcommands}}
  {{printf "%-10s" .Name}}{{.Usage}}{{end}}

The flags of a command are listed by {{.HelpName}} COMMAND --help.
`

// noSubcommand runs where the first argument is no command of the group.
func noSubcommand(c *urfave.Context) error {
	if !c.Args().Present() {
		return urfave.ShowSubcommandHelp(c)
	}
	return &usageError{[]error{fmt.Errorf("unknown command %s: `%s --help` lists them", shown(c.Args().First()), c.Command.HelpName)}}
}

func badGroupFlag(c *urfave.Context, _ error, _ bool) error {
	return &usageError{[]error{fmt.Errorf("unknown flag before the command: flags stand after it, as in `%s list --json`", c.Command.HelpName)}}
}

// whichFlags name a parked event.
func whichFlags() []urfave.Flag {
	return []urfave.Flag{
		text(inEvents, "id", "", "`ID` of the event"),
		text(inEvents, "seq", "", "`NUMBER` of the event in pombo parked list, where several have the same id, or none"),
	}
}

// which returns the event that is named, or nil.
func (s *settings) which() *outbox.Which {
	which := outbox.Which{ID: s.text("id")}
	if s.has("seq") {
		var err error
		if which.Seq, err = strconv.ParseInt(s.text("seq"), 10, 64); err != nil || which.Seq <= 0 {
			s.refuse("seq", "%q is no number of a parked event", s.text("seq"))
		}
	}
	switch {
	case s.has("id") && s.has("seq"):
		s.mistake(errors.New("--id and --seq both name an event: give one of them"))
	case !s.has("id") && !s.has("seq"):
		return nil
	}
	return &which
}

// needWhich is which for a command that does nothing without it.
func (s *settings) needWhich() outbox.Which {
	which := s.which()
	if which == nil {
		s.mistake(errors.New("--id is missing: name an event that `pombo parked list` shows"))
		return outbox.Which{}
	}
	return *which
}

func (a *app) parkedList() *urfave.Command {
	flags := []urfave.Flag{
		postgresFlag(), slotFlag(), configFlag(),
		toggle(inEvents, "all", "list events too that only wait behind another of their topic and key"),
		toggle(inGeneral, "json", "print a JSON object a line"),
	}
	return a.command("list", "lists the events that cannot be published, and why", flags, func(ctx context.Context, s *settings) error {
		src := s.source(new(decoder.Layout))
		all, asJSON := s.on("all"), s.on("json")
		if err := s.err(); err != nil {
			return err
		}
		return withPostgres(ctx, src.Postgres, func(conn *pgx.Conn) error {
			if asJSON {
				out := json.NewEncoder(a.stdout)
				return outbox.ListParked(ctx, conn, src.Slot, all, func(p outbox.Parked) error { return out.Encode(newParkedJSON(p)) })
			}
			return a.printList(ctx, conn, src.Slot, all)
		})
	})
}

func (a *app) printList(ctx context.Context, conn *pgx.Conn, slot string, all bool) error {
	out := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	n := 0
	err := outbox.ListParked(ctx, conn, slot, all, func(p outbox.Parked) error {
		if n++; n == 1 {
			fmt.Fprintln(out, "SEQ\tID\tTOPIC\tKEY\tSIZE\tCOMMITTED\tWAITING\tREASON")
		}
		_, err := fmt.Fprintf(out, "%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", p.Seq, shownID(p.ID), shownTopic(p.Topic), shownValue(p.Key),
			humanize.IBytes(uint64(p.Size)), p.CommittedAt.UTC().Format(time.DateTime), p.Waiting, shownReason(p))
		return err
	})
	if err != nil {
		return err
	}
	if n == 0 {
		fmt.Fprintln(a.stdout, "no parked events")
	}
	return out.Flush()
}

func (a *app) parkedDiscard() *urfave.Command {
	flags := append([]urfave.Flag{
		postgresFlag(), slotFlag(), configFlag(),
		toggle(inGeneral, "yes", "do not ask"),
	}, whichFlags()...)
	return a.command("discard", "drops one parked event, which is then never published", flags, func(ctx context.Context, s *settings) error {
		src := s.source(new(decoder.Layout))
		which, yes := s.needWhich(), s.on("yes")
		if err := s.err(); err != nil {
			return err
		}
		if !yes {
			if err := a.needTerminal("parked discard asks before it drops an event"); err != nil {
				return err
			}
		}
		return withPostgres(ctx, src.Postgres, func(conn *pgx.Conn) error {
			return a.discard(ctx, conn, src.Slot, which, yes)
		})
	})
}

func (a *app) discard(ctx context.Context, conn *pgx.Conn, slot string, which outbox.Which, yes bool) error {
	unlock, err := outbox.LockManagement(ctx, conn, slot)
	if err != nil {
		return err
	}
	defer unlock()
	p, err := outbox.FindParked(ctx, conn, slot, which)
	if err != nil {
		return err
	}
	question := fmt.Sprintf("Drop event %s of topic %s, committed at %s?\nIt will never be published.",
		printableText(p.Name()), shownTopic(p.Topic), p.CommittedAt.UTC().Format(time.DateTime))
	if !yes && !a.confirm(question) {
		return errors.New("nothing was dropped, as the answer was not yes")
	}
	left, err := outbox.Discard(ctx, conn, slot, p)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "discarded event %s\n", printableText(p.Name()))
	if left > 0 {
		fmt.Fprintf(a.stdout, "%s of its topic and key %s still parked: `pombo parked retry` publishes what can be published\n", events(left), isOrAre(left))
	}
	return nil
}

// events says how many there are.
func events(n int64) string {
	return humanize.Comma(n) + " " + english.PluralWord(int(n), "event", "events")
}

func isOrAre(n int64) string { return english.PluralWord(int(n), "is", "are") }
