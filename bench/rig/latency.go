package rig

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// arrivalLimit is how long the first record, and the last, may take.
	arrivalLimit = time.Minute
	// first is the number of the event that shows that everything works, before the others are written.
	first = -1
)

// Delivery is what became of the transactions of a pace, of one event each.
type Delivery struct {
	Latency *hdrhistogram.Histogram // µs from just before COMMIT to the consumer
	Commit  *hdrhistogram.Histogram // µs that COMMIT took
	Behind  time.Duration           // how late the latest transaction began
}

// Latency measures a contender.
func (s *Servers) Latency(ctx context.Context, c Contender, o *Outbox, pace Pace) (d Delivery, err error) {
	slot, err := s.slotAtEnd(ctx, o)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, o.dropSlot(ctx, slot)) }()
	return s.deliver(ctx, o, pace, func(t topics) (*trial, error) {
		p, err := c.Start(ctx, s.job(o, slot, t))
		if err != nil {
			return nil, err
		}
		return &trial{
			publish: func(event) {},
			exited:  p.Exited(),
			stop: func() error {
				_, err := p.Stop(ctx)
				return err
			},
			log: p.Log,
		}, nil
	})
}

// Floor measures the least that is possible: the writer itself sends the event to Kafka once COMMIT has returned. What is
// lost between the two is lost, which is why nobody should do that.
func (s *Servers) Floor(ctx context.Context, o *Outbox, pace Pace) (Delivery, error) {
	return s.deliver(ctx, o, pace, func(t topics) (*trial, error) {
		producer, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Brokers()...), kgo.DefaultProduceTopic(t.template), kgo.ProducerLinger(0))
		if err != nil {
			return nil, fmt.Errorf("open producer: %w", err)
		}
		return &trial{
			publish: func(e event) {
				producer.Produce(ctx, &kgo.Record{Key: []byte(e.key()), Value: []byte(e.payload)}, nil) // a failure is missed by the consumer
			},
			stop: func() error {
				defer producer.Close()
				return producer.Flush(ctx)
			},
			log: func() string { return "" },
		}, nil
	})
}

// trial is what brings events to the topic while a pace is written.
type trial struct {
	publish func(event) // is called after each COMMIT
	exited  <-chan struct{}
	stop    func() error
	log     func() string
}

func (s *Servers) deliver(ctx context.Context, o *Outbox, pace Pace, start func(topics) (*trial, error)) (d Delivery, err error) {
	t, err := s.createTopics(ctx, o.Shape)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, s.deleteTopics(ctx, t)) }()
	arrivals, err := s.consume(ctx, t, pace)
	if err != nil {
		return d, err
	}
	defer arrivals.close()
	trial, err := start(t)
	if err != nil {
		return d, err
	}
	d, err = arrivals.measure(ctx, o, pace, trial)
	if err := errors.Join(err, trial.stop()); err != nil {
		return d, fmt.Errorf("%w; the log has:\n%s", err, trial.log())
	}
	return d, nil
}

// arrivals is the consumer: it knows when each event was sent.
type arrivals struct {
	client  *kgo.Client
	done    sync.WaitGroup
	from    int // the first number that counts
	sent    []atomic.Int64
	missing int
	latency *hdrhistogram.Histogram // belongs to the consuming goroutine until close
	began   time.Time
	opened  chan struct{} // closed when the first has arrived
	all     chan struct{} // closed when all others have arrived
}

func (s *Servers) consume(ctx context.Context, t topics, pace Pace) (*arrivals, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Brokers()...), kgo.ConsumeTopics(t.names...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMinBytes(1), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("open consumer: %w", err)
	}
	n := pace.transactions()
	a := &arrivals{
		client: client, from: int(float64(pace.Rate) * pace.Lead.Seconds()), sent: make([]atomic.Int64, n), missing: n,
		latency: histogram(), began: time.Now(), opened: make(chan struct{}), all: make(chan struct{}),
	}
	a.done.Go(func() { a.follow(ctx) })
	return a, nil
}

func (a *arrivals) close() {
	a.client.Close()
	a.done.Wait()
}

// follow notes when each event arrives first.
func (a *arrivals) follow(ctx context.Context) {
	open := sync.OnceFunc(func() { close(a.opened) })
	for {
		fetches := a.client.PollFetches(ctx)
		if fetches.IsClientClosed() || ctx.Err() != nil {
			return
		}
		now := a.clock()
		fetches.EachRecord(func(r *kgo.Record) {
			number, err := strconv.Atoi(string(r.Key))
			switch {
			case err != nil || number >= len(a.sent):
			case number == first:
				open()
			default:
				a.arrive(number, now)
			}
		})
	}
}

func (a *arrivals) arrive(number int, now int64) {
	sent := a.sent[number].Swap(0)
	if sent == 0 {
		return // a duplicate
	}
	if number >= a.from {
		record(a.latency, now-sent)
	}
	if a.missing--; a.missing == 0 {
		close(a.all)
	}
}

// clock is in ns, and never 0.
func (a *arrivals) clock() int64 { return int64(time.Since(a.began)) + 1 }

// measure shows with one event that the way is open, and then writes the others.
func (a *arrivals) measure(ctx context.Context, o *Outbox, pace Pace, trial *trial) (d Delivery, err error) {
	err = session(ctx, o.dsn, func(conn *pgx.Conn) error {
		e := event{first, pace.payload()}
		_, err := e.commit(ctx, conn, func() {})
		trial.publish(e)
		return err
	})
	if err != nil {
		return d, fmt.Errorf("write the first event: %w", err)
	}
	if err := awaitArrival(ctx, a.opened, trial.exited); err != nil {
		return d, fmt.Errorf("await the first event: %w", err)
	}
	if d, err = a.write(ctx, o, pace, trial); err != nil {
		return d, fmt.Errorf("write events: %w", err)
	}
	if err := awaitArrival(ctx, a.all, trial.exited); err != nil {
		return d, fmt.Errorf("await the last event: %w", err)
	}
	a.close()
	d.Latency = a.latency
	return d, nil
}

// write writes the events, and notes how long each COMMIT took.
func (a *arrivals) write(ctx context.Context, o *Outbox, pace Pace, trial *trial) (d Delivery, err error) {
	d.Commit = histogram()
	var mu sync.Mutex // of d.Commit
	payload := pace.payload()
	d.Behind, err = pace.write(ctx, o.dsn, func(ctx context.Context, conn *pgx.Conn, number int) error {
		e := event{number, payload}
		took, err := e.commit(ctx, conn, func() { a.sent[number].Store(a.clock()) })
		if err != nil {
			return err
		}
		trial.publish(e)
		if number >= a.from {
			mu.Lock()
			defer mu.Unlock()
			record(d.Commit, int64(took))
		}
		return nil
	})
	return d, err
}

func awaitArrival(ctx context.Context, arrived, exited <-chan struct{}) error {
	limit := time.NewTimer(arrivalLimit)
	defer limit.Stop()
	select {
	case <-arrived:
		return nil
	case <-exited:
		return errEnded
	case <-limit.C:
		return fmt.Errorf("not there within %v", arrivalLimit)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Milliseconds is a figure for what a Delivery has in µs.
func Milliseconds(microseconds int64) float64 {
	return float64(microseconds) * float64(time.Microsecond) / float64(time.Millisecond)
}

func histogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, arrivalLimit.Microseconds(), 3)
}

// record takes ns.
func record(h *hdrhistogram.Histogram, took int64) {
	_ = h.RecordValue(min(max(1, took/1000), h.HighestTrackableValue())) // an error would be that it is out of range
}
