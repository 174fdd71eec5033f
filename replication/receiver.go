package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/pombo-cdc/pombo/checkpoint"
	"github.com/pombo-cdc/pombo/decoder"
)

const (
	// linger is how long a batch that is not full waits, at least, while the sender is busy anyway.
	linger = 5 * time.Millisecond

	// lateLinger is the linger of a late stream, for which large batches are what helps.
	lateLinger = 20 * time.Millisecond

	// lateness of a row, from its commit to its sending and both by the clock of Postgres, is what makes a stream late: its
	// latency is lost already, and throughput gets it back.
	lateness = 10 * time.Millisecond

	// worthBytes of rows are handed over at a commit even if more are here, so that the sender gets to work.
	worthBytes = 32 << 10

	// answerInterval is the shortest time between two reports, however often Postgres asks.
	answerInterval = 100 * time.Millisecond

	// silenceLimit is how long Postgres may at least say nothing although it is asked.
	silenceLimit = time.Minute
)

// Receiver reads a stream into batches, hands them over, and reports what has been flushed.
//
// It is one goroutine, because one goroutine may use the connection. The only thing it ever waits for,
// besides the socket, is a free batch, and it goes on reporting while it does: a slow Kafka must
// not look like a dead connector to Postgres.
type Receiver struct {
	stream  *Stream
	source  Source
	decoder *decoder.Decoder
	pool    *decoder.Pool
	filled  chan<- *decoder.Batch
	flushed *checkpoint.Position

	batch    *decoder.Batch // being filled; nil until a row needs one
	since    time.Time      // when the batch got its first row
	received pglogrepl.LSN  // all before it has been received, and no transaction spans it
	reported time.Time
	due      time.Time // of the next report
}

// NewReceiver returns a Receiver that sends to filled, which must have room for every batch of the pool,
// and reports flushed. It moves flushed to the slot's own position at once.
func NewReceiver(stream *Stream, src Source, layout *decoder.Layout, pool *decoder.Pool, filled chan<- *decoder.Batch, flushed *checkpoint.Position) *Receiver {
	flushed.Advance(stream.Confirmed())
	return &Receiver{
		stream:  stream,
		source:  src,
		decoder: decoder.New(layout, stream.table),
		pool:    pool,
		filled:  filled,
		flushed: flushed,
	}
}

// Run receives until stop is done, closes filled once the transaction under way is complete, waits until
// all batches have been released and confirms them. It returns nil after that, and an error when
// the stream breaks or ctx is done, which ends it at once.
func (r *Receiver) Run(ctx, stop context.Context) error {
	r.stream.reader.interrupted = func() bool { return ctx.Err() != nil || r.stopped(stop) }
	defer context.AfterFunc(ctx, r.stream.reader.interrupt)()
	defer context.AfterFunc(stop, r.stream.reader.interrupt)()

	err := r.receive(ctx, stop)
	close(r.filled)
	if err == nil {
		err = r.drain(ctx)
	}
	if err != nil && ctx.Err() == nil {
		return streamError(err, r.source)
	}
	// The connection is sound: what has been acknowledged by now need not be sent again.
	return errors.Join(err, r.report(context.WithoutCancel(ctx), false), r.stream.finish())
}

// receive is the loop of a healthy stream.
func (r *Receiver) receive(ctx, stop context.Context) error {
	r.due = time.Now()
	for !r.stopped(stop) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		r.stream.reader.wake = r.wake()
		data, err := r.stream.next()
		switch {
		case errors.Is(err, errTick):
			err = r.tick(ctx, time.Now())
		case err == nil:
			err = r.message(ctx, data)
		}
		if err != nil {
			return err
		}
	}
	r.handOver()
	return nil
}

// patience is the linger, doubled again and again as free batches get scarce: one whose events are stuck takes its place
// in the budget however few they are, so the last ones are not given away half empty.
func (r *Receiver) patience() time.Duration {
	const half, doublings = decoder.Batches / 2, 8
	scarcity := max(0, half-r.pool.Available())
	patience := linger << (scarcity * doublings / half)
	if r.stream.reader.late {
		patience = max(patience, lateLinger)
	}
	return patience
}

// stopped reports whether to receive no more. A transaction that has begun is received whole: if it
// were not, its first events would be sent again after the next start.
func (r *Receiver) stopped(stop context.Context) bool {
	return stop.Err() != nil && !r.decoder.InTransaction()
}

// wake is when the loop has something to do even if Postgres sends nothing.
func (r *Receiver) wake() time.Time {
	if r.batch != nil {
		if end := r.since.Add(r.patience()); end.Before(r.due) {
			return end
		}
	}
	return r.due
}

// tick does what time demands.
func (r *Receiver) tick(ctx context.Context, now time.Time) error {
	if r.batch != nil && now.Sub(r.since) >= r.patience() {
		r.handOver()
	}
	if now.Before(r.due) {
		return nil
	}
	silence := now.Sub(r.stream.reader.last)
	if silence > r.stream.silence {
		return fmt.Errorf("read replication stream: no answer from Postgres for %s", silence.Round(time.Second))
	}
	return r.report(ctx, silence >= r.stream.interval)
}

