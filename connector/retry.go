package connector

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pombo-cdc/pombo/checkpoint"
	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/outbox"
	"github.com/pombo-cdc/pombo/replication"
	"github.com/pombo-cdc/pombo/sink"
)

// A retry publishes and settles so many parked events at a time: what is published twice if it is cut off.
const (
	retryEvents = 1000
	retryBytes  = 4 << 20
)

// RetryOptions say which parked events to retry. What they report to is called on a goroutine of Retry, and may be nil.
type RetryOptions struct {
	Which    *outbox.Which                // one event and all with its key; nil: all
	Progress func(done, total int64)      // after each part
	Refused  func(refused outbox.Refusal) // for each event that is still refused
}

// RetryResult counts what a retry has done.
type RetryResult struct {
	Published int64
	Refused   int64
	Left      int64 // still parked: refused, or behind refused ones
}

// Retry publishes parked events in their order, with the topics that they have by now, and deletes those that are
// published. The connector may run meanwhile: as long as an event of a lane is parked it parks what follows behind it, so
// a lane is retried until none is left, and is open then.
func Retry(ctx context.Context, cfg Config, opts RetryOptions) (RetryResult, error) {
	source := cfg.Source.Postgres.Copy()
	source.RuntimeParams["client_encoding"] = "UTF8"
	source.RuntimeParams["idle_session_timeout"] = "0" // it is idle while Kafka takes its time
	cfg.Source.Postgres = source
	conn, err := connect(ctx, cfg)
	if err != nil {
		return RetryResult{}, fmt.Errorf("connect to Postgres: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	unlock, err := outbox.LockManagement(ctx, conn, cfg.Source.Slot)
	if err != nil {
		return RetryResult{}, err
	}
	defer unlock()
	if err := outbox.CheckManaging(ctx, conn); err != nil {
		return RetryResult{}, err // before anything is published that could not be deleted
	}
	r := newRetry(cfg, conn, opts)
	if err := r.look(ctx); err != nil || r.total == 0 {
		return RetryResult{}, err
	}
	if err := r.publish(ctx); err != nil {
		return r.result, err
	}
	r.result.Left, err = outbox.CountScope(ctx, conn, cfg.Source.Slot, r.scope)
	return r.result, err
}

// retry is one call of Retry.
type retry struct {
	cfg  Config
	conn *pgx.Conn
	opts RetryOptions

	layout *decoder.Layout // the connector's and, behind it, the seq
	pool   *decoder.Pool
	filled chan *decoder.Batch
	rest   *leftovers

	scope   outbox.Scope
	total   int64              // events in scope at the beginning
	batch   *decoder.Batch     // being filled
	part    []parkedEvent      // that is under way
	blocked map[sink.Lane]bool // where one was refused
	result  RetryResult
}

type parkedEvent struct {
	seq  int64
	lane sink.Lane // in which it is parked, whatever it would be by now
}

func newRetry(cfg Config, conn *pgx.Conn, opts RetryOptions) *retry {
	layout := *cfg.Layout
	layout.Columns = append(slices.Clone(layout.Columns), "seq")
	return &retry{
		cfg:     cfg,
		conn:    conn,
		opts:    opts,
		layout:  &layout,
		pool:    decoder.NewPool(cfg.Buffer, &layout),
		filled:  make(chan *decoder.Batch, decoder.Batches),
		rest:    &leftovers{seq: decoder.Column(len(cfg.Layout.Columns)), blocked: make(map[sink.Lane]bool)},
		blocked: make(map[sink.Lane]bool),
	}
}

// look finds out what is to be done.
func (r *retry) look(ctx context.Context) error {
	if r.opts.Which != nil {
		event, err := outbox.FindParked(ctx, r.conn, r.cfg.Source.Slot, *r.opts.Which)
		if err != nil {
			return err
		}
		r.scope = outbox.ScopeOf(event)
	}
	var err error
	r.total, err = outbox.CountScope(ctx, r.conn, r.cfg.Source.Slot, r.scope)
	return err
}

// publish runs a sink and feeds it.
func (r *retry) publish(ctx context.Context) error {
	to := r.cfg.Kafka
	if to.ProducerName != "" {
		to.ProducerName += "-retry" // this fences off a retry that was cut off, and not the running connector
	}
	to.Parking = r.rest
	kafka, err := sink.Open(ctx, to, r.cfg.Router, r.pool, new(checkpoint.Position), r.cfg.Log)
	if err != nil {
		return err
	}
	defer func() { _ = kafka.Close() }()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return kafka.Run(ctx, r.filled) })
	group.Go(func() error {
		defer close(r.filled)
		return r.feed(ctx)
	})
	return group.Wait()
}

// feed publishes part after part, until nothing is left but lanes that are blocked. What is parked meanwhile comes last, as its
// seq is the highest.
func (r *retry) feed(ctx context.Context) error {
	for after, done := int64(0), int64(0); ; {
		if err := r.publishPart(ctx, after); err != nil || len(r.part) == 0 {
			return err
		}
		after = r.part[len(r.part)-1].seq
		done += int64(len(r.part))
		if r.opts.Progress != nil {
			r.opts.Progress(done, max(done, r.total))
		}
	}
}

