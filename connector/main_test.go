package connector

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/integration/stack"
	"github.com/pombo-cdc/pombo/replication"
	"github.com/pombo-cdc/pombo/router"
	"github.com/pombo-cdc/pombo/sink"
)

// shared is the server of the tests that need one. Kafka is a fake, because it has to answer when a test says so.
var shared stack.SharedPostgres

func TestMain(m *testing.M) { shared.Run(m) }

func postgres(t *testing.T) *stack.Postgres {
	t.Helper()
	server, err := shared.Get()
	require.NoError(t, err)
	return server
}

// awaitLimit is how long a test waits for what should happen.
const awaitLimit = 30 * time.Second

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

// fixture is a database that pombo setup has prepared, a broker, and a Config of both.
type fixture struct {
	t       *testing.T
	db      *pgx.Conn // of a superuser
	kafka   *kfake.Cluster
	cfg     Config
	log     logLines
	stop    context.CancelFunc
	stopped chan error // what Run returned
	before  goleak.Option
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	name := fmt.Sprintf("pombo_test_%d", rand.Uint32())
	dsn, err := postgres(t).CreateDatabase(t.Context(), name)
	require.NoError(t, err)
	t.Cleanup(func() { dropDatabase(t, name) })
	f := &fixture{t: t, log: make(logLines, 1<<12)}
	f.db, err = pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.db.Close(context.Background()) })
	f.kafka, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	require.NoError(t, err)
	t.Cleanup(f.kafka.Close)

	layout := decoder.NewLayout("public", "outbox_event")
	r, err := router.New(router.Config{Layout: layout, Headers: router.DefaultHeaders()})
	require.NoError(t, err)
	f.cfg = Config{
		Source: replication.Source{
			Postgres: f.db.Config(), Slot: name, Publication: "pombo", Schema: layout.Schema, Table: layout.Table, Columns: layout.Columns,
		},
		Layout: layout,
		Router: r,
		Kafka:  sink.Config{Brokers: f.kafka.ListenAddrs(), ProducerName: name},
		Buffer: DefaultBuffer,
		Grace:  DefaultGrace,
		Log:    zerolog.New(f.log),
	}
	require.NoError(t, replication.Setup(t.Context(), f.db, f.cfg.Source, replication.SetupOptions{CreateTable: true}, io.Discard))
	return f
}

// dropDatabase drops a database with its slot, which would keep it.
func dropDatabase(t *testing.T, name string) {
	ctx := context.Background()
	admin, err := pgx.Connect(ctx, postgres(t).DSN("postgres"))
	require.NoError(t, err)
	defer func() { _ = admin.Close(ctx) }()
	_, err = admin.Exec(ctx, `SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE active AND database = $1`, name)
	require.NoError(t, err)
	_, err = admin.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1`, name)
	require.NoError(t, err)
	_, err = admin.Exec(ctx, `DROP DATABASE `+name+` WITH (FORCE)`)
	require.NoError(t, err)
}

// start runs the connector until the test ends.
func (f *fixture) start() {
	ctx, stop := context.WithCancel(context.WithoutCancel(f.t.Context()))
	f.stop, f.stopped = stop, make(chan error, 1)
	f.before = goleak.IgnoreCurrent()
	go func() { f.stopped <- Run(ctx, f.cfg) }()
	f.t.Cleanup(stop)
}

// insert commits an event and returns a position after it.
func (f *fixture) insert() pglogrepl.LSN {
	f.t.Helper()
	_, err := f.db.Exec(f.t.Context(), `INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, created_at)
		VALUES (gen_random_uuid(), 'orders', '1', 'created', '{}', now())`)
	require.NoError(f.t, err)
	return f.position(`SELECT pg_current_wal_lsn()::text`)
}

// confirmed is the position of the slot.
func (f *fixture) confirmed() pglogrepl.LSN {
	return f.position(`SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '` + f.cfg.Source.Slot + `'`)
}

func (f *fixture) position(query string) pglogrepl.LSN {
	f.t.Helper()
	var lsn pglogrepl.LSN
	require.NoError(f.t, f.db.QueryRow(f.t.Context(), query).Scan(&lsn))
	return lsn
}

// holdProduce has the broker hold back its answers. Each produce request yields the function that lets it be answered.
func (f *fixture) holdProduce() <-chan func() {
	held := make(chan func(), 16)
	f.kafka.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		f.kafka.KeepControl()
		answer := make(chan struct{})
		held <- func() { close(answer) }
		f.kafka.SleepControl(func() {
			select {
			case <-answer:
			case <-f.t.Context().Done():
			}
		})
		return nil, nil, false
	})
	return held
}

// mute makes connections to Postgres fall silent when they have sent text: what the server says after it is lost. The
// channel yields something when that happens.
func (f *fixture) mute(text string) <-chan struct{} {
	happened := make(chan struct{}, 16)
	cfg := f.cfg.Source.Postgres.Copy()
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &mutableConn{Conn: conn, text: []byte(text), happened: happened}, nil
	}
	f.cfg.Source.Postgres = cfg
	return happened
}

type mutableConn struct {
	net.Conn
	text     []byte
	muted    atomic.Bool
	happened chan<- struct{}
}

func (c *mutableConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, c.text) && c.muted.CompareAndSwap(false, true) {
		c.happened <- struct{}{}
	}
	return c.Conn.Write(p)
}

func (c *mutableConn) Read(p []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(p); err != nil || !c.muted.Load() {
			return n, err
		}
	}
}

// logLines takes a log, a line at a time.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// awaitLog awaits a line of the log that contains text.
func (f *fixture) awaitLog(text string) {
	f.t.Helper()
	for !strings.Contains(await(f.t, f.log, text), text) {
	}
}

// rest is what has been logged since the last look.
func (l logLines) rest() string {
	var all strings.Builder
	for {
		select {
		case line := <-l:
			all.WriteString(line)
		default:
			return all.String()
		}
	}
}
