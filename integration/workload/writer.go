package workload

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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

	// Large is the length of the longest payload, in bytes; one in fifty is that long or less. 0 is no large ones.
	Large int
	// Poison is the length of payloads that no compression makes smaller, in bytes; one in five hundred is such. 0 is none.
	Poison int
	// Connect gets another connection when Conn is lost. If it is nil, Run ends then.
	Connect func(context.Context) (*pgx.Conn, error)

	doubt []Event // of the transaction whose COMMIT was not answered
}

// takeSequence locks the row of an aggregate, also of one that another transaction is just adding.
const takeSequence = `INSERT INTO aggregate AS a (id, seq) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET seq = a.seq + $2 RETURNING seq`

const insertEvent = `INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ($1, $2, $3, $4, $5, now())`

// Transaction commits, or rolls back, the given number of events of one aggregate. An error of COMMIT leaves them in doubt.
func (w *Writer) Transaction(ctx context.Context, events int, commit bool) error {
	tx, err := w.Conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	key := fmt.Sprintf("%s-%d", w.Type, w.Rand.IntN(w.Aggregates))
	var seq int64
	if err := tx.QueryRow(ctx, takeSequence, key, events).Scan(&seq); err != nil {
		return fmt.Errorf("take sequence numbers: %w", err)
	}
	written := make([]Event, events)
	batch := &pgx.Batch{}
	for i := range written {
		e := w.event(key, seq-int64(events)+int64(i)+1)
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
		w.doubt = written
		return fmt.Errorf("commit: %w", err)
	}
	w.Ledger.Committed(written...)
	return nil
}

func (w *Writer) event(key string, seq int64) Event {
	note := strings.Repeat("é", w.Rand.IntN(100))
	switch {
	case w.Poison > 0 && w.Rand.IntN(500) == 0:
		noise := make([]byte, w.Poison/2)
		for i := range noise {
			noise[i] = byte(w.Rand.Uint32())
		}
		note = hex.EncodeToString(noise)
	case w.Large > 0 && w.Rand.IntN(50) == 0:
		note = strings.Repeat("é", w.Rand.IntN(w.Large/len("é")))
	}
	return Event{
		ID:      uuid.NewString(),
		Topic:   w.Topic,
		Key:     key,
		Seq:     seq,
		Type:    w.Type + "Changed",
		Payload: fmt.Appendf(nil, `{"aggregate":%q,"seq":%d,"note":%q}`, key, seq, note),
	}
}

// Run writes transactions of one to five events until ctx is done; one in ten is rolled back. What is in doubt when it
// returns without an error has been found out.
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
		whole := context.WithoutCancel(ctx)
		err := w.Transaction(whole, 1+w.Rand.IntN(5), w.Rand.IntN(10) > 0)
		if w.Connect != nil && connectionLost(err) {
			err = w.recover(whole, err)
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
}

const (
	reconnectInterval = 100 * time.Millisecond
	// reconnectTimeout is how long a server may be away.
	reconnectTimeout = 3 * time.Minute
)

// connectionLost reports whether a transaction failed because its server went away, which the server may have said: the
// classes are connection exception and operator intervention.
func connectionLost(err error) bool {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return strings.HasPrefix(pgErr.Code, "08") || strings.HasPrefix(pgErr.Code, "57")
	}
	return err != nil
}

// recover goes on after an error with another connection, as soon as there is one, and finds out what is in doubt.
func (w *Writer) recover(ctx context.Context, cause error) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		_ = w.Conn.Close(ctx)
		conn, err := w.Connect(ctx)
		if err != nil {
			return struct{}{}, err
		}
		w.Conn = conn
		return struct{}{}, w.settle(ctx)
	}, backoff.WithBackOff(backoff.NewConstantBackOff(reconnectInterval)), backoff.WithMaxElapsedTime(reconnectTimeout))
	if err != nil {
		return fmt.Errorf("go on after %w: %w", cause, err)
	}
	return nil
}

// settle asks whether the events in doubt are there. Should the server still be at work on their transaction, that has
// the lock on their aggregate, which is waited for first.
func (w *Writer) settle(ctx context.Context) error {
	if len(w.doubt) == 0 {
		return nil
	}
	tx, err := w.Conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, takeSequence, w.doubt[0].Key, 0); err != nil {
		return err
	}
	var there bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox_event WHERE id = $1)`, w.doubt[0].ID).Scan(&there); err != nil {
		return err
	}
	if there {
		w.Ledger.Committed(w.doubt...)
	} else {
		w.Ledger.RolledBack(w.doubt...)
	}
	w.doubt = nil
	return nil
}

// KeepPace paces Writers that share it until ctx is done. What they cannot keep up with is not made up for.
func KeepPace(ctx context.Context, pace chan<- struct{}, perSecond int) {
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		select {
		case pace <- struct{}{}:
		case <-ctx.Done():
			return
		}
	}
}
