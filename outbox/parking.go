// Package outbox owns pombo.parked_event, the events that cannot be published as they are, and later ones of the same lane, which
// wait behind them.
//
// The table pombo.parked_event alone says whether a lane is blocked: it is as long as an event of it is there.
// Whoever adds or removes events holds the slot's advisory lock until the transaction ends, so that "the lane is open" and
// "parked behind" exclude each other.
package outbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/sink"
)

const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 10 * time.Second

	// attemptTime is how long a try may take, beside a second for every slowest bytes that it has to write.
	attemptTime = 30 * time.Second
	slowest     = 1 << 20
)

// Parking is a sink.Parking in pombo.parked_event. Each call has a connection of its own, because one that stays would hold up
// a smart shutdown of Postgres.
type Parking struct {
	postgres  *pgx.ConnConfig
	slot      string
	walsender uint32
	layout    *decoder.Layout
	log       zerolog.Logger
}

// NewParking returns the Parking of a slot, for events of the layout and for as long as the slot's stream is served by the backend
// with the process id walsender. It connects when it is first used.
func NewParking(postgres *pgx.ConnConfig, slot string, walsender uint32, layout *decoder.Layout, log zerolog.Logger) *Parking {
	log = log.Sample(&zerolog.BurstSampler{Burst: 9, Period: time.Minute})
	return &Parking{postgres: postgres, slot: slot, walsender: walsender, layout: layout, log: log}
}

