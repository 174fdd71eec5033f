package integration

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/workload"
)

// noise is text that does not compress to less than half.
func noise(size int) string {
	bytes := make([]byte, size/2)
	_, _ = rand.Read(bytes) // which never fails
	return hex.EncodeToString(bytes)
}

func TestEveryCommittedRowArrivesOnceByteForByte(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	for i, payload := range []string{
		`{"total":1}`, "", " ", "null", `"`, `'`, `\`, `{"broken": `, "line\r\nline\r\n\ttab", "🕊️ pombo é português 鳩",
		"\u0001\u001b[31m\u007f", "\u2028\ufeff", strings.Repeat("0123456789", 104_800), noise(1_046_000),
	} {
		o.commit(o.event("Order", fmt.Sprint("key-", i%3), "Order.Changed", payload))
	}
	o.commit(o.event("Order", "", "", "empty key and type"))
	o.commit(o.event("Order", "ключ 🗝", "тип", "other scripts"))

	p := o.streaming()
	require.Zero(t, o.arrived().Duplicates)
	o.awaitConfirmed(o.walEnd())
	code, _ := p.stop()
	require.Zero(t, code)
	require.Equal(t, 16, o.ledger.Report().Records)
}

// C04, C11, and the savepoint of C02.
func TestWorkThatIsRolledBackLeavesNoRecord(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	p := o.streaming()

	tx, err := o.conn.Begin(o.ctx)
	require.NoError(t, err)
	_, err = tx.Exec(o.ctx, `INSERT INTO outbox_event SELECT gen_random_uuid(), 'Order', i::text, 't', repeat('x', 500), now() FROM generate_series(1, 10000) i`)
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(o.ctx))

	before, inside, after := o.event("Order", "k", "t", "1"), o.event("Order", "rolled back", "t", "2"), o.event("Order", "k", "t", "3")
	tx, err = o.conn.Begin(o.ctx)
	require.NoError(t, err)
	o.insert(tx, before)
	savepoint, err := tx.Begin(o.ctx)
	require.NoError(t, err)
	o.insert(savepoint, inside)
	require.NoError(t, savepoint.Rollback(o.ctx))
	o.insert(tx, after)
	o.ledger.Intend(before, inside, after)
	require.NoError(t, tx.Commit(o.ctx))
	o.ledger.Committed(before, after)
	o.ledger.RolledBack(inside)

	// The same id again: refused, or changed without a second event.
	o.exec(`INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ($1, 'Order', 'k', 't', 'other', now()) ON CONFLICT DO NOTHING`, after.ID)
	o.exec(`INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ($1, 'Order', 'k', 't', 'other', now()) ON CONFLICT (id) DO UPDATE SET payload = 'other'`, after.ID)
	o.exec(`UPDATE outbox_event SET published_at = now()`)
	o.exec(`DELETE FROM outbox_event`)

	o.commit(o.event("Order", "k", "t", "last"))
	o.arrived()
	o.awaitConfirmed(o.walEnd())
	code, _ := p.stop()
	require.Zero(t, code)
	require.Equal(t, 3, o.ledger.Report().Records)
}

func TestOneOrderIsOneRowAndOneRecord(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	o.exec(`CREATE TABLE orders (id bigint PRIMARY KEY, total numeric NOT NULL)`)
	p := o.streaming("--route", "Order="+o.topic("Order"))

	e := o.event("Order", "42", "OrderCreated", `{"id":42,"total":"9.90"}`)
	tx, err := o.conn.Begin(o.ctx)
	require.NoError(t, err)
	_, err = tx.Exec(o.ctx, `INSERT INTO orders VALUES (42, 9.90)`)
	require.NoError(t, err)
	o.insert(tx, e)
	o.ledger.Intend(e)
	require.NoError(t, tx.Commit(o.ctx))
	o.ledger.Committed(e)

	o.arrived()
	o.awaitConfirmed(o.walEnd())
	code, _ := p.stop()
	require.Zero(t, code)
	var rows int
	require.NoError(t, o.conn.QueryRow(o.ctx, `SELECT count(*) FROM outbox_event`).Scan(&rows))
	require.Equal(t, 1, rows)
	require.Equal(t, workload.Report{Committed: 1, Records: 1}, o.ledger.Report())
}

// B02: the order is that of the commits, not that of the inserts or of created_at.
func TestEventsOfAKeyArriveInCommitOrder(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	o.streaming()
	other := o.connect()
	second := o.event("Order", "k", "t", "committed first, written last")
	first := o.event("Order", "k", "t", "written first, committed last")

	tx, err := other.Begin(o.ctx)
	require.NoError(t, err)
	o.insert(tx, first)
	o.commit(second)
	o.ledger.Intend(first)
	require.NoError(t, tx.Commit(o.ctx))
	o.ledger.Committed(first)
	o.arrived()
}

// B03: statement order inside a transaction, also where rows share one LSN.
func TestManyEventsOfAKeyInOneTransactionKeepTheirOrder(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	o.streaming()

	const n = 1000
	events := make([]workload.Event, n)
	for i := range events {
		events[i] = o.event("Order", "k", "t", fmt.Sprint("single ", i))
	}
	o.commit(events...)

	// One statement, and one COPY.
	for _, how := range []string{"statement", "copy"} {
		ids, payloads := make([]string, n), make([]string, n)
		for i := range events {
			events[i] = o.event("Order", "k", "t", fmt.Sprint(how, " ", i))
			ids[i], payloads[i] = events[i].ID, string(events[i].Payload)
		}
		o.ledger.Intend(events...)
		if how == "statement" {
			o.exec(`INSERT INTO outbox_event SELECT id, 'Order', 'k', 't', payload, now() FROM unnest($1::uuid[], $2::text[]) AS u (id, payload)`, ids, payloads)
		} else {
			var copied strings.Builder
			for _, e := range events {
				fmt.Fprintf(&copied, "%s\tOrder\tk\tt\t%s\t2026-01-01\n", e.ID, e.Payload)
			}
			_, err := o.conn.PgConn().CopyFrom(o.ctx, strings.NewReader(copied.String()),
				`COPY outbox_event (id, aggregate_type, aggregate_id, event_type, payload, created_at) FROM STDIN`)
			require.NoError(t, err)
		}
		o.ledger.Committed(events...)
	}
	require.Zero(t, o.arrived().Duplicates)
}
