package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pombo-cdc/pombo/replication"
	"github.com/pombo-cdc/pombo/sink"
)

// Parked is an event in pombo.parked_event, without its row.
type Parked struct {
	Seq         int64     // its place in the order
	ID          *string   // nil: the row's is NULL
	Topic       string    // empty: it has none
	Key         []byte    // nil: NULL
	Reason      string    // empty: it waits behind another of its lane
	Size        int64     // of the row, in bytes
	CommittedAt time.Time // to the microsecond
	ParkedAt    time.Time
	Lane        sink.Lane
	Waiting     int64 // events of its lane that are behind it
}

// Name is what to call the event in a message.
func (p Parked) Name() string {
	if p.ID == nil {
		return fmt.Sprintf("without id (seq %d)", p.Seq)
	}
	return *p.ID
}

const parkedQuery = `
SELECT seq, event_id, coalesce(topic, ''), key, coalesce(reason, '') AS reason, size, committed_at, parked_at, lane,
  CASE lane WHEN 0 THEN 0 ELSE count(*) OVER (PARTITION BY lane ORDER BY seq DESC) - 1 END AS waiting,
  lane = 0 OR row_number() OVER (PARTITION BY lane ORDER BY seq) = 1 AS first
FROM pombo.parked_event WHERE slot = $1`

func (p *Parked) fields() []any {
	return []any{&p.Seq, &p.ID, &p.Topic, &p.Key, &p.Reason, &p.Size, &p.CommittedAt, &p.ParkedAt, &p.Lane, &p.Waiting, nil}
}

// ListParked calls yield for the slot's parked events in their order. Those that only wait behind another are left out
// unless all are wanted.
func ListParked(ctx context.Context, conn *pgx.Conn, slot string, all bool, yield func(Parked) error) error {
	rows, err := conn.Query(ctx, `SELECT * FROM (`+parkedQuery+`) e WHERE $2 OR first OR reason <> '' ORDER BY seq`, slot, all)
	if err == nil {
		var p Parked
		_, err = pgx.ForEachRow(rows, p.fields(), func() error { return yield(p) })
	}
	return manageError("list parked events", conn, err)
}

// Which names a parked event.
type Which struct {
	ID  string // used where Seq is 0
	Seq int64
}

// FindParked returns one event. An id that several have, or none, is an error.
func FindParked(ctx context.Context, conn *pgx.Conn, slot string, which Which) (Parked, error) {
	found, err := findParked(ctx, conn, slot, which)
	if err != nil {
		return Parked{}, manageError("look for parked event", conn, err)
	}
	switch len(found) {
	case 0:
		name := fmt.Sprintf("id %q", which.ID)
		if which.Seq != 0 {
			name = fmt.Sprintf("seq %d", which.Seq)
		}
		return Parked{}, fmt.Errorf("no parked event of slot %s has %s: `pombo parked list --all` shows them", slot, name)
	case 1:
		return found[0], nil
	default:
		return Parked{}, fmt.Errorf("%d parked events have id %q, the first with --seq %d: `pombo parked list --all` shows them, name one with --seq",
			len(found), which.ID, found[0].Seq)
	}
}

func findParked(ctx context.Context, conn *pgx.Conn, slot string, which Which) ([]Parked, error) {
	const query = `
SELECT seq, event_id, coalesce(topic, ''), key, coalesce(reason, ''), size, committed_at, parked_at, lane,
  (SELECT count(*) FROM pombo.parked_event b WHERE b.slot = e.slot AND b.lane = e.lane AND b.seq > e.seq AND e.lane <> 0), NULL
FROM pombo.parked_event e
WHERE slot = $1 AND CASE WHEN $2 <> 0 THEN seq = $2 ELSE hashtextextended(event_id, 0) = hashtextextended($3, 0) AND event_id = $3 END
ORDER BY seq`
	rows, err := conn.Query(ctx, query, slot, which.Seq, which.ID)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Parked, err error) {
		return p, row.Scan(p.fields()...)
	})
}

// ReadRow returns the columns of a parked event and their values, nil for NULL.
func ReadRow(ctx context.Context, conn *pgx.Conn, seq int64) (columns []string, cells [][]byte, err error) {
	err = conn.QueryRow(ctx, `SELECT columns, cells FROM pombo.parked_event WHERE seq = $1`, seq).Scan(&columns, &cells)
	return columns, cells, manageError("read parked event", conn, err)
}

// CountParked returns the number of the slot's parked events, or nil where the table is missing or the role may not read it.
func CountParked(ctx context.Context, conn *pgx.Conn, slot string) (*int64, error) {
	n := new(int64)
	err := conn.QueryRow(ctx, `SELECT count(*) FROM pombo.parked_event WHERE slot = $1`, slot).Scan(n)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "42P01" || pgErr.Code == "42501") { // undefined_table, insufficient_privilege
		return nil, nil //nolint:nilnil // said above
	}
	if err != nil {
		return nil, fmt.Errorf("count parked events: %w", err)
	}
	return n, nil
}

// LockManagement keeps other sessions from retrying or discarding the slot's parked events until unlock is called. Its error
// says that another does so already, or that the server cannot be asked.
func LockManagement(ctx context.Context, conn *pgx.Conn, slot string) (unlock func(), err error) {
	const key = `(hashtextextended('pombo parked ' || $1, 0))`
	var locked bool
	err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock`+key, slot).Scan(&locked)
	switch {
	case err != nil:
		return nil, fmt.Errorf("lock out others that retry parked events: %w", err)
	case !locked:
		return nil, fmt.Errorf("another `pombo parked retry` or discard of slot %s is under way: wait until it has ended", slot)
	}
	return func() {
		// Where this fails, the end of the session unlocks, but the server takes a moment to notice that.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		_, _ = conn.Exec(ctx, `SELECT pg_advisory_unlock`+key, slot)
	}, nil
}

// Discard deletes one parked event, and returns how many of its lane are left. The caller has LockManagement.
func Discard(ctx context.Context, conn *pgx.Conn, slot string, p Parked) (left int64, err error) {
	err = change(ctx, conn, slot, func(tx pgx.Tx) error {
		deleted, err := tx.Exec(ctx, `DELETE FROM pombo.parked_event WHERE slot = $1 AND seq = $2`, slot, p.Seq)
		switch {
		case err != nil:
			return err
		case deleted.RowsAffected() == 0:
			return fmt.Errorf("event %s is not parked any more", p.Name())
		}
		return tx.QueryRow(ctx, `SELECT count(*) FROM pombo.parked_event WHERE slot = $1 AND lane = $2 AND lane <> 0`, slot, p.Lane).Scan(&left)
	})
	return left, manageError("discard parked event", conn, err)
}

// change runs do in a transaction that has the slot's lock.
func change(ctx context.Context, conn *pgx.Conn, slot string, do func(pgx.Tx) error) error {
	return transact(ctx, conn, attemptTime, func(tx pgx.Tx) error {
		if err := lockSlot(ctx, tx, slot); err != nil {
			return err
		}
		return do(tx)
	})
}

// manageError names the step that failed, unless the operator is told what to do.
func manageError(step string, conn *pgx.Conn, err error) error {
	if err == nil {
		return nil
	}
	err = explain(err, conn.Config().User, rightsToManage)
	var action *replication.ActionError
	if errors.As(err, &action) {
		return err
	}
	return fmt.Errorf("%s: %w", step, err)
}
