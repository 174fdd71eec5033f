package cli

import (
	"context"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	urfave "github.com/urfave/cli/v2"

	"github.com/pombo-cdc/pombo/connector"
	"github.com/pombo-cdc/pombo/replication"
)

// setupPatience is how long --setup waits for a Postgres that starts at the same time.
const setupPatience = 30 * time.Second

func runFlags() []urfave.Flag {
	return slices.Concat([]urfave.Flag{
		postgresFlag(), slotFlag(), publicationFlag(), createTableFlag(), configFlag(),
		toggle(inPostgres, "setup", "do what pombo setup does first, for demos and containers"),
	}, tableFlags(), routeFlags(), kafkaFlags(), streamFlags(), logFlags())
}

func (a *app) run() *urfave.Command {
	return a.command("run", "publishes events until it is stopped", runFlags(), func(ctx context.Context, s *settings) error {
		cfg := s.runConfig(s.logger(a.stderr))
		setup, opts := s.on("setup"), replication.SetupOptions{CreateTable: s.on("create-table")}
		if opts.CreateTable && !setup && s.origin("create-table") == "--create-table" { // a file serves setup too
			s.refuse("create-table", "only goes with --setup")
		}
		if err := s.err(); err != nil {
			return err
		}
		a.log = &cfg.Log
		saveMemory(cfg.Buffer)
		if setup {
			err := setUp(ctx, cfg, opts)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				return err
			}
		}
		return connector.Run(ctx, cfg)
	})
}

// gcPercent has the heap grow to one and a half times of what is in use, and not to twice, before it is collected. What is in
// use holds few pointers, so that is cheap.
const gcPercent = 50

// saveMemory has the heap collected early: by gcPercent, and still earlier where it comes near to what the buffer, what belongs
// to each of its rows and the connections take. GOGC and GOMEMLIMIT are for the operator to choose others.
func saveMemory(buffer int) {
	const connections = 12 << 20 // bytes
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(buffer + buffer/2 + connections))
	}
}

// runConfig returns the Config of the whole connector.
func (s *settings) runConfig(log zerolog.Logger) connector.Config {
	cfg := s.connector(log)
	cfg.Kafka = s.kafka(cfg.Source)
	cfg.Buffer = s.buffer()
	cfg.Park = s.parks()
	return cfg
}

// parks reports whether events that cannot be published are parked.
func (s *settings) parks() bool {
	policy := s.text("on-poison")
	if policy != "park" && policy != "halt" {
		s.refuse("on-poison", "%q is neither park nor halt", policy)
	}
	return policy == "park"
}

// setUp runs setup as soon as Postgres is there.
func setUp(ctx context.Context, cfg connector.Config, opts replication.SetupOptions) error {
	attempt := func() (struct{}, error) {
		err := withPostgres(ctx, cfg.Source.Postgres, func(conn *pgx.Conn) error {
			return replication.Setup(ctx, conn, cfg.Source, opts, lines{cfg.Log})
		})
		if connector.NeedsOperator(err) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}
	_, err := backoff.Retry(ctx, attempt, backoff.WithMaxElapsedTime(setupPatience), backoff.WithNotify(func(err error, delay time.Duration) {
		cfg.Log.Warn().Err(err).Stringer("retry_in", delay.Round(time.Millisecond)).Msg("setup has to wait")
	}))
	return err
}

// lines logs what is written to it, a line at a time.
type lines struct{ log zerolog.Logger }

func (l lines) Write(line []byte) (int, error) {
	l.log.Info().Msg(strings.TrimSuffix(string(line), "\n"))
	return len(line), nil
}
