// Package connector wires the stages into one session and starts a session again when it ends.
//
// To follow one event, read session.work: replication receives it, decoder gives it a place in a
// batch, the batch crosses to sink over the channel filled, sink publishes it and hands the batch back to
// the pool, checkpoint moves the flushed position, and replication reports that to Postgres.
package connector

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"

	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/replication"
	"github.com/pombo-cdc/pombo/sink"
)

const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 10 * time.Second

	// steady is how long a session lasts that counts as a success: the next failure is a first one again.
	steady = 30 * time.Second
)

// Run runs the connector until ctx is done, and returns nil then. Losing Postgres or Kafka ends a session as
// a whole; the next begins as if the process had just started, from what Postgres has had confirmed. An error
// is one that no retry can cure: see NeedsOperator.
func Run(ctx context.Context, cfg Config) error {
	// The delays bound the log too, once they have grown.
	log := cfg.Log.Sample(&zerolog.BurstSampler{Burst: 9, Period: time.Minute})
	delays := newDelays()
	var last ending
	for first := true; ; first = false {
		started := time.Now()
		err := runSession(ctx, cfg, &last)
		switch {
		case ctx.Err() != nil:
			return nil
		case permanent(err), first && refused(err):
			return err
		case errors.Is(err, errTerm):
			continue
		}
		if time.Since(started) > steady {
			delays.Reset()
		}
		delay := delays.NextBackOff()
		log.Error().Err(err).Stringer("retry_in", delay.Round(time.Millisecond)).Msg("session ended")
		if !sleep(ctx, delay) {
			return nil
		}
	}
}

func newDelays() *backoff.ExponentialBackOff {
	delays := backoff.NewExponentialBackOff() // jittered
	delays.InitialInterval = firstRetry
	delays.MaxInterval = lastRetry
	return delays
}

// sleep waits and reports whether ctx let it.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// permanent reports whether the next session would end with the same error.
func permanent(err error) bool {
	return NeedsOperator(err) ||
		errors.Is(err, decoder.ErrProtocol) // a server or a publication this version does not understand
}

// refused reports whether Postgres does not let us in. At the first start that is a mistake in the settings; later it may be a
// rotation of passwords, and passes.
func refused(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "28P01" || pgErr.Code == "28000") // invalid_password, invalid_authorization_specification
}

// NeedsOperator reports whether err is a state that lasts until a person acts.
func NeedsOperator(err error) bool {
	var (
		action  *replication.ActionError
		columns *decoder.MissingColumnsError
		poison  *sink.PoisonError
	)
	return errors.As(err, &action) || errors.As(err, &columns) || errors.As(err, &poison)
}
