package outbox

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/sink"
)

// Stretch is part of a slot's parked events.
type Stretch struct {
	After, UpTo int64       // seq, the first excluded, the last included
	Lanes       []sink.Lane // nil: all
}

// Everything is a Stretch without end.
func Everything(lanes []sink.Lane) Stretch { return Stretch{UpTo: math.MaxInt64, Lanes: lanes} }

const inStretch = `slot = $1 AND seq > $2 AND seq <= $3 AND ($4::bigint[] IS NULL OR lane = ANY ($4))`

func (s Stretch) args(slot string) []any { return []any{slot, s.After, s.UpTo, s.Lanes} }

// MeasureParked returns the number of events in a stretch and the last one's seq.
func MeasureParked(ctx context.Context, conn *pgx.Conn, slot string, s Stretch) (count, last int64, err error) {
	query := `SELECT count(*), coalesce(max(seq), 0) FROM pombo.parked_event WHERE ` + inStretch
	err = conn.QueryRow(ctx, query, s.args(slot)...).Scan(&count, &last)
	return count, last, manageError("count parked events", conn, err)
}

// ParkedRow is a parked event with its row. The cells are lent until the call that got it returns.
type ParkedRow struct {
	Seq         int64
	Lane        sink.Lane
	CommittedAt time.Time
	Columns     []string
	Cells       [][]byte // nil: NULL
}

// ReadParked calls yield for the first events of a stretch in their order: as many as count and size in bytes allow, and one in
// any case.
func ReadParked(ctx context.Context, conn *pgx.Conn, slot string, s Stretch, count, size int, yield func(ParkedRow) error) error {
	const query = `
SELECT seq, lane, committed_at, columns, cells FROM (
  SELECT *, sum(size) OVER (ORDER BY seq) - size AS before FROM (
    SELECT * FROM pombo.parked_event WHERE ` + inStretch + ` ORDER BY seq LIMIT $5) head) e
WHERE before < $6 ORDER BY seq`
	rows, err := conn.Query(ctx, query, append(s.args(slot), count, size)...)
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
