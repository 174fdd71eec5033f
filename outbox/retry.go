package outbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/sink"
)

// Scope is which of a slot's parked events a retry is about.
type Scope struct {
	Key []byte // those that have it; nil: all
	Seq int64  // this one; 0: all
}

const inScope = `slot = $1 AND ($2::bytea IS NULL OR key = $2) AND ($3::bigint = 0 OR seq = $3)`

// ScopeOf is an event and all that may have to keep its place to it: those with its key.
func ScopeOf(p Parked) Scope {
	if p.Key == nil {
		return Scope{Seq: p.Seq}
	}
	return Scope{Key: p.Key}
}

// CountScope returns the number of events in a scope.
func CountScope(ctx context.Context, conn *pgx.Conn, slot string, s Scope) (n int64, err error) {
	err = conn.QueryRow(ctx, `SELECT count(*) FROM pombo.parked_event WHERE `+inScope, slot, s.Key, s.Seq).Scan(&n)
	return n, manageError("count parked events", conn, err)
}

// ParkedRow is a parked event with its row. The cells are lent until the call that got it returns.
type ParkedRow struct {
	Seq         int64
	Lane        sink.Lane
	CommittedAt time.Time
	Columns     []string
	Cells       [][]byte // nil: NULL
}

// Part is what ReadParked reads at once of a scope: events behind After, but not those of some lanes. Count and Size, in bytes, end
// it; one event is read in any case.
type Part struct {
	After       int64       // seq
	But         []sink.Lane // not nil
	Count, Size int
}

// ReadParked calls yield for a part of a scope, in order.
func ReadParked(ctx context.Context, conn *pgx.Conn, slot string, s Scope, part Part, yield func(ParkedRow) error) error {
	const query = `
SELECT seq, lane, committed_at, columns, cells FROM (
  SELECT *, sum(size) OVER (ORDER BY seq) - size AS before FROM (
    SELECT * FROM pombo.parked_event WHERE ` + inScope + ` AND seq > $4 AND lane <> ALL ($5::bigint[]) ORDER BY seq LIMIT $6) head) e
WHERE before < $7 ORDER BY seq`
	rows, err := conn.Query(ctx, query, slot, s.Key, s.Seq, part.After, part.But, part.Count, part.Size)
	if err == nil {
		var (
			r     ParkedRow
			cells []pgtype.DriverBytes
		)
		_, err = pgx.ForEachRow(rows, []any{&r.Seq, &r.Lane, &r.CommittedAt, &r.Columns, &cells}, func() error {
			r.Cells = r.Cells[:0]
			for _, cell := range cells {
				r.Cells = append(r.Cells, cell)
			}
			return yield(r)
		})
	}
	return manageError("read parked events", conn, err)
}

// Refusal is what a retry has found out about an event that stays parked.
type Refusal struct {
	Seq    int64
	Name   string // for messages
	Topic  string // empty: it has none
	Lane   sink.Lane
	Reason string // empty: it waits behind another
}

// NewRefusal returns the Refusal of an event that is parked already. It keeps nothing of the event's memory.
func NewRefusal(seq int64, e sink.ParkedEvent) Refusal {
	p := Parked{Seq: seq}
	if id := printable(e.Event.Column(decoder.ID)); id != nil {
		text := string(id)
		p.ID = &text
	}
	return Refusal{Seq: seq, Name: p.Name(), Topic: e.Topic, Lane: e.Lane, Reason: printableReason(e.Reason)}
}

// Settle ends the retry of some events: those that are delivered are deleted, the others get the place that they would have by
// now. The caller has LockManagement.
func Settle(ctx context.Context, conn *pgx.Conn, slot string, delivered []int64, refused []Refusal) error {
	const update = `
UPDATE pombo.parked_event e SET topic = nullif(r.topic, ''), lane = r.lane, reason = coalesce(nullif(r.reason, ''), e.reason)
FROM unnest($2::bigint[], $3::text[], $4::bigint[], $5::text[]) r (seq, topic, lane, reason)
WHERE e.slot = $1 AND e.seq = r.seq
  AND (e.topic, e.lane, e.reason) IS DISTINCT FROM (nullif(r.topic, ''), r.lane, coalesce(nullif(r.reason, ''), e.reason))`
	seqs, lanes := make([]int64, len(refused)), make([]sink.Lane, len(refused))
	topics, reasons := make([]string, len(refused)), make([]string, len(refused))
	for i, r := range refused {
		seqs[i], topics[i], lanes[i], reasons[i] = r.Seq, r.Topic, r.Lane, r.Reason
	}
	err := change(ctx, conn, slot, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM pombo.parked_event WHERE slot = $1 AND seq = ANY ($2)`, slot, delivered); err != nil {
			return err
		}
		if len(refused) == 0 {
			return nil
		}
		_, err := tx.Exec(ctx, update, slot, seqs, topics, lanes, reasons)
		return err
	})
	return manageError("delete published events from pombo.parked_event", conn, err)
}