// Lanes implements sink.Parking. It does not try again: at the start of a session there is nothing to keep, and a Postgres that
// shuts down waits for the session.
func (p *Parking) Lanes(ctx context.Context) (lanes []sink.Lane, err error) {
	const query = `SELECT DISTINCT lane FROM pombo.parked_event WHERE slot = $1 AND lane <> 0`
	err = p.inTransaction(ctx, attemptTime, func(ctx context.Context, tx pgx.Tx) (err error) {
		if err = p.enter(ctx, tx); err == nil {
			lanes, err = collect[sink.Lane](ctx, tx, query, p.slot)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read lanes of parked events: %w", explain(err, p.postgres.User, rightsToPark))
	}
	return lanes, nil
}

// enter takes the slot's lock and makes sure that the session has the slot. It need not have it any more when the transaction
// ends: the next session reads the lanes after it has got the slot, under the same lock, and so after that end.
func (p *Parking) enter(ctx context.Context, tx pgx.Tx) error {
	if err := lockSlot(ctx, tx, p.slot); err != nil {
		return err
	}
	const query = `SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND active_pid = $2)`
	var ours bool
	err := tx.QueryRow(ctx, query, p.slot, p.walsender).Scan(&ours)
	switch {
	case err != nil:
		return fmt.Errorf("look who has the slot: %w", err)
	case !ours:
		return sink.ErrFenced
	}
	return nil
}

// Park implements sink.Parking. Two rows of one transaction that are the same in every column are one event: a consumer
// cannot tell the second from a repetition either.
func (p *Parking) Park(ctx context.Context, events []sink.ParkedEvent) ([]bool, error) {
	rows, size := make([]row, len(events)), 0
	for i, e := range events {
		rows[i] = p.row(e)
		size += rows[i].size
	}
	var (
		parked []bool
		added  []row
	)
	err := p.try(ctx, size, func(ctx context.Context, tx pgx.Tx) (err error) {
		parked, added, err = p.store(ctx, tx, rows)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("park events: %w", err)
	}
	p.tell(added)
	return parked, nil
}

// tell logs why events have been parked. Those that come again after a crash have been told of.
func (p *Parking) tell(added []row) {
	for _, r := range added {
		if r.Reason == "" {
			continue
		}
		line := p.log.Warn().Str("event", string(r.eventID))
		if r.Topic != "" {
			line = line.Str("topic", r.Topic)
		}
		line.Str("reason", r.Reason).Msg("event cannot be published: it is parked, and what follows with its key waits behind it; see `pombo parked list`")
	}
}

// row is an event as the table has it.
type row struct {
	sink.ParkedEvent
	eventID []byte // nil: NULL
	size    int    // bytes of its columns
	identity
}

// identity tells an event that is parked again after a crash from a later one. It is not the id alone, which a table may have
// twice or lack.
type identity struct {
	committed int64             // in Unix microseconds
	digest    [sha256.Size]byte // of all columns
}

func (p *Parking) row(e sink.ParkedEvent) row {
	r := row{ParkedEvent: e, eventID: printable(e.Event.Column(decoder.ID))}
	h := sha256.New()
	var length [binary.MaxVarintLen64]byte
	for c := range p.layout.Columns {
		value := e.Event.Column(decoder.Column(c))
		n := int64(len(value))
		if value == nil {
			n = -1
		}
		h.Write(binary.AppendVarint(length[:0], n))
		h.Write(value)
		r.size += len(value)
	}
	r.committed = e.Event.CommitTime().UnixMicro()
	h.Sum(r.digest[:0])
	return r
}

// printable returns an id as a column of type text takes it: what is no text is in hex, as Postgres prints a bytea.
func printable(id []byte) []byte {
	if id == nil || isText(id) {
		return id
	}
	return append([]byte(`\x`), hex.EncodeToString(id)...)
}

// isText reports whether value is text to Postgres: UTF-8 without a zero byte.
func isText(value []byte) bool {
	return utf8.Valid(value) && bytes.IndexByte(value, 0) < 0
}

// store parks what has to be parked, and returns of which rows that is true now and which were added.
func (p *Parking) store(ctx context.Context, tx pgx.Tx, rows []row) (parked []bool, added []row, err error) {
	if err := p.enter(ctx, tx); err != nil {
		return nil, nil, err
	}
	stored, err := p.stored(ctx, tx, rows)
	if err != nil {
		return nil, nil, err
	}
	blocked, err := p.blocked(ctx, tx, rows)
	if err != nil {
		return nil, nil, err
	}
	parked = make([]bool, len(rows))
	for i, r := range rows {
		if !stored[r.identity] {
			if r.Reason == "" && !blocked[r.Lane] && !blocked[r.TypeLane] {
				continue
			}
			stored[r.identity] = true
			added = append(added, r)
		}
		parked[i] = true
		blocked[r.Lane] = r.Lane != 0
	}
	if len(added) == 0 {
		return parked, nil, nil
	}
	data := newCopyData(p.slot, p.layout, added)
	_, err = tx.Conn().PgConn().CopyFrom(ctx, data, copySQL)
	return parked, added, err
}

// stored returns which of the rows are in the table.
func (p *Parking) stored(ctx context.Context, tx pgx.Tx, rows []row) (map[identity]bool, error) {
	const query = `
SELECT e.committed_at, e.digest
FROM unnest($2::timestamptz[], $3::bytea[]) r (committed_at, digest)
JOIN pombo.parked_event e ON e.slot = $1 AND e.committed_at = r.committed_at AND e.digest = r.digest`
	times, digests := make([]time.Time, len(rows)), make([][]byte, len(rows))
	for i := range rows {
		times[i], digests[i] = time.UnixMicro(rows[i].committed), rows[i].digest[:]
	}
	found, err := tx.Query(ctx, query, p.slot, times, digests)
	if err != nil {
		return nil, err
	}
	stored := make(map[identity]bool)
	var (
		committed time.Time
		digest    []byte
	)
	_, err = pgx.ForEachRow(found, []any{&committed, &digest}, func() error {
		stored[identity{committed.UnixMicro(), [sha256.Size]byte(digest)}] = true
		return nil
	})
	return stored, err
}

// blocked returns the lanes that the rows wait for which have parked events.
func (p *Parking) blocked(ctx context.Context, tx pgx.Tx, rows []row) (map[sink.Lane]bool, error) {
	const query = `
SELECT lane FROM (SELECT DISTINCT unnest($2::bigint[])) l (lane)
WHERE lane <> 0 AND EXISTS (SELECT FROM pombo.parked_event e WHERE e.slot = $1 AND e.lane = l.lane)`
	var lanes []sink.Lane
	for i := range rows {
		lanes = append(lanes, rows[i].Lane, rows[i].TypeLane)
	}
	found, err := collect[sink.Lane](ctx, tx, query, p.slot, lanes)
	blocked := make(map[sink.Lane]bool)
	for _, lane := range found {
		blocked[lane] = true
	}
	return blocked, err
}

// lockSlot waits until no other transaction adds or removes parked events of the slot, and keeps others from it until
// this one ends.
func lockSlot(ctx context.Context, tx pgx.Tx, slot string) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('pombo.parked_event ' || $1, 0))`, slot)
	return err
}

// collect returns the values of a query's only column.
func collect[T any](ctx context.Context, tx pgx.Tx, query string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[T])
}

// try runs do, which writes about size bytes, until it succeeds, ctx is done or trying again cannot help.
func (p *Parking) try(ctx context.Context, size int, do func(context.Context, pgx.Tx) error) error {
	delays := backoff.NewExponentialBackOff() // jittered
	delays.InitialInterval = firstRetry
	delays.MaxInterval = lastRetry
	limit := attemptTime + time.Duration(size/slowest)*time.Second
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := p.inTransaction(ctx, limit, do)
		if err != nil && !passes(err) {
			err = backoff.Permanent(explain(err, p.postgres.User, rightsToPark))
		}
		return struct{}{}, err
	}, backoff.WithBackOff(delays), backoff.WithMaxElapsedTime(0), backoff.WithNotify(func(err error, delay time.Duration) {
		p.log.Warn().Err(err).Stringer("retry_in", delay.Round(time.Millisecond)).Msg("parked events cannot be stored, they wait")
	}))
	return err
}
