package cli

import (
	"context"

	"github.com/jackc/pgx/v5"
	urfave "github.com/urfave/cli/v2"

	"github.com/pombo-cdc/pombo/replication"
)

func (a *app) setup() *urfave.Command {
	flags := append([]urfave.Flag{
		postgresFlag(), slotFlag(), publicationFlag(), createTableFlag(), configFlag(),
		toggle(inGeneral, "dry-run", "print the SQL that would be run, and change nothing"),
		toggle(inPostgres, "accept-gap", "create a new slot in place of one that is gone, or take one that was moved as it is, without the events in between"),
	}, tableFlags()...)
	return a.command("setup", "creates what is missing in Postgres, in the right order", flags, func(ctx context.Context, s *settings) error {
		layout, _ := s.layout()
		src := s.source(layout)
		opts := replication.SetupOptions{CreateTable: s.on("create-table"), AcceptGap: s.on("accept-gap"), DryRun: s.on("dry-run")}
		if err := s.err(); err != nil {
			return err
		}
		return withPostgres(ctx, src.Postgres, func(conn *pgx.Conn) error {
			return replication.Setup(ctx, conn, src, opts, a.stdout)
		})
	})
}
