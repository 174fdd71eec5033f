package outbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/integration/stack"
	"github.com/pombo-cdc/pombo/migrations"
	"github.com/pombo-cdc/pombo/sink"
)

// shared is the server of the tests of the package. Each has a database of its own in it.
var shared stack.SharedPostgres

func TestMain(m *testing.M) { shared.Run(m) }

// awaitLimit is how long a test waits for what should happen.
const awaitLimit = 30 * time.Second

// database is a database with schema pombo as setup makes it.
type database struct {
	*pgx.Conn // of a superuser
	t         *testing.T
	walsender uint32
	layout    *decoder.Layout
	log       logLines
	clock     time.Time // of the last transaction
}

const slot = "pombo"

func newDatabase(t *testing.T) *database {
	t.Helper()
	ctx := context.Background()
	server, err := shared.Get()
	require.NoError(t, err)
	name := fmt.Sprintf("pombo_test_%d", rand.Uint32())
	dsn, err := server.CreateDatabase(ctx, name)
	require.NoError(t, err)
	t.Cleanup(func() {
		admin, err := pgx.Connect(ctx, server.DSN("postgres"))
		require.NoError(t, err)
		defer func() { _ = admin.Close(ctx) }()
		_, err = admin.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
		require.NoError(t, err)
		_, err = admin.Exec(ctx, "DROP ROLE IF EXISTS "+name)
		require.NoError(t, err)
	})
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(ctx) })
	db := &database{
		Conn: conn, t: t, layout: decoder.NewLayout("public", "outbox_event"),
		log: make(logLines, 1<<10), clock: time.UnixMicro(1_700_000_000_123_456),
	}
	db.exec(`CREATE SCHEMA pombo`)
	steps := stdlib.OpenDB(*conn.Config())
	defer func() { _ = steps.Close() }()
	state, err := migrations.NewState(steps)
	require.NoError(t, err)
	require.NoError(t, state.Up(ctx))
	db.walsender = db.holdSlot(slot)
	return db
}

// holdSlot makes a slot that a session has until the test ends, as a walsender does, and returns its process id.
func (db *database) holdSlot(name string) uint32 {
	db.t.Helper()
	ctx := context.Background()
	conn, err := pgx.ConnectConfig(ctx, db.Config())
	require.NoError(db.t, err)
	_, err = conn.Exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'pgoutput', true)`, name)
	require.NoError(db.t, err)
	db.t.Cleanup(func() {
		_, err := conn.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, name)
		require.NoError(db.t, err)
		require.NoError(db.t, conn.Close(ctx))
	})
	return conn.PgConn().PID()
}

func (db *database) exec(statements ...string) {
	db.t.Helper()
	for _, statement := range statements {
		_, err := db.Exec(context.Background(), statement, pgx.QueryExecModeSimpleProtocol)
		require.NoError(db.t, err, statement)
	}
}

// as returns the configuration of a new role.
func (db *database) as(attributes string) *pgx.ConnConfig {
	db.t.Helper()
	cfg := db.Config()
	db.exec(`CREATE ROLE ` + cfg.Database + ` LOGIN PASSWORD 'secret' ` + attributes)
	cfg.User, cfg.Password = cfg.Database, "secret"
	return cfg
}

func (db *database) parking() *Parking { return db.parkingOf(db.Config()) }

func (db *database) parkingOf(cfg *pgx.ConnConfig) *Parking {
	return NewParking(cfg, slot, db.walsender, db.layout, zerolog.New(db.log))
}

// event is an event on its way: its id, type, key, kind and payload, each a string or nil for NULL.
type event struct {
	values [5]any
	lane   sink.Lane
	reason string
}

// bad returns an event that is refused, good one that is not.
func bad(id any, lane sink.Lane) event {
	return event{[5]any{id, "orders", fmt.Sprint(lane), "created", "{}"}, lane, "too large"}
}

func good(id any, lane sink.Lane) event {
	e := bad(id, lane)
	e.reason = ""
	return e
}

// commit makes the events of one transaction.
func (db *database) commit(events ...event) []sink.ParkedEvent {
	db.clock = db.clock.Add(time.Microsecond)
	pool := decoder.NewPool(1<<20, db.layout)
	all := make([]sink.ParkedEvent, len(events))
	for i, e := range events {
		b := <-pool.Free()
		require.True(db.t, pool.Prepare(b, 1))
		values := make([][]byte, len(e.values))
		for c, value := range e.values {
			if value != nil {
				values[c] = []byte(value.(string))
			}
		}
		require.True(db.t, b.Append(db.clock, values))
		all[i] = sink.ParkedEvent{Event: b.Event(0), Topic: "orders", Lane: e.lane, Reason: e.reason}
	}
	return all
}

func (db *database) park(events ...sink.ParkedEvent) []bool {
	db.t.Helper()
	parked, err := db.parking().Park(db.t.Context(), events)
	require.NoError(db.t, err)
	return parked
}

// ids lists what is parked, in order.
func (db *database) ids() []string {
	db.t.Helper()
	var ids []string
	require.NoError(db.t, ListParked(db.t.Context(), db.Conn, slot, true, func(p Parked) error {
		ids = append(ids, p.Name())
		return nil
	}))
	return ids
}

func await[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(awaitLimit):
		require.Fail(t, "waited in vain for "+what)
		panic("unreachable")
	}
}

// logLines takes a log, a line at a time.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}
