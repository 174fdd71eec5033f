package connector

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pombo-cdc/pombo/outbox"
	"github.com/pombo-cdc/pombo/replication"
	"github.com/pombo-cdc/pombo/sink"
)

const (
	// standbyInterval is how often a standby looks whether the slot has become free.
	standbyInterval = 250 * time.Millisecond

	// standbyTerm is how long a standby keeps one connection for that: a smart shutdown of Postgres waits until it is closed.
	standbyTerm = 5 * time.Second

	// queryTimeout is how long connecting, and then the checks before a stream, may take.
	queryTimeout = 30 * time.Second
)

// heldSlot is what a session begins with.
type heldSlot struct {
	cfg      Config // that leads to its server
	stream   *replication.Stream
	record   *replication.Record // nil: the role may not keep one
	recorded pglogrepl.LSN       // 0: the record is not written yet
	parking  sink.Parking        // nil: the role may not park
	warnings []string
}

// acquireSlot checks what has to hold and opens the stream. While another instance has the slot, this one
// is its standby.
func acquireSlot(ctx context.Context, cfg Config, last *ending) (*heldSlot, error) {
	for holder := int32(0); ; {
		held, err := standBy(ctx, cfg, last, &holder)
		if !errors.Is(err, replication.ErrSlotInUse) {
			return held, err
		}
	}
}

// standBy tries for a standbyTerm, on one connection. The error is ErrSlotInUse when that is over. It logs each new holder.
func standBy(ctx context.Context, cfg Config, last *ending, holder *int32) (*heldSlot, error) {
	control, cfg, err := connectPinned(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to Postgres: %w", err)
	}
	defer func() { _ = control.Close(context.WithoutCancel(ctx)) }()
	last.write(ctx, control)
	for end := time.Now().Add(standbyTerm); ; {
		held, slot, err := tryOpen(ctx, cfg, control)
		if !errors.Is(err, replication.ErrSlotInUse) {
			return held, err
		}
		if slot.ActivePID != *holder {
			*holder = slot.ActivePID
			cfg.Log.Info().Str("slot", slot.Name).Int32("holder_pid", *holder).Msg("standing by: another session has the slot")
		}
		if !sleep(ctx, standbyInterval) {
			return nil, context.Cause(ctx)
		}
		if time.Now().After(end) {
			return nil, err
		}
	}
}

func connect(ctx context.Context, cfg Config) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	return pgx.ConnectConfig(ctx, cfg.Source.Postgres)
}

// connectPinned connects too. The Config that it returns leads to the same server and to no other, where several are named: what
// one says of its slot is not true of another's.
func connectPinned(ctx context.Context, cfg Config) (*pgx.Conn, Config, error) {
	postgres, pinned := cfg.Source.Postgres.Copy(), cfg.Source.Postgres.Copy()
	dial, server := postgres.DialFunc, ""
	postgres.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		server = address // one after the other, until one lets us in
		return dial(ctx, network, address)
	}
	cfg.Source.Postgres = postgres
	conn, err := connect(ctx, cfg)
	own := server // which a request to cancel a query, that may come at any time, sets again
	pinned.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if address != own {
			return nil, errOtherServer
		}
		return dial(ctx, network, address)
	}
	cfg.Source.Postgres = pinned
	return conn, cfg, err
}

var errOtherServer = errors.New("not the server of this session")

// explainPooler tells what is behind a parameter of the connection that Postgres would take: PgBouncer does not know the one
// that asks for replication (before 1.23), or those that go with it.
func explainPooler(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && strings.HasPrefix(pgErr.Message, "unsupported startup parameter") {
		return &replication.ActionError{
			Problem: "what answers at --postgres is a connection pooler, and not Postgres (" + pgErr.Message + ")",
			Cure:    "connect directly to Postgres, as replication does not pass through a pooler",
		}
	}
	return err
}

var errSilent = errors.New("Postgres does not answer") //nolint:staticcheck // a proper name

// tryOpen opens the stream if the slot is as it should be and free. A server that does not answer counts as lost.
func tryOpen(ctx context.Context, cfg Config, control *pgx.Conn) (*heldSlot, replication.Slot, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, queryTimeout, errSilent)
	defer cancel()
	health, err := replication.Check(ctx, control, cfg.Source)
	if err != nil {
		return nil, health.Slot, err
	}
	if health.Slot.Active {
		return nil, health.Slot, replication.ErrSlotInUse
	}
	stream, err := replication.Open(ctx, cfg.Source, control)
	if err != nil {
		return nil, health.Slot, err
	}
	held := &heldSlot{cfg: cfg, stream: stream, warnings: health.Warnings}
	held.parking, err = parking(ctx, cfg, control, stream)
	if err != nil {
		return nil, health.Slot, errors.Join(err, stream.Close())
	}
	if health.MayRecord { // last, because control does not survive that it takes too long
		held.record, held.recorded = beginRecord(ctx, cfg, control, stream)
	}
	return held, health.Slot, nil
}

// parking returns where events are parked, or nil where the role may not do that: then the first that cannot be published stops
// the connector. With halt it does so anyway, but what follows one that was parked earlier is parked behind it.
func parking(ctx context.Context, cfg Config, control *pgx.Conn, stream *replication.Stream) (sink.Parking, error) {
	err := outbox.CheckParking(ctx, control)
	switch {
	case err == nil:
		return outbox.NewParking(cfg.Source.Postgres, cfg.Source.Slot, stream.Walsender(), cfg.Layout, cfg.Log), nil
	case !NeedsOperator(err):
		return nil, err
	case cfg.Park:
		cfg.Log.Warn().Err(err).Msg("an event that cannot be published will stop the connector, as it cannot be parked")
	}
	return nil, nil //nolint:nilnil // said above
}
