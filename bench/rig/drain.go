package rig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// drainLimit is far beyond what a drain takes.
const drainLimit = 10 * time.Minute

// errEnded is the end of a process that was to go on.
var errEnded = errors.New("the process has ended")

// Measurement is one drain.
type Measurement struct {
	Events int
	Took   time.Duration // from the start of the process to the last record
	Usage  Usage
	Sender time.Duration // processor time of the walsender; 0 if it is out of reach
}

// Rate is in events a second.
func (m Measurement) Rate() float64 { return float64(m.Events) / m.Took.Seconds() }

// CPU is what the process took, in µs an event.
func (m Measurement) CPU() float64 { return m.perEvent(m.Usage.CPU) }

// SenderCPU is what the walsender took, in µs an event.
func (m Measurement) SenderCPU() float64 { return m.perEvent(m.Sender) }

// Memory is in MiB.
func (m Measurement) Memory() float64 { return float64(m.Usage.Memory) / (1 << 20) }

func (m Measurement) perEvent(d time.Duration) float64 {
	return float64(d) / float64(time.Microsecond) / float64(m.Events)
}

// Drain has a contender publish all events of an outbox to new topics, each exactly once.
func (s *Servers) Drain(ctx context.Context, c Contender, o *Outbox) (m Measurement, err error) {
	t, err := s.createTopics(ctx, o.Shape)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, s.deleteTopics(ctx, t)) }()
	m, err = s.drain(ctx, c, o, t, func(ctx context.Context, p *Process) error {
		return s.awaitRecords(ctx, p, t, o.Shape.Events)
	})
	if err != nil {
		return m, err
	}
	n, err := s.count(ctx, t)
	if err == nil && n != int64(o.Shape.Events) {
		err = fmt.Errorf("%s has published %d records of %d events", c.Name(), n, o.Shape.Events)
	}
	return m, err
}

// Receive is the reference for a drain: pg_recvlogical reads the same slot and throws away what comes, as fast as Postgres
// can decode for one reader.
func (s *Servers) Receive(ctx context.Context, o *Outbox) (Measurement, error) {
	c := receiver{dir: s.postgres.BinDir(), end: o.end}
	return s.drain(ctx, c, o, topics{}, func(ctx context.Context, p *Process) error {
		select {
		case <-p.Exited():
			return p.failure()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// drain runs a contender on a slot at the first event until done returns.
func (s *Servers) drain(ctx context.Context, c Contender, o *Outbox, t topics, done func(context.Context, *Process) error) (m Measurement, err error) {
	if o.Shape.Events == 0 {
		return m, errors.New("there is no whole transaction to drain")
	}
	slot, err := s.slotAtStart(ctx, o)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, o.dropSlot(ctx, slot)) }()
	sender := s.watchSender(ctx, slot)
	began := time.Now()
	p, err := c.Start(ctx, s.job(o, slot, t))
	if err != nil {
		return m, errors.Join(err, sender.stop())
	}
	limited, cancel := context.WithTimeoutCause(ctx, drainLimit, fmt.Errorf("not done within %v", drainLimit))
	defer cancel()
	err = done(limited, p)
	m = Measurement{Events: o.Shape.Events, Took: time.Since(began)}
	watched := sender.stop()
	m.Sender = sender.cpu
	var stopped error
	m.Usage, stopped = p.Stop(ctx)
	if err := errors.Join(err, stopped, watched); err != nil {
		return m, fmt.Errorf("%s: %w; it logged:\n%s", c.Name(), err, p.Log())
	}
	return m, nil
}

// sender is a watch over the walsender of a slot.
type sender struct {
	cancel context.CancelFunc
	done   chan struct{}
	cpu    time.Duration // the last that was seen, at most an interval old
	err    error
}

// watchSender looks at the walsender that serves a slot until it is stopped, as there is nothing to look at once its client
// is gone. In a container it has no process here.
func (s *Servers) watchSender(ctx context.Context, slot string) *sender {
	ctx, cancel := context.WithCancel(ctx)
	w := &sender{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		if s.postgres.BinDir() == "" {
			return
		}
		err := session(ctx, s.postgres.DSN("postgres"), func(conn *pgx.Conn) error { return w.watch(ctx, conn, slot) })
		if ctx.Err() == nil {
			w.err = err
		}
	}()
	return w
}

func (w *sender) watch(ctx context.Context, conn *pgx.Conn, slot string) error {
	var pid int
	var err error
	stopped := await(ctx, nil, func() bool {
		if pid == 0 {
			const sql = `SELECT coalesce(max(active_pid), 0) FROM pg_replication_slots WHERE slot_name = $1`
			err = conn.QueryRow(ctx, sql, slot).Scan(&pid)
			return err != nil
		}
		cpu, gone := cpuOf(pid)
		if gone == nil {
			w.cpu = cpu
		}
		return gone != nil
	})
	return cmp.Or(err, stopped)
}

func (w *sender) stop() error {
	w.cancel()
	<-w.done
	return w.err
}
