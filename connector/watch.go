package connector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"

	"github.com/pombo-cdc/pombo/replication"
)

// watchInterval is how often Postgres is asked, while a session runs, what it was asked before. It is also how long a
// Postgres that is seen to shut down may wait for events that cannot be confirmed.
const watchInterval = 10 * time.Second

// worthRecording is how many bytes the slot moves before its position is recorded again. It is more than recording itself
// writes to the WAL, so that an idle database stays idle.
const worthRecording = 1 << 20

var errShutdown = errors.New("Postgres shuts down, and the replication connection is dropped so that it does not wait for events that cannot be confirmed") //nolint:staticcheck // a proper name

// watch asks Postgres while a session runs. What goes wrong with a publication, a table or a slot is no error in the
// stream, only silence. One goroutine owns it.
type watch struct {
	session  *session
	log      zerolog.Logger // of failures, which repeat
	said     []string       // warnings
	failures int            // checks in a row that were not possible
	closing  bool           // the last check was refused because Postgres shuts down
	recorded pglogrepl.LSN
}

func newWatch(s *session) *watch {
	return &watch{
		session:  s,
		log:      s.cfg.Log.Sample(&zerolog.BurstSampler{Burst: 1, Period: time.Minute}),
		recorded: s.held.recorded,
	}
}

// run checks until ctx is done, and returns nil then. An error is a reason to end the session.
func (w *watch) run(ctx context.Context) error {
	interval := cmp.Or(w.session.cfg.watch, watchInterval)
	w.warn(w.session.held.warnings)
	wait := interval
	if w.session.held.record != nil && w.recorded == 0 {
		wait = 0 // a kill before the record is written would look like a slot that was moved
	}
	for ; sleep(ctx, wait); wait = interval {
		err := w.check(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case NeedsOperator(err):
			return err
		case err == nil:
			w.failures, w.closing = 0, false
			continue
		}
		if shuttingDown(err) {
			if w.closing {
				return fmt.Errorf("%w: %w", errShutdown, err)
			}
			w.closing = true
			continue
		}
		if w.failures++; w.failures > 1 {
			w.log.Warn().Err(err).Int("attempt", w.failures).Msg("Postgres cannot be asked whether publication, table and slot are as they should be; the stream goes on")
		}
	}
	return nil
}

// check asks on a connection that lasts no longer: an idle one would hold up a smart shutdown of Postgres for ever.
func (w *watch) check(ctx context.Context) error {
	s := w.session
	ctx, cancel := context.WithTimeoutCause(ctx, queryTimeout, errSilent)
	defer cancel()
	conn, err := connect(ctx, s.cfg)
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	health, err := replication.Check(ctx, conn, s.cfg.Source)
	if err != nil {
		return err
	}
	w.warn(health.Warnings)
	if lsn := s.flushed.Load(); s.held.record != nil && lsn >= w.recorded+worthRecording {
		if err := s.held.record.Follow(ctx, conn, lsn); err != nil {
			return err
		}
		w.recorded = lsn
	}
	return nil
}

// warn logs what was not there at the last check.
func (w *watch) warn(warnings []string) {
	for _, warning := range warnings {
		if !slices.Contains(w.said, warning) {
			w.session.cfg.Log.Warn().Msg(warning)
		}
	}
	w.said = warnings
}

// shuttingDown reports whether a server refuses new connections. While it has a session with us, that is no start-up.
func shuttingDown(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "57P03" // cannot_connect_now
}
