package rig

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// settling is how long a contender may still be busy with its start.
const settling = 3 * time.Second

// Idle has a contender wait for events which do not come, for some windows of time one after another, and returns its
// processor time in each as a part of one core. Meanwhile another table is written, at a rate that may be 0.
func (s *Servers) Idle(ctx context.Context, c Contender, o *Outbox, windows int, pace Pace) (shares []float64, err error) {
	t, err := s.createTopics(ctx, o.Shape)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.deleteTopics(ctx, t)) }()
	p, err := c.Start(ctx, s.job(o, o.base, t)) // the slot that setup knows: an idle connector keeps its record
	if err != nil {
		return nil, err
	}
	shares, err = s.watchIdle(ctx, p, o, t, windows, pace)
	_, stopped := p.Stop(ctx)
	if err := errors.Join(err, stopped); err != nil {
		return nil, fmt.Errorf("%s: %w; it logged:\n%s", c.Name(), err, p.Log())
	}
	return shares, nil
}

func (s *Servers) watchIdle(ctx context.Context, p *Process, o *Outbox, t topics, windows int, pace Pace) (shares []float64, err error) {
	err = session(ctx, o.dsn, func(conn *pgx.Conn) error {
		if _, err := (event{payload: "{}"}).commit(ctx, conn, func() {}); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, `CREATE TABLE IF NOT EXISTS other (id bigint, payload text)`)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("write the first event: %w", err)
	}
	if _, err := s.awaitRecords(ctx, p, t, 1); err != nil {
		return nil, err
	}
	if err := sleepUntil(ctx, time.Now().Add(settling)); err != nil {
		return nil, err
	}
	payload := pace.payload()
	for range windows {
		before, beforeErr := p.CPU()
		began := time.Now()
		if pace.Rate > 0 {
			_, err = pace.write(ctx, o.dsn, func(ctx context.Context, conn *pgx.Conn, number int) error {
				_, err := conn.Exec(ctx, `INSERT INTO other VALUES ($1, $2)`, number, payload)
				return err
			})
		} else {
			err = sleepUntil(ctx, began.Add(pace.Duration))
		}
		after, afterErr := p.CPU()
		if err := errors.Join(err, beforeErr, afterErr); err != nil {
			return nil, err
		}
		shares = append(shares, float64(after-before)/float64(time.Since(began)))
	}
	return shares, nil
}
