package rig

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// Pace is how transactions are written: each at its time, by the next of some connections.
type Pace struct {
	Rate     int           // transactions a second
	Lead     time.Duration // written before what counts
	Duration time.Duration // of what counts
	Payload  int           // bytes
}

// Lead is the lead of a Pace that needs no longer one.
const Lead = time.Second

// writers are the connections of an application, enough to keep a pace while each waits for the disk.
const writers = 16

func (p Pace) transactions() int { return int(float64(p.Rate) * (p.Lead + p.Duration).Seconds()) }

func (p Pace) payload() string {
	const head, tail = `{"note":"`, `"}`
	return head + strings.Repeat("x", max(0, p.Payload-len(head+tail))) + tail
}

// write calls transact with each number from 0 on, when it is due, and returns how late the latest began.
func (p Pace) write(ctx context.Context, dsn string, transact func(ctx context.Context, conn *pgx.Conn, number int) error) (behind time.Duration, err error) {
	conns := make([]*pgx.Conn, writers)
	for i := range conns {
		if conns[i], err = pgx.Connect(ctx, dsn); err != nil {
			return 0, err
		}
		defer func() { _ = conns[i].Close(context.WithoutCancel(ctx)) }()
	}
	lags := make([]time.Duration, writers)
	begin := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for i, conn := range conns {
		group.Go(func() error {
			for number := i; number < p.transactions(); number += writers {
				due := begin.Add(time.Duration(number) * time.Second / time.Duration(p.Rate))
				if err := sleepUntil(ctx, due); err != nil {
					return err
				}
				lags[i] = max(lags[i], time.Since(due))
				if err := transact(ctx, conn, number); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = group.Wait()
	for _, lag := range lags {
		behind = max(behind, lag)
	}
	return behind, err
}

func sleepUntil(ctx context.Context, due time.Time) error {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// event is what a writer inserts. Its key is its number, which every contender passes on as it is.
type event struct {
	number  int
	payload string
}

func (e event) key() string { return strconv.Itoa(e.number) }

// insert begins a transaction with the event, in one round trip, and leaves the COMMIT to the caller.
func (e event) insert(ctx context.Context, conn *pgx.Conn) error {
	const sql = `INSERT INTO ` + outboxTable + ` (id, aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ($1, 'Order', $2, 'OrderChanged', $3, now())`
	var batch pgx.Batch
	batch.Queue("BEGIN")
	batch.Queue(sql, uuid.New(), e.key(), e.payload)
	return conn.SendBatch(ctx, &batch).Close()
}

// commit writes the event in a transaction of its own, calls sending just before COMMIT, and returns how long that took.
func (e event) commit(ctx context.Context, conn *pgx.Conn, sending func()) (time.Duration, error) {
	if err := e.insert(ctx, conn); err != nil {
		return 0, err
	}
	sending()
	began := time.Now()
	_, err := conn.Exec(ctx, "COMMIT")
	return time.Since(began), err
}
