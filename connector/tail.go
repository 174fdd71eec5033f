package connector

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/pombo-cdc/pombo/checkpoint"
	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/replication"
	"github.com/pombo-cdc/pombo/sink"
)

// Tail prints events that are committed from now on, until ctx is done. It reads through a temporary slot, which
// Postgres drops when the connection ends, so it takes nothing from the connector and leaves nothing behind.
func Tail(ctx context.Context, cfg Config, p *sink.Printer) error {
	err := tail(ctx, cfg, p)
	if ctx.Err() != nil {
		return nil // stopped as asked, whatever that interrupted
	}
	return err
}

func tail(ctx context.Context, cfg Config, p *sink.Printer) error {
	if err := checkStream(ctx, cfg); err != nil {
		return err
	}
	stream, err := replication.OpenTemporary(ctx, cfg.Source)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()

	pool := decoder.NewPool(cfg.Buffer, cfg.Layout)
	flushed := new(checkpoint.Position)
	filled := make(chan *decoder.Batch, decoder.Batches)
	group, session := errgroup.WithContext(context.WithoutCancel(ctx))
	group.Go(func() error {
		return replication.NewReceiver(stream, cfg.Source, cfg.Layout, pool, filled, flushed).Run(session, ctx)
	})
	group.Go(func() error { return p.Run(session, filled, pool, flushed) })
	return group.Wait()
}

// checkStream names what is missing before Postgres does: its own messages come late or, from PostgreSQL 18 on, never.
func checkStream(ctx context.Context, cfg Config) error {
	conn, err := connect(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return replication.CheckStream(ctx, conn, cfg.Source)
}
