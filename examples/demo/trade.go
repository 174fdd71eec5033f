package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pombo-cdc/pombo/integration/workload"
)

// shop is the demo's order service and its consumer, with a ledger that knows what each of them did.
type shop struct {
	dsn        string
	ledger     *workload.Ledger
	orders     atomic.Int64 // committed
	rolledBack atomic.Int64
	applied    atomic.Int64            // events that changed the consumer's table
	latency    *hdrhistogram.Histogram // µs from just before COMMIT to the consumer; used under the ledger's lock
}

// trade lets the service and the consumer work, and returns once everything has arrived.
func trade(ctx context.Context, dsn string, brokers []string, c *connector) (*shop, error) {
	s := &shop{dsn: dsn, latency: hdrhistogram.New(1, time.Minute.Microseconds(), 3)}
	s.ledger = workload.NewLedger(func(_ workload.Record, latency time.Duration) {
		_ = s.latency.RecordValue(max(1, latency.Microseconds())) // longer than a minute is not to be seen here
	})
	apply, err := newApplier(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer apply.close()
	consumer, err := workload.Consume(ctx, brokers, []string{"orders"}, func(r workload.Record) {
		s.ledger.Observe(r)
		if apply.once(ctx, r) {
			s.applied.Add(1)
		}
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = consumer.Close() }()

	stopProgress := s.showProgress(ctx)
	defer stopProgress()
	if err := s.serve(ctx); err != nil {
		return nil, err
	}
	drained, cancel := context.WithTimeoutCause(ctx, drainLimit, errors.New("not everything arrived"))
	defer cancel()
	if _, err := s.ledger.Await(drained, workload.Report.Complete); err != nil && ctx.Err() == nil {
		return s, nil // the table says what is missing
	}
	select {
	case <-c.exited:
		return nil, c.failed("ended early")
	default:
		return s, ctx.Err()
	}
}

// serve commits orders at a steady pace from a few connections.
func (s *shop) serve(ctx context.Context) error {
	const clerks = 4
	group, ctx := errgroup.WithContext(ctx)
	for clerk := range clerks {
		group.Go(func() error {
			conn, err := pgx.Connect(ctx, s.dsn)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
			random := rand.New(rand.NewPCG(uint64(clerk), 1))
			pace := time.NewTicker(clerks * time.Second / perSecond)
			defer pace.Stop()
			end := time.After(duration)
			for {
				if err := s.order(ctx, conn, random); err != nil {
					return err
				}
				select {
				case <-pace.C:
				case <-end:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
	}
	return group.Wait()
}

// order is the business transaction: the order and its event, or neither.
func (s *shop) order(ctx context.Context, conn *pgx.Conn, random *rand.Rand) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	id := fmt.Sprintf("order-%d", random.IntN(aggregates))
	total := random.IntN(100_000)
	var version int64
	const upsert = `INSERT INTO purchase_order AS o (id, version, total_cents) VALUES ($1, 1, $2)
		ON CONFLICT (id) DO UPDATE SET version = o.version + 1, total_cents = $2 RETURNING version`
	if err := tx.QueryRow(ctx, upsert, id, total).Scan(&version); err != nil {
		return err
	}
	payload, err := json.Marshal(map[string]any{"order": id, "version": version, "totalCents": total})
	if err != nil {
		return err
	}
	event := workload.Event{ID: uuid.NewString(), Topic: "orders", Key: id, Seq: version, Type: "OrderChanged", Payload: payload}
	const insert = `INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ($1, 'Order', $2, $3, $4, now())`
	if _, err := tx.Exec(ctx, insert, event.ID, event.Key, event.Type, string(payload)); err != nil {
		return err
	}
	s.ledger.Intend(event)
	if random.IntN(10) == 0 {
		s.ledger.RolledBack(event)
		s.rolledBack.Add(1)
		return nil
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	s.ledger.Committed(event)
	s.orders.Add(1)
	return nil
}

// applier is the idempotent consumer: the event's id and the change it causes are one transaction, so a
// duplicate changes nothing.
type applier struct{ conns chan *pgx.Conn }

func newApplier(ctx context.Context, dsn string) (*applier, error) {
	const readers = 4
	a := &applier{conns: make(chan *pgx.Conn, readers)}
	for range readers {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			a.close()
			return nil, err
		}
		a.conns <- conn
	}
	return a, nil
}

// once applies a record and reports whether it changed something. An error counts as no change: the table at
// the end shows it.
func (a *applier) once(ctx context.Context, r workload.Record) bool {
	conn := <-a.conns
	defer func() { a.conns <- conn }()
	const sql = `WITH first AS (INSERT INTO processed_event (event_id) VALUES ($1::uuid) ON CONFLICT DO NOTHING RETURNING event_id)
		INSERT INTO received_order AS o (id, version) SELECT $2, ($3::jsonb ->> 'version')::bigint FROM first
		ON CONFLICT (id) DO UPDATE SET version = excluded.version`
	tag, err := conn.Exec(ctx, sql, r.Headers["eventId"], string(r.Key), string(r.Value))
	return err == nil && tag.RowsAffected() == 1
}

func (a *applier) close() {
	for range len(a.conns) {
		_ = (<-a.conns).Close(context.Background())
	}
}
