package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pombo-cdc/pombo/integration/workload"
)

const (
	writers      = 16
	aggregates   = 50
	largePayload = 100_000 // bytes
	// patience is how long everything may take to arrive once all faults are over.
	patience = 3 * time.Minute
)

// play lets writers write and faults happen, and returns when everything has arrived and the instances have stopped.
func (s *stage) play(ctx context.Context, rec *record, rate int) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	topics := slices.Collect(maps.Values(aggregateTypes))
	consumer, err := workload.Consume(ctx, s.kafka.Direct(), topics, s.ledger.Observe)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, consumer.Close()) }()
	for _, i := range s.instances {
		go i.supervise()
		go func() {
			<-i.done
			if err := i.failure(); err != nil {
				cancel(err)
			}
		}()
	}
	go s.sessions.sample(ctx, s.dsn)

	err = s.trouble(ctx, rec, rate)
	if err == nil {
		err = s.settle(ctx)
	}
	for _, i := range s.instances {
		err = errors.Join(err, i.stop())
	}
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return s.readToTheEnd(ctx)
}

// trouble is the part of a run in which writers write and faults happen. It returns when the last fault is over and no
// event is in doubt.
func (s *stage) trouble(ctx context.Context, rec *record, rate int) error {
	group, playing := errgroup.WithContext(ctx)
	over, end := context.WithTimeout(playing, rec.duration)
	defer end()
	for number, t := range tracks() {
		faults := t.plan(rec.Seed, number, rec.duration)
		group.Go(func() error { return s.perform(playing, over, rec, faults) })
	}
	pace := make(chan struct{})
	group.Go(func() error {
		workload.KeepPace(over, pace, rate)
		return nil
	})
	for number := range writers {
		group.Go(func() error { return s.write(playing, over, rec.Seed, number, pace) })
	}
	return errors.Join(group.Wait(), s.heal())
}

// perform inflicts the faults of a track, one at a time.
func (s *stage) perform(ctx, over context.Context, rec *record, faults []fault) error {
	for _, f := range faults {
		select {
		case <-time.After(f.after):
		case <-over.Done():
			return nil
		}
		a := &act{fault: f, ctx: ctx, over: over, stage: s}
		began := time.Now()
		err := f.kind.inflict(a)
		rec.inflicted(a, began)
		if err != nil {
			return fmt.Errorf("%s: %w", f.kind.name, err)
		}
	}
	return nil
}

// write is one writer, for as long as the trouble lasts.
func (s *stage) write(ctx, over context.Context, seed uint64, number int, pace <-chan struct{}) error {
	types := slices.Sorted(maps.Keys(aggregateTypes))
	n := number % len(types)
	connect := func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, s.dsn) }
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	w := &workload.Writer{
		Conn: conn, Connect: connect, Ledger: s.ledger, Type: types[n], Topic: aggregateTypes[types[n]],
		Aggregates: (aggregates + n) / len(types), Rand: rand.New(rand.NewPCG(seed, uint64(1000+number))), Large: largePayload, Poison: poisonPayload,
	}
	defer func() { _ = w.Conn.Close(context.WithoutCancel(ctx)) }()
	return w.Run(over, pace)
}

// settle waits until everything is confirmed, has what is parked published, and waits until everything has arrived.
func (s *stage) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not everything arrives within %s", patience))
	defer cancel()
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var end string
	if err := conn.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&end); err != nil {
		return err
	}
	err = await(ctx, "the slot is not confirmed to its end", func() (confirmed bool, err error) {
		err = conn.QueryRow(ctx, `SELECT confirmed_flush_lsn >= $1::pg_lsn FROM pg_replication_slots`, end).Scan(&confirmed)
		return confirmed, err
	})
	if err != nil {
		return err
	}
	if err := s.publishParked(ctx, conn); err != nil {
		return err
	}
	_, err = s.ledger.Await(ctx, workload.Report.Complete)
	return err
}

// readToTheEnd waits until every record that is in the topics has been checked, so that no late one is missed.
func (s *stage) readToTheEnd(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client, err := sarama.NewClient(s.kafka.Direct(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	end := 0
	for _, topic := range aggregateTypes {
		for partition := range int32(partitions) {
			var offset int64
			err := await(ctx, fmt.Sprintf("%s/%d does not tell its end", topic, partition), func() (bool, error) {
				offset, err = client.GetOffset(topic, partition, sarama.OffsetNewest)
				return err == nil, nil // a partition with a new leader may need a moment
			})
			if err != nil {
				return err
			}
			end += int(offset)
		}
	}
	_, err = s.ledger.Await(ctx, func(r workload.Report) bool { return r.Records >= end })
	return err
}

// await asks again until something is done. Its error names what is not.
func await(ctx context.Context, what string, done func() (bool, error)) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		}
	}
}
