package connector

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pombo-cdc/pombo/checkpoint"
	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/replication"
	"github.com/pombo-cdc/pombo/sink"
)

// standbyInterval is how often a standby looks whether the slot has become free.
const standbyInterval = 250 * time.Millisecond

// queryTimeout is how long connecting, and then the checks before a stream, may take.
const queryTimeout = 30 * time.Second

// errGrace ends what is still under way when the grace period after a stop is over.
var errGrace = errors.New("the time to stop is over")

// runSession streams until stop is done or either side is lost.
func runSession(stop context.Context, cfg Config) error {
	stream, err := acquireSlot(stop, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()

	// What is in flight when stop is done gets the grace period to be acknowledged and confirmed.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(stop))
	defer cancel(nil)
	defer context.AfterFunc(stop, func() {
		cfg.Log.Info().Stringer("grace", cfg.Grace).Msg("stopping: what is under way is published and confirmed first")
		if sleep(ctx, cfg.Grace) {
			cancel(errGrace)
		}
	})()

	pool := decoder.NewPool(cfg.Buffer, cfg.Layout)
	flushed := new(checkpoint.Position)
	kafka, err := sink.Open(stop, cfg.Kafka, cfg.Router, pool, flushed, cfg.Log)
	if err != nil {
		return err
	}
	defer func() { _ = kafka.Close() }()
	cfg.Log.Info().Str("slot", cfg.Source.Slot).Stringer("confirmed", stream.Confirmed()).Msg("streaming")

	filled := make(chan *decoder.Batch, decoder.Batches)
	group, session := errgroup.WithContext(ctx)
	group.Go(func() error {
		return replication.NewReceiver(stream, cfg.Source, cfg.Layout, pool, filled, flushed).Run(session, stop)
	})
	group.Go(func() error { return kafka.Run(session, filled) })
	if err := group.Wait(); err != nil {
		if stop.Err() != nil {
			cfg.Log.Warn().Err(err).Msg("stopped before everything was confirmed: some events will be sent again")
		}
		return err
	}
	cfg.Log.Info().Stringer("confirmed", flushed.Load()).Msg("everything received is published and confirmed")
	return nil
}

// acquireSlot checks what has to hold and opens the stream. While another instance has the slot, this one
// is its standby.
func acquireSlot(ctx context.Context, cfg Config) (*replication.Stream, error) {
	control, err := connect(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to Postgres: %w", err)
	}
	defer func() { _ = control.Close(context.WithoutCancel(ctx)) }()

	holder := int32(0)
	for {
		stream, slot, err := tryOpen(ctx, cfg, control)
		if !errors.Is(err, replication.ErrSlotInUse) {
			return stream, err
		}
		if slot.ActivePID != holder {
			holder = slot.ActivePID
			cfg.Log.Info().Str("slot", slot.Name).Int32("holder_pid", holder).Msg("standing by: another session has the slot")
		}
		if !sleep(ctx, standbyInterval) {
			return nil, context.Cause(ctx)
		}
	}
}

func connect(ctx context.Context, cfg Config) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	return pgx.ConnectConfig(ctx, cfg.Source.Postgres)
}

// tryOpen opens the stream if the slot is as it should be and free. A server that does not answer counts as lost.
func tryOpen(ctx context.Context, cfg Config, control *pgx.Conn) (*replication.Stream, replication.Slot, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, queryTimeout, errors.New("Postgres does not answer")) //nolint:staticcheck // a proper name
	defer cancel()
	slot, err := replication.Check(ctx, control, cfg.Source)
	if err != nil {
		return nil, slot, err
	}
	if slot.Active {
		return nil, slot, replication.ErrSlotInUse
	}
	stream, err := replication.Open(ctx, cfg.Source, control)
	return stream, slot, err
}
