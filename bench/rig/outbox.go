package rig

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	outboxTable = "public.outbox_event"
	publication = "pombo"
)

// Shape is what events are like, and the topics they go to.
type Shape struct {
	Events         int
	Payload        int // bytes
	PerTransaction int // events
	Keys           int
	Topics         int // one for each aggregate type; of a single one it is Order
	Partitions     int // of each topic
}

// Base is what events are like where nothing else is said. How many there are is left open.
var Base = Shape{Payload: 300, PerTransaction: 10, Keys: 10_000, Topics: 1, Partitions: 4}

func aggregateType(i, topics int) string {
	if topics == 1 {
		return "Order"
	}
	return fmt.Sprintf("Order%d", i)
}

// Outbox is a database with an outbox table, whose events wait behind a slot.
type Outbox struct {
	Shape Shape
	dsn   string
	name  string // of the database
	base  string // slot, before the first event; made by `pombo setup` and never moved
	end   string // LSN behind the last event
}

// writeEvents writes payloads that are JSON and about half random, as real ones are: codecs find something to do, not
// everything. They are cut out of one text, which is too long for a codec to see a piece twice.
const writeEvents = `CREATE PROCEDURE write_events(events int, size int, per_transaction int, keys int, topics int) LANGUAGE plpgsql AS $$
	DECLARE
		lines bytea := (SELECT string_agg(convert_to('article=' || md5(l::text) || ', quantity=' || l % 9 || ', cents=' || l % 9999 || '; ', 'UTF8'), '')
			FROM generate_series(1, 100000) l);
	BEGIN
		FOR t IN 0 .. events / per_transaction - 1 LOOP
			INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, created_at)
			SELECT gen_random_uuid(), 'Order' || CASE WHEN topics > 1 THEN (n % topics)::text ELSE '' END, 'order-' || n % keys, 'OrderChanged',
				rpad('{"order":' || n || ',"lines":"', 30, ' ') ||
					convert_from(substring(lines, 1 + (n * 2654435 % (length(lines) - size))::int, size - 32), 'UTF8') || '"}', now()
			FROM generate_series(t * per_transaction::bigint, (t + 1) * per_transaction::bigint - 1) n;
			COMMIT;
		END LOOP;
	END $$`

// genericPlan keeps the planner from copying the text into the plan of each transaction.
const genericPlan = `SET plan_cache_mode = force_generic_plan`

// Load makes a database with an outbox table, a slot and then the events of a shape, in whole transactions. They may be none.
func (s *Servers) Load(ctx context.Context, shape Shape) (*Outbox, error) {
	shape.Events -= shape.Events % shape.PerTransaction
	o := &Outbox{Shape: shape, name: s.name("outbox"), base: s.name("base")}
	var err error
	if o.dsn, err = s.postgres.CreateDatabase(ctx, o.name); err != nil {
		return nil, err
	}
	setup := exec.CommandContext(ctx, Binary, "setup", "--create-table", "--slot", o.base, "--publication", publication, "--table", outboxTable, "--postgres", o.dsn)
	if out, err := setup.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("pombo setup: %w: %s", err, out)
	}
	return o, session(ctx, o.dsn, func(conn *pgx.Conn) error {
		for _, sql := range []string{"SET synchronous_commit = off", genericPlan, writeEvents} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return fmt.Errorf("load events: %w", err)
			}
		}
		_, err := conn.Exec(ctx, `CALL write_events($1, $2, $3, $4, $5)`, shape.Events, shape.Payload, shape.PerTransaction, shape.Keys, shape.Topics)
		if err != nil {
			return fmt.Errorf("load events: %w", err)
		}
		if _, err := conn.Exec(ctx, `CHECKPOINT`); err != nil { // or it comes in the middle of what is measured
			return fmt.Errorf("load events: %w", err)
		}
		return conn.QueryRow(ctx, `SELECT pg_current_wal_flush_lsn()::text`).Scan(&o.end)
	})
}

// Drop removes the database and lets the WAL go that its slot kept.
func (s *Servers) Drop(ctx context.Context, o *Outbox) error {
	if err := o.dropSlot(ctx, o.base); err != nil {
		return err
	}
	return session(ctx, s.postgres.DSN("postgres"), func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "DROP DATABASE "+o.name+" WITH (FORCE)"); err != nil {
			return fmt.Errorf("drop database: %w", err)
		}
		return nil
	})
}

// OverSocket is the same outbox over the server's Unix socket, if that can be reached.
func (s *Servers) OverSocket(o *Outbox) (over *Outbox, ok bool) {
	local := *o
	local.dsn = s.postgres.SocketDSN(o.name)
	return &local, local.dsn != ""
}

// slotAtStart makes a slot that waits before the first event.
func (s *Servers) slotAtStart(ctx context.Context, o *Outbox) (slot string, err error) {
	return s.makeSlot(ctx, o, `SELECT pg_copy_logical_replication_slot($2::name, $1::name)`, o.base)
}

// slotAtEnd makes a slot that waits behind all that is committed.
func (s *Servers) slotAtEnd(ctx context.Context, o *Outbox) (slot string, err error) {
	return s.makeSlot(ctx, o, `SELECT pg_create_logical_replication_slot($1::name, $2::name)`, "pgoutput")
}

func (s *Servers) makeSlot(ctx context.Context, o *Outbox, sql, origin string) (slot string, err error) {
	slot = s.name("slot")
	return slot, session(ctx, o.dsn, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, sql, slot, origin); err != nil {
			return fmt.Errorf("make slot: %w", err)
		}
		return nil
	})
}

// dropSlot waits until the walsender has noticed that its client is gone.
func (o *Outbox) dropSlot(ctx context.Context, slot string) error {
	const drop = `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1 AND NOT active`
	return session(ctx, o.dsn, func(conn *pgx.Conn) error {
		var tag pgconn.CommandTag
		var err error
		waited := await(ctx, nil, func() bool {
			tag, err = conn.Exec(ctx, drop, slot)
			return err != nil || tag.RowsAffected() > 0
		})
		if err := cmp.Or(err, waited); err != nil {
			return fmt.Errorf("drop slot %s: %w", slot, err)
		}
		return nil
	})
}

// job is to publish from a slot to the topics.
func (s *Servers) job(o *Outbox, slot string, t topics) Job {
	return Job{Postgres: o.dsn, Brokers: s.kafka.Brokers(), Slot: slot, Publication: publication, Table: outboxTable, Topic: t.template}
}