// message handles one message of the streaming replication protocol.
func (r *Receiver) message(ctx context.Context, data []byte) error {
	if len(data) == 0 {
		return errors.New("read replication stream: empty message")
	}
	switch data[0] {
	case pglogrepl.XLogDataByteID:
		wal, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return fmt.Errorf("read replication stream: %w", err)
		}
		if err := r.decode(ctx, wal.WALData); err != nil {
			return err
		}
		r.stream.reader.late = wal.ServerTime.Sub(r.decoder.CommitTime()) > lateness
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		keepalive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return fmt.Errorf("read replication stream: %w", err)
		}
		r.keepalive(keepalive)
	default:
		return fmt.Errorf("read replication stream: unexpected message %q", data[0])
	}
	if !r.decoder.InTransaction() && r.worthSending() {
		r.handOver()
	}
	if now := r.stream.reader.last; !now.Before(r.wake()) {
		return r.tick(ctx, now)
	}
	return nil
}

// keepalive learns how far the stream is where it has no rows for us. Inside a transaction the position
// says nothing: it can be that transaction's own commit.
func (r *Receiver) keepalive(k pglogrepl.PrimaryKeepaliveMessage) {
	if !r.decoder.InTransaction() {
		r.received = max(r.received, k.ServerWALEnd)
	}
	if soon := r.reported.Add(answerInterval); k.ReplyRequested && soon.Before(r.due) {
		r.due = soon
	}
}

// decode adds a row to the batch, or acts on the end of a transaction.
func (r *Receiver) decode(ctx context.Context, msg []byte) error {
	outcome, err := r.decoder.Decode(msg, r.batch)
	if outcome == decoder.Full {
		r.handOver()
		if err := r.acquire(ctx, r.decoder.Need()); err != nil {
			return err
		}
		r.since = r.stream.reader.last
		outcome, err = r.decoder.Decode(msg, r.batch)
	}
	if err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	if outcome == decoder.Commit {
		r.received = max(r.received, r.decoder.CommitEnd())
		if r.batch != nil {
			r.batch.EndTransaction(r.decoder.CommitEnd())
		}
	}
	return nil
}

// worthSending reports whether to hand over a batch that ends with a transaction: the sender has taken all that it was
// given, most of the budget is free, and nothing more is here that could go along. While that is not so, or the stream is
// late, the batch grows.
func (r *Receiver) worthSending() bool {
	if r.batch == nil || len(r.filled) > 0 || r.pool.Available() < decoder.Batches/2 {
		return false
	}
	return !r.stream.reader.late && (r.batch.Bytes() >= worthBytes || r.stream.buffered() == 0)
}

// handOver gives the batch to the sender, stamped with the position that is safe once it and all before
// it are acknowledged. Cut inside a transaction that is the end of the one before.
func (r *Receiver) handOver() {
	if r.batch == nil {
		return
	}
	r.batch.LSN = r.received
	r.filled <- r.batch
	r.batch = nil
}

// acquire takes a batch for a row of n bytes, with others to pay for it if it is large.
func (r *Receiver) acquire(ctx context.Context, n int) error {
	b, err := r.free(ctx)
	if err != nil {
		return err
	}
	for !r.pool.Prepare(b, n) {
		other, err := r.free(ctx)
		if err != nil {
			return err
		}
		b.Lend(other)
	}
	r.batch = b
	return nil
}

// free waits for a free batch, and reports while it does.
func (r *Receiver) free(ctx context.Context) (*decoder.Batch, error) {
	select {
	case b := <-r.pool.Free():
		return b, nil
	default:
	}
	timer := time.NewTimer(time.Until(r.due))
	defer timer.Stop()
	for {
		select {
		case b := <-r.pool.Free():
			r.stream.reader.last = time.Now() // Postgres was not listened to: that is no silence of its
			return b, nil
		case <-timer.C:
			if err := r.report(ctx, false); err != nil {
				return nil, err
			}
			timer.Reset(time.Until(r.due))
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// report sends the flushed position. With everything released, that includes what the stream has passed
// without a row for us, so that a quiet outbox does not hold back the WAL of a busy database.
func (r *Receiver) report(ctx context.Context, reply bool) error {
	if r.pool.Available() == decoder.Batches {
		r.flushed.Advance(r.received)
	}
	r.reported = time.Now()
	r.due = r.reported.Add(r.stream.interval)
	return r.stream.report(ctx, r.flushed.Load(), reply)
}

// drain takes back every batch, which means that all of them are acknowledged.
func (r *Receiver) drain(ctx context.Context) error {
	var taken []*decoder.Batch
	defer func() {
		for _, b := range taken {
			r.pool.Recycle(b)
		}
	}()
	for len(taken) < decoder.Batches {
		b, err := r.free(ctx)
		if err != nil {
			return err
		}
		taken = append(taken, b)
	}
	return nil
}
