package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/mattn/go-isatty"
	urfave "github.com/urfave/cli/v2"

	"github.com/pombo-cdc/pombo/connector"
	"github.com/pombo-cdc/pombo/outbox"
	"github.com/pombo-cdc/pombo/replication"
)

func (a *app) parkedRetry() *urfave.Command {
	flags := slices.Concat([]urfave.Flag{postgresFlag(), slotFlag(), configFlag()},
		whichFlags(), tableFlags(), routeFlags(), kafkaFlags(), logFlags())
	const usage = "publishes parked events in their order: all, or those with the key of one event"
	return a.command("retry", usage, flags, func(ctx context.Context, s *settings) error {
		cfg := s.connector(s.logger(a.stderr))
		cfg.Kafka = s.kafka(cfg.Source)
		opts := connector.RetryOptions{Which: s.which(), Refused: a.printRefusal}
		if err := s.err(); err != nil {
			return err
		}
		return a.retryParked(ctx, cfg, opts)
	})
}

func (a *app) retryParked(ctx context.Context, cfg connector.Config, opts connector.RetryOptions) error {
	endLine := func() {}
	if file, ok := a.stderr.(*os.File); ok && isatty.IsTerminal(file.Fd()) {
		opts.Progress = func(done, total int64) {
			fmt.Fprintf(a.stderr, "\r%s of %s events", humanize.Comma(done), humanize.Comma(total))
			endLine = func() { fmt.Fprintln(a.stderr) }
		}
	}
	result, err := connector.Retry(ctx, cfg, opts)
	endLine()
	if err == nil || result.Published > 0 {
		fmt.Fprintf(a.stdout, "published %s\n", events(result.Published))
	}
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted: the others stay parked, and some of them may have been published too")
	case err != nil:
		return err
	case result.Refused > 0:
		return &replication.ActionError{
			Problem: fmt.Sprintf("%s %s still refused, and with those behind, %d stay parked", events(result.Refused), isOrAre(result.Refused), result.Left),
			Cure:    "cure the reasons above and retry, or drop an event with `pombo parked discard`",
		}
	}
	return nil
}

func (a *app) printRefusal(r outbox.Refusal) {
	fmt.Fprintf(a.stdout, "refused event %s of topic %s: %s\n", printableText(r.Name), shownTopic(r.Topic), printableText(r.Reason))
}
