package cli

import (
	"context"
	"slices"

	urfave "github.com/urfave/cli/v2"

	"github.com/pombo-cdc/pombo/connector"
	"github.com/pombo-cdc/pombo/sink"
)

func (a *app) tail() *urfave.Command {
	flags := slices.Concat([]urfave.Flag{
		postgresFlag(), publicationFlag(), configFlag(),
		toggle(inGeneral, "json", "print a JSON object a line"),
	}, tableFlags(), routeFlags(), logFlags())
	return a.command("tail", "prints events as they would be published, from now on", flags, func(ctx context.Context, s *settings) error {
		cfg := s.connector(s.logger(a.stderr))
		asJSON := s.on("json")
		if err := s.err(); err != nil {
			return err
		}
		a.log = &cfg.Log
		return connector.Tail(ctx, cfg, sink.NewPrinter(a.stdout, asJSON, cfg.Router))
	})
}