// publishPart publishes and settles the next events.
func (r *retry) publishPart(ctx context.Context, after int64) error {
	r.part = r.part[:0]
	part := outbox.Part{After: after, But: []sink.Lane{}, Count: retryEvents, Size: retryBytes}
	for lane := range r.blocked {
		part.But = append(part.But, lane)
	}
	err := outbox.ReadParked(ctx, r.conn, r.cfg.Source.Slot, r.scope, part, func(row outbox.ParkedRow) error { return r.add(ctx, row) })
	if err != nil || len(r.part) == 0 {
		return err
	}
	r.handOver()
	if err := r.awaitSettled(ctx); err != nil {
		return err
	}
	return r.settle(ctx)
}

// add puts an event into the batch that is being filled, or the next.
func (r *retry) add(ctx context.Context, row outbox.ParkedRow) error {
	values, err := r.values(row)
	if err != nil {
		return err
	}
	for r.batch == nil || !r.batch.Append(row.CommittedAt, values) {
		r.handOver()
		if err := r.takeBatch(ctx, values); err != nil {
			return err
		}
	}
	r.part = append(r.part, parkedEvent{row.Seq, row.Lane})
	return nil
}

// values returns the values of the layout's columns, lent from the row.
func (r *retry) values(row outbox.ParkedRow) ([][]byte, error) {
	var values [][]byte
	for _, name := range r.cfg.Layout.Columns {
		i := slices.Index(row.Columns, name)
		if i < 0 {
			return nil, &replication.ActionError{
				Problem: fmt.Sprintf("parked event seq %d lacks column %q: it has %s", row.Seq, name, strings.Join(row.Columns, ", ")),
				Cure:    "name those with --column and --header, or discard the event",
			}
		}
		values = append(values, row.Cells[i])
	}
	return append(values, binary.BigEndian.AppendUint64(nil, uint64(row.Seq))), nil
}

func (r *retry) handOver() {
	if r.batch != nil {
		r.filled <- r.batch // which has room for all there are
		r.batch = nil
	}
}

// takeBatch waits for a batch with room for a row.
func (r *retry) takeBatch(ctx context.Context, values [][]byte) (err error) {
	size := 0
	for _, value := range values {
		size += len(value)
	}
	if r.batch, err = r.free(ctx); err != nil {
		return err
	}
	for !r.pool.Prepare(r.batch, size) {
		other, err := r.free(ctx)
		if err != nil {
			return err
		}
		r.batch.Lend(other)
	}
	return nil
}

func (r *retry) free(ctx context.Context) (*decoder.Batch, error) {
	select {
	case b := <-r.pool.Free():
		return b, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// awaitSettled waits until everything handed over is published or refused: then all batches are free.
func (r *retry) awaitSettled(ctx context.Context) error {
	var all []*decoder.Batch
	for range decoder.Batches {
		b, err := r.free(ctx)
		if err != nil {
			return err
		}
		all = append(all, b)
	}
	for _, b := range all {
		r.pool.Recycle(b)
	}
	return nil
}

// settle deletes the part's events that are published, and keeps why others are not.
func (r *retry) settle(ctx context.Context) error {
	refused := make(map[int64]bool)
	for _, refusal := range r.rest.refused {
		refused[refusal.Seq] = true
	}
	var delivered []int64
	for _, e := range r.part {
		switch {
		case !refused[e.seq]:
			delivered = append(delivered, e.seq)
		case e.lane != 0:
			r.blocked[e.lane] = true
		}
	}
	if err := outbox.Settle(ctx, r.conn, r.cfg.Source.Slot, delivered, r.rest.refused); err != nil {
		return err
	}
	r.result.Published += int64(len(delivered))
	for _, refusal := range r.rest.refused {
		if refusal.Reason == "" {
			continue
		}
		r.result.Refused++
		if r.opts.Refused != nil {
			r.opts.Refused(refusal)
		}
	}
	r.rest.refused = r.rest.refused[:0]
	return nil
}

// leftovers is the sink.Parking of a retry: its events are parked already, so it only takes down which of them stay.
// Between two parts it belongs to the goroutine that feeds the sink, and else to the sink's.
type leftovers struct {
	seq     decoder.Column
	blocked map[sink.Lane]bool // as events are routed now
	refused []outbox.Refusal   // of the part that is under way
}

// Lanes implements sink.Parking.
func (l *leftovers) Lanes(context.Context) ([]sink.Lane, error) {
	return slices.Collect(maps.Keys(l.blocked)), nil
}

// Park implements sink.Parking.
func (l *leftovers) Park(_ context.Context, events []sink.ParkedEvent) ([]bool, error) {
	parked := make([]bool, len(events))
	for i, e := range events {
		if e.Reason == "" && !l.blocked[e.Lane] && !l.blocked[e.TypeLane] {
			continue
		}
		parked[i] = true
		if e.Lane != 0 {
			l.blocked[e.Lane] = true
		}
		seq := int64(binary.BigEndian.Uint64(e.Event.Column(l.seq)))
		l.refused = append(l.refused, outbox.NewRefusal(seq, e))
	}
	return parked, nil
}
