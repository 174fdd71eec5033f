package integration

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/stack"
)

// I08: everything that is missing is told at once, and nothing is changed.
func TestEverythingThatIsMissingIsToldAtOnce(t *testing.T) {
	o, _ := newDatabaseOnOwnPostgres(t, map[string]string{"wal_level": "replica"})
	o.exec(`CREATE TABLE outbox_event (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, body text)`)
	role := o.role("NOREPLICATION", "x")
	for command, wants := range map[string][]string{
		"setup": {"wal_level", "REPLICATION", "payload", "CREATE on database"},
		"run":   {"wal_level", "REPLICATION", "payload", "publication", "slot"},
	} {
		args := append(o.args(command), "--postgres", o.dsnOf(role, "x"))
		if command == "run" {
			args = append(args, "--brokers", "127.0.0.1:1")
		}
		code, out := pombo(t, args...)
		require.Equal(t, 3, code, out)
		for _, want := range wants {
			require.Contains(t, out, want, command)
		}
	}
	var left int
	require.NoError(t, o.conn.QueryRow(o.ctx, `SELECT (SELECT count(*) FROM pg_publication) + (SELECT count(*) FROM pg_replication_slots) + (SELECT count(*) FROM pg_namespace WHERE nspname = 'pombo')`).Scan(&left))
	require.Zero(t, left)
}

// E11: slots that are all taken are told at setup. Walsenders and connections that are all taken are waited for.
func TestTakenSlotsAreToldAndTakenConnectionsAreWaitedFor(t *testing.T) {
	o, _ := newOutboxOnOwnPostgres(t, map[string]string{"max_replication_slots": "1", "max_wal_senders": "1", "max_connections": "12", "superuser_reserved_connections": "3"})
	o.consume("Order")
	code, out := pombo(t, append(o.args("setup"), "--slot", "another")...)
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "max_replication_slots")

	cfg := o.conn.Config().Config.Copy()
	cfg.RuntimeParams["replication"] = "database"
	walsender, err := pgconn.ConnectConfig(o.ctx, cfg)
	require.NoError(t, err)
	p := o.run()
	p.await("max_wal_senders")
	require.NoError(t, walsender.Close(o.ctx))
	p.await("streaming")
	o.commit(o.event("Order", "k", "t", "1"))
	o.arrived()
	p.kill()

	role := o.role("REPLICATION", "x")
	var held []*pgx.Conn
	for {
		conn, err := pgx.Connect(o.ctx, o.dsnOf(role, "x"))
		if err != nil {
			require.ErrorContains(t, err, "53300")
			break
		}
		held = append(held, conn)
	}
	p = o.run("--postgres", o.dsnOf(role, "x"))
	p.await("53300")
	for _, conn := range held {
		require.NoError(t, conn.Close(o.ctx))
	}
	p.await("streaming")
	o.commit(o.event("Order", "k", "t", "2"))
	o.arrived()
	p.kill() // so that the role can be dropped
}

// H08: Postgres may come later, and Kafka after that. A table that is missing is no reason to wait.
func TestThePartsMayStartInAnyOrder(t *testing.T) {
	broker := fragile.get(t)
	o, server := newOutboxOnOwnPostgres(t, nil)
	o.brokers = broker.Brokers()
	o.createTopic("Order", 1)
	o.consume("Order")
	o.commit(o.event("Order", "k", "t", "v"))
	require.NoError(t, o.conn.Close(o.ctx))
	require.NoError(t, server.Stop(o.ctx, stack.Fast))
	require.NoError(t, broker.Stop(o.ctx))
	p := o.run()
	p.await("connection refused")
	require.NoError(t, server.Start(o.ctx))
	p.await("get producer id")
	require.NoError(t, broker.Start(o.ctx))
	o.conn = o.connect()
	o.arrived()
	o.awaitConfirmed(o.walEnd())
	p.kill()
	o.exec(`DROP TABLE outbox_event`)
	require.Equal(t, 3, o.run().wait())
}

// I06: the database may be named in every way that Postgres knows, and both sessions go to the same server.
func TestTheDatabaseMayBeNamedInManyWays(t *testing.T) {
	if postgres.SocketDSN("postgres") == "" {
		t.Fatal("this test needs a server on this machine")
	}
	o := newOutbox(t)
	u, err := url.Parse(o.dsn)
	require.NoError(t, err)
	host, port := u.Hostname(), u.Port()
	service := filepath.Join(t.TempDir(), "services")
	require.NoError(t, os.WriteFile(service, []byte(fmt.Sprintf("[shop]\nhost=%s\nport=%s\nuser=postgres\ndbname=%s\nsslmode=disable\n", host, port, o.name)), 0o600))
	t.Setenv("PGSERVICEFILE", service)
	for name, dsn := range map[string]string{
		"socket":      postgres.SocketDSN(o.name),
		"several":     fmt.Sprintf("postgres://postgres@127.0.0.1:1,%s:%s/%s?sslmode=disable&target_session_attrs=read-write", host, port, o.name),
		"keywords":    fmt.Sprintf("host=%s port=%s user=postgres dbname=%s sslmode=disable", host, port, o.name),
		"replication": o.dsn + "&replication=database",
		"options":     o.dsn + "&options=-c%20search_path%3Dpg_catalog",
		"service":     "service=shop",
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, "run", "--postgres", dsn, "--slot", o.name, "--publication", o.name, "--brokers", strings.Join(o.brokers, ","), "--topic", o.prefix+name)
			p.await("streaming")
			o.commit(o.event(name, "k", "t", name))
			require.Equal(t, name, string(o.read(name, 1)[0].Value))
			o.awaitConfirmed(o.walEnd())
			code, _ := p.stop()
			require.Zero(t, code)
		})
	}
	t.Setenv("PGHOST", host)
	t.Setenv("PGPORT", port)
	t.Setenv("PGUSER", "postgres")
	t.Setenv("PGDATABASE", o.name)
	t.Setenv("PGSSLMODE", "disable")
	code, out := pombo(t, "status", "--slot", o.name)
	require.Zero(t, code, out)
}
