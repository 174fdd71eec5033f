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
	Sender time.Duration // processor time of the walsender, or of the backend that is polled; 0 if it is out of reach
	First  Progress      // when the first records were seen
}

// Progress is how far a drain has come.
type Progress struct {
	Records int
	Took    time.Duration // since the start of the process
	CPU     time.Duration // of the process
}

// Running is the part of a drain that comes after its first records, and so without the start of the process.
func (m Measurement) Running() Measurement {
	return Measurement{
		Events: m.Events - m.First.Records,
		Took:   m.Took - m.First.Took,
		Usage:  Usage{CPU: m.Usage.CPU - m.First.CPU, Memory: m.Usage.Memory},
	}
}

// Rate is in events a second.
func (m Measurement) Rate() float64 { return float64(m.Events) / m.Took.Seconds() }

// CPU is what the process took, in µs an event.
func (m Measurement) CPU() float64 { return m.perEvent(m.Usage.CPU) }

// SenderCPU is what Sender is an event, in µs.
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
	var first Progress
	m, err = s.drain(ctx, c, o, t, func(ctx context.Context, p *Process, began time.Time) (err error) {
		if first.Records, err = s.awaitRecords(ctx, p, t, 1); err != nil {
			return err
		}
		first.Took = time.Since(began)
		if first.CPU, err = p.CPU(); err != nil {
			return err
		}
		_, err = s.awaitRecords(ctx, p, t, o.Shape.Events)
		return err
	})
	if err != nil {
		return m, err
	}
	m.First = first
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
	return s.drain(ctx, c, o, topics{}, func(ctx context.Context, p *Process, _ time.Time) error {
		select {
		case <-p.Exited():
			return p.failure()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// drain runs a contender on a slot at the first event until done, which is told when it began, returns.
func (s *Servers) drain(ctx context.Context, c Contender, o *Outbox, t topics, done func(context.Context, *Process, time.Time) error) (m Measurement, err error) {
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
	err = done(limited, p, began)
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

// sender is a watch over the backend that serves a contender.
type sender struct {
	cancel context.CancelFunc
	done   chan struct{}
	cpu    time.Duration // the last that was seen, at most an interval old
	err    error
}

// watchSender looks at the walsender of a slot, or at the session that has the slot's name because it polls instead, until it
// is stopped, as there is nothing to look at once its client is gone. In a container it has no process here.
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
			const sql = `SELECT coalesce(max(pid), 0) FROM (
				SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1
				UNION ALL SELECT pid FROM pg_stat_activity WHERE application_name = $1) AS serving (pid)`
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
