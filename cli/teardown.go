package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/mattn/go-isatty"
	urfave "github.com/urfave/cli/v2"

	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/replication"
)

func (a *app) teardown() *urfave.Command {
	flags := []urfave.Flag{
		postgresFlag(), slotFlag(), publicationFlag(), configFlag(),
		toggle(inGeneral, "yes", "do not ask"),
	}
	return a.command("teardown", "drops slot and publication, and leaves the tables", flags, func(ctx context.Context, s *settings) error {
		src := s.source(new(decoder.Layout))
		yes := s.on("yes")
		if err := s.err(); err != nil {
			return err
		}
		if !yes {
			if err := a.needTerminal("teardown asks before it drops anything"); err != nil {
				return err
			}
			question := fmt.Sprintf("Drop slot %s and publication %s in database %s on %s?\nEvents that are not published yet will not be.",
				src.Slot, src.Publication, src.Postgres.Database, src.Postgres.Host)
			if !a.confirm(question) {
				return errors.New("nothing was dropped, as the answer was not yes")
			}
		}
		return withPostgres(ctx, src.Postgres, func(conn *pgx.Conn) error {
			return replication.Teardown(ctx, conn, src, a.stdout)
		})
	})
}

// needTerminal is a usageError where there is nobody to ask.
func (a *app) needTerminal(why string) error {
	if file, ok := a.stdin.(*os.File); ok && isatty.IsTerminal(file.Fd()) {
		return nil
	}
	return &usageError{[]error{fmt.Errorf("%s, and there is no terminal: give --yes", why)}}
}

// confirm asks the person at the terminal.
func (a *app) confirm(question string) bool {
	fmt.Fprint(a.stderr, question, " (yes/no) ")
	answer, err := bufio.NewReader(a.stdin).ReadString('\n')
	return err == nil && strings.TrimSpace(answer) == "yes"
}
