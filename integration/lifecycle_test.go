package integration

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/stack"
)

// checkInterval is how often a session looks at table, publication and slot, with room for a busy machine.
const checkInterval = 20 * time.Second

// sql runs statements one by one, as psql does.
func (o *outbox) sql(statements ...string) {
	o.t.Helper()
	for _, statement := range statements {
		_, err := o.conn.Exec(o.ctx, strings.ReplaceAll(statement, "PUBLICATION mine", "PUBLICATION "+o.name), pgx.QueryExecModeSimpleProtocol)
		require.NoError(o.t, err, statement)
	}
}

func (o *outbox) version() (version int) {
	o.t.Helper()
	require.NoError(o.t, o.conn.QueryRow(o.ctx, `SELECT current_setting('server_version_num')::int`).Scan(&version))
	return version
}

// D06, D05: a publication that no longer serves the table makes the stream silent. All of this goes on at the same time, for
// it takes a check interval.
func TestAPublicationThatNoLongerServesTheTableEndsTheRunWithinACheckInterval(t *testing.T) {
	const again = `CREATE TABLE again (LIKE outbox_event INCLUDING ALL)`
	cases := map[string]struct {
		breakIt []string
		says    string
		since   int // the version that knows the change
	}{
		"table dropped and created again": {[]string{again, `DROP TABLE outbox_event`, `ALTER TABLE again RENAME TO outbox_event`}, "lacks table", 0},
		"table swapped by renaming":       {[]string{again, `ALTER TABLE outbox_event RENAME TO old`, `ALTER TABLE again RENAME TO outbox_event`}, "it has public.old", 0},
		"table taken out":                 {[]string{`ALTER PUBLICATION mine DROP TABLE outbox_event`}, "lacks table", 0},
		"filter added":                    {[]string{`ALTER PUBLICATION mine SET TABLE outbox_event WHERE (aggregate_type = 'x')`}, "leaves out rows", 150000},
		"columns left out":                {[]string{`ALTER PUBLICATION mine SET TABLE outbox_event (id)`}, "leaves out column", 150000},
	}
	broken := make(map[string]*process)
	for name, c := range cases {
		o := newOutbox(t)
		if o.version() < c.since {
			continue // there is no such thing to go wrong
		}
		p := o.streaming()
		o.sql(c.breakIt...)
		broken[name] = p
	}
	since := time.Now()
	for name, p := range broken {
		require.Equal(t, 3, p.wait(), name)
		require.Contains(t, p.out.String(), cases[name].says)
		require.Contains(t, p.out.String(), "rows written before that are not in the stream")
		require.Less(t, time.Since(since), checkInterval)
	}
}

// D10: a child that comes later is told of, and does no harm.
func TestAChildByInheritanceIsToldOf(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	p := o.streaming()
	o.sql(`CREATE TABLE child () INHERITS (outbox_event)`,
		`INSERT INTO child (id, aggregate_type, aggregate_id, event_type, payload, created_at) VALUES (gen_random_uuid(), 'Order', 'k', 't', 'v', now())`)
	o.commit(o.event("Order", "k", "t", "1"))
	require.Zero(t, o.arrived().Phantom)
	p.await("children by inheritance (child), whose rows are not published")
}

// D05, D11, D12: what cannot arrive is refused at the start, and not sent as something else.
func TestWhatIsNotReplicatedIsRefusedAtTheStart(t *testing.T) {
	for name, c := range map[string]struct {
		breakIt []string
		says    string
		since   int
	}{
		"column list": {[]string{`ALTER PUBLICATION mine SET TABLE outbox_event (id, aggregate_type, aggregate_id, event_type)`}, "leaves out column", 150000},
		"row filter":  {[]string{`ALTER PUBLICATION mine SET TABLE outbox_event WHERE (aggregate_type = 'only')`}, "by the filter", 150000},
		"unlogged": {
			[]string{`DROP PUBLICATION mine`, `CREATE PUBLICATION mine FOR ALL TABLES`, `ALTER TABLE outbox_event SET UNLOGGED`},
			"is unlogged, so its rows are not in the WAL", 0,
		},
		"generated column": {
			[]string{`ALTER TABLE outbox_event DROP aggregate_type`,
				`ALTER TABLE outbox_event ADD aggregate_type text GENERATED ALWAYS AS (split_part(event_type, '.', 1)) STORED`},
			"generated columns are not replicated", 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutbox(t)
			if o.version() < c.since {
				return
			}
			o.sql(c.breakIt...)
			p := o.run()
			require.Equal(t, 3, p.wait())
			require.Contains(t, p.out.String(), c.says)
			require.NotContains(t, p.out.String(), "streaming")
		})
	}
}

