package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/workload"
)

// J01: deletes are no events, also where the publication has them.
func TestDeletesWhileInsertingAreNoEvents(t *testing.T) {
	o := newDatabase(t)
	o.exec(looseTable)
	o.exec(`CREATE PUBLICATION ` + o.name + ` FOR TABLE outbox_event`)
	o.setup()
	o.consume("Order")
	o.streaming()
	const n = 2000
	for i := range n {
		o.commit(o.event("Order", fmt.Sprint("k", i%7), "t", "v"))
		if i%200 == 199 {
			o.exec(`DELETE FROM outbox_event WHERE id IN (SELECT id FROM outbox_event LIMIT 150)`)
		}
	}
	o.exec(`DELETE FROM outbox_event`)
	o.arrived()
	o.awaitConfirmed(o.walEnd())
	require.Equal(t, n, o.ledger.Report().Records)
}

// J04: what was committed before a TRUNCATE is in the WAL.
func TestABacklogSurvivesATruncate(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	for i := range 1000 {
		o.commit(o.event("Order", fmt.Sprint("k", i%7), "t", "v"))
	}
	o.exec(`TRUNCATE outbox_event`)
	o.streaming()
	o.arrived()
	o.awaitConfirmed(o.walEnd())
}

// J07: a table that is written anew yields no events again, and loses none, while others write to it.
func TestRewritingTheTableYieldsNoEvents(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	o.streaming()
	stop := o.load(4, 200)
	for _, rewrite := range []string{
		`VACUUM FULL outbox_event`,
		`CLUSTER outbox_event USING outbox_event_pkey`,
		`ALTER TABLE outbox_event ADD COLUMN lottery double precision DEFAULT random()`,
		`ALTER TABLE outbox_event ALTER payload TYPE varchar`,
		`ALTER TABLE outbox_event ALTER payload TYPE text USING payload || ''`,
		`REINDEX TABLE outbox_event`,
	} {
		o.awaitMore(50)
		o.exec(rewrite)
	}
	stop()
	require.Zero(t, o.arrived().Duplicates)
	o.awaitConfirmed(o.walEnd())
	r := o.ledger.Report()
	require.Equal(t, r.Committed, r.Records)
}

// J09: rows count, whoever writes them and how.
func TestRowsCountWhoeverWritesThem(t *testing.T) {
	o := newOutbox(t)
	o.exec(`CREATE TABLE business (id uuid, key text)`)
	o.exec(`CREATE FUNCTION publish() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, created_at) VALUES (NEW.id, 'Order', NEW.key, 't', 'by trigger', now());
		RETURN NULL;
	END $$`)
	o.exec(`CREATE TRIGGER publish AFTER INSERT ON business FOR EACH ROW EXECUTE FUNCTION publish()`)
	o.consume("Order")
	o.streaming()
	byTrigger := o.event("Order", "k", "t", "by trigger")
	o.ledger.Intend(byTrigger)
	o.exec(`INSERT INTO business VALUES ($1, 'k')`, byTrigger.ID)
	o.ledger.Committed(byTrigger)
	o.arrived()

	// The same id again is another event.
	o.exec(`DELETE FROM outbox_event`)
	o.exec(insert, byTrigger.ID, "Order", "k", "t", "by trigger")
	o.awaitReport(func(r workload.Report) bool { return r.Records == 2 && r.Duplicates == 1 })
}

// D09: a partitioned table is published under its own name. Rows that come with a partition are no inserts.
func TestAPartitionedTableIsPublishedUnderItsOwnName(t *testing.T) {
	o := newDatabase(t)
	const columns = `id uuid, aggregate_type text, aggregate_id text, event_type text, payload text, created_at timestamp`
	o.exec(`CREATE TABLE outbox_event (` + columns + `) PARTITION BY RANGE (created_at)`)
	o.exec(`CREATE TABLE now_and_later PARTITION OF outbox_event FOR VALUES FROM ('2026-01-01') TO (MAXVALUE)`)
	o.exec(`CREATE TABLE past (` + columns + `)`)
	o.exec(`INSERT INTO past SELECT gen_random_uuid(), 'Order', 'k', 't', 'attached', '2025-01-01' FROM generate_series(1, 100)`)
	o.setup()
	o.consume("Order")
	p := o.streaming()
	o.commit(o.event("Order", "k", "t", "1"))
	o.exec(`ALTER TABLE outbox_event ATTACH PARTITION past FOR VALUES FROM ('2025-01-01') TO ('2026-01-01')`)
	o.commit(o.event("Order", "k", "t", "2"))
	o.exec(`TRUNCATE past`)
	o.exec(`CREATE TABLE future PARTITION OF outbox_event DEFAULT`)
	o.exec(`DROP TABLE past`)
	o.commit(o.event("Order", "k", "t", "3"))
	require.Equal(t, 3, o.arrived().Records)
	o.awaitConfirmed(o.walEnd())
	code, _ := p.stop()
	require.Zero(t, code)
}
