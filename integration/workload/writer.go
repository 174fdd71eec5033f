package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Schema is what a Writer needs beside the outbox table: an aggregate with a sequence number, taken under a row lock, so
// that it equals commit order.
const Schema = `CREATE TABLE IF NOT EXISTS aggregate (id text PRIMARY KEY, seq bigint NOT NULL DEFAULT 0)`

// Writer writes transactions with events of random aggregates to public.outbox_event. Use one for each goroutine.
type Writer struct {
	Conn       *pgx.Conn
	Ledger     *Ledger
	Type       string // aggregate type
	Topic      string // where events of that type have to arrive
	Aggregates int    // how many there are to choose from
	Rand       *rand.Rand
}

const insertEvent = `INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ($1, $2, $3, $4, $5, now())`

// Transaction commits, or rolls back, the given number of events of one aggregate. An error leaves them in doubt.
func (w *Writer) Transaction(ctx context.Context, events int, commit bool) error {
	tx, err := w.Conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	key := fmt.Sprintf("%s-%d", w.Type, w.Rand.IntN(w.Aggregates))
	var seq int64
	const next = `INSERT INTO aggregate AS a (id, seq) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET seq = a.seq + $2 RETURNING seq`
	if err := tx.QueryRow(ctx, next, key, events).Scan(&seq); err != nil {
		return fmt.Errorf("take sequence numbers: %w", err)
	}
	written := make([]Event, events)
	batch := &pgx.Batch{}
	for i := range written {
		e := Event{
			ID:    uuid.NewString(),
			Topic: w.Topic,
			Key:   key,
			Seq:   seq - int64(events) + int64(i) + 1,
			Type:  w.Type + "Changed",
		}
		e.Payload = fmt.Appendf(nil, `{"aggregate":%q,"seq":%d,"note":%q}`, key, e.Seq, strings.Repeat("é", w.Rand.IntN(100)))
		written[i] = e
		batch.Queue(insertEvent, e.ID, w.Type, e.Key, e.Type, string(e.Payload))
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("insert events: %w", err)
	}
	w.Ledger.Intend(written...)
	if !commit {
		w.Ledger.RolledBack(written...)
		return nil
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	w.Ledger.Committed(written...)
	return nil
}

// Run writes transactions of one to five events until ctx is done; one in ten is rolled back.
func (w *Writer) Run(ctx context.Context, pace <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-pace:
			if !ok {
				return nil
			}
		}
		// A transaction that has begun is finished, so that its fate is known.
		err := w.Transaction(context.WithoutCancel(ctx), 1+w.Rand.IntN(5), w.Rand.IntN(10) > 0)
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
}