// E01: a slot that looks sound and is another one, or further than Pombo left it, hides a gap.
func TestASlotThatWasMadeAnewWhileStoppedIsRefusedUntilTheGapIsAccepted(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	p := o.streaming()
	o.commit(o.event("Order", "k", "t", "1"))
	o.arrived()
	code, _ := p.stop()
	require.Zero(t, code)

	o.sql(`SELECT pg_drop_replication_slot(current_database())`,
		`INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, created_at) VALUES (gen_random_uuid(), 'Lost', 'k', 't', 'v', now())`,
		`SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')`)
	code, out := pombo(t, o.args("run", "--brokers", strings.Join(o.brokers, ","))...)
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "somebody moved it or made it anew, and events committed in between are not in the stream")
	code, out = pombo(t, o.args("setup")...)
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "--accept-gap")

	o.setup("--accept-gap")
	p = o.streaming()
	o.commit(o.event("Order", "k", "t", "2"))
	o.arrived()

	// The way to publish from the table that docs/operations.md tells.
	o.exec(`WITH gap AS (DELETE FROM outbox_event WHERE aggregate_type = 'Lost' RETURNING *) INSERT INTO outbox_event SELECT * FROM gap ORDER BY created_at, id`)
	require.Equal(t, []string{"v"}, values(o.read("Lost", 1)))
	code, _ = p.stop()
	require.Zero(t, code)
}

// E03, while running: the buffer is full and nothing is confirmed when Postgres gives up the slot.
func TestASlotThatIsLostWhileKafkaIsAwayEndsTheRun(t *testing.T) {
	broker := fragile.get(t)
	o, _ := newOutboxOnOwnPostgres(t, map[string]string{"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "wal_sender_timeout": "0"})
	o.brokers = broker.Brokers()
	require.NoError(t, broker.Stop(o.ctx))
	defer func() { require.NoError(t, broker.Start(o.ctx)) }()
	p := o.run("--buffer", "1MiB")
	o.await("it has the slot", func() bool { return o.walsender() != 0 })
	o.sql(bulk(3000))
	status := func() (status string) {
		require.NoError(t, o.conn.QueryRow(o.ctx, `SELECT wal_status FROM pg_replication_slots WHERE slot_name = $1`, o.name).Scan(&status))
		return status
	}
	o.await("the slot is lost", func() bool {
		o.sql(`INSERT INTO aggregate (id) VALUES (gen_random_uuid())`, `SELECT pg_switch_wal()`, `CHECKPOINT`)
		return status() == "lost"
	})
	require.Equal(t, 3, p.wait())
	require.Equal(t, 1, strings.Count(p.out.String(), "is lost"))
	require.Contains(t, p.out.String(), "publish from the table")
	require.Contains(t, p.out.String(), "pombo teardown")
	require.Equal(t, "lost", status(), "the slot is the operator's to drop")
}

// bulk is rows of 1 KB each.
func bulk(rows int) string {
	return `INSERT INTO outbox_event SELECT gen_random_uuid(), 'Order', (i % 1000)::text, 't', repeat(md5(i::text), 32), now() FROM generate_series(1, ` + strconv.Itoa(rows) + `) i`
}

// F09: with Kafka there, all is confirmed at once, and Postgres need not wait. A standby does not make it wait either.
func TestPostgresStopsAtOnceWhileKafkaIsThere(t *testing.T) {
	o, server := newOutboxOnOwnPostgres(t, nil)
	o.consume("Order")
	p := o.streaming()
	standby := o.run()
	standby.await("standing by")
	for _, mode := range []stack.StopMode{stack.Fast, stack.Smart} {
		o.commit(o.event("Order", "k", "t", "v"))
		require.NoError(t, o.conn.Close(o.ctx)) // a smart stop waits for it
		began := time.Now()
		require.NoError(t, server.Stop(o.ctx, mode))
		require.Less(t, time.Since(began), 10*time.Second)
		require.NoError(t, server.Start(o.ctx))
		o.conn = o.connect()
		o.arrived()
	}
	for _, instance := range []*process{p, standby} {
		code, _ := instance.stop()
		require.Zero(t, code)
	}
}

// The stream has the name that a table had when its rows were written: while nobody read, or for a moment under a running
// connector.
func TestRowsOfATableThatIsRenamedAreNotLost(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	o.commit(o.event("Order", "k", "t", "before"))
	o.exec(`CREATE SCHEMA moved; ALTER TABLE outbox_event SET SCHEMA moved; ALTER TABLE moved.outbox_event RENAME TO events`)
	p := o.streaming("--table", "moved.events")
	o.arrived()

	e := o.event("Order", "k", "t", "between")
	o.exec(`ALTER TABLE moved.events RENAME TO outbox_event; ALTER TABLE moved.outbox_event SET SCHEMA public`)
	o.commit(e)
	o.exec(`ALTER TABLE outbox_event SET SCHEMA moved; ALTER TABLE moved.outbox_event RENAME TO events`)
	o.arrived()
	code, _ := p.stop()
	require.Zero(t, code)
}
