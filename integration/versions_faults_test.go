//go:build faults

package integration

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/stack"
)

// newOutboxOnVersion is newOutbox on a server of a major version.
func newOutboxOnVersion(t *testing.T, version int, settings map[string]string) (*outbox, *stack.Postgres) {
	t.Helper()
	t.Setenv("POMBO_TEST_POSTGRES_VERSION", map[int]string{14: "14", 18: "18"}[version])
	return newOutboxOnOwnPostgres(t, settings)
}

// C05: PostgreSQL 14 sends every transaction, also those without a row for the outbox.
func TestForeignTransactionsOfPostgres14CostNothing(t *testing.T) {
	o, _ := newOutboxOnVersion(t, 14, nil)
	o.exec(`CREATE TABLE other (x int)`)
	o.exec(`CREATE PROCEDURE churn() LANGUAGE plpgsql AS $$ BEGIN FOR i IN 1..20000 LOOP INSERT INTO other VALUES (i); COMMIT; END LOOP; END $$`)
	o.consume("Order")
	o.streaming()
	o.exec(`CALL churn()`)
	o.awaitConfirmed(o.walEnd())
	o.commit(o.event("Order", "k", "t", "v"))
	o.arrived()
}

// E16: PostgreSQL 18 gives up a slot that nobody reads. The reason is named.
func TestASlotThatPostgres18GaveUpForIdlenessIsExplained(t *testing.T) {
	o, _ := newOutboxOnVersion(t, 18, map[string]string{"idle_replication_slot_timeout": "1s"})
	p := o.streaming()
	code, _ := p.stop()
	require.Zero(t, code)
	o.await("the slot is given up", func() bool {
		o.exec(`CHECKPOINT`)
		var status string
		require.NoError(t, o.conn.QueryRow(o.ctx, `SELECT wal_status FROM pg_replication_slots WHERE slot_name = $1`, o.name).Scan(&status))
		return status == "lost"
	})
	p = o.run()
	require.Equal(t, 3, p.wait())
	require.Contains(t, p.out.String(), "is lost (idle_timeout)")
	require.Contains(t, p.out.String(), "pombo setup")
}

// J06: what setup makes does not stand in the way of updates, whatever the table's replica identity.
func TestTheApplicationMayUpdateATableWithGeneratedColumns(t *testing.T) {
	t.Setenv("POMBO_TEST_POSTGRES_VERSION", "18")
	o, _ := newDatabaseOnOwnPostgres(t, nil)
	o.exec(`CREATE TABLE outbox_event (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, payload text, created_at timestamp,
		size int GENERATED ALWAYS AS (length(payload)) STORED)`)
	o.exec(`ALTER TABLE outbox_event REPLICA IDENTITY FULL`)
	o.setup()
	o.consume("Order")
	o.streaming()
	o.commit(o.event("Order", "k", "t", "v"))
	o.exec(`UPDATE outbox_event SET payload = 'changed'`)
	o.exec(`DELETE FROM outbox_event`)
	o.commit(o.event("Order", "k", "t", "w"))
	require.Equal(t, 2, o.arrived().Records)
}

// E15: a standby that has no slot is refused once it is the primary, with the consequence. While it is in recovery it is
// waited for.
func TestAFailoverToAStandbyWithoutTheSlotIsRefused(t *testing.T) {
	o, server := newOutboxOnOwnPostgres(t, nil)
	o.consume("Order")
	o.exec(`SELECT pg_switch_wal()`)
	standby, err := server.StartStandby(o.ctx, stack.PostgresOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = standby.Close() })
	u, err := url.Parse(o.dsn)
	require.NoError(t, err)
	proxy, err := stack.NewProxy(u.Host)
	require.NoError(t, err)
	t.Cleanup(func() { _ = proxy.Close() })
	u.Host = proxy.Addr()

	p := o.streaming("--postgres", u.String())
	o.commit(o.event("Order", "k", "t", "v"))
	o.arrived()
	o.await("the standby has what is committed", func() bool {
		var behind bool
		require.NoError(t, o.conn.QueryRow(o.ctx, `SELECT coalesce(bool_or(replay_lsn < pg_current_wal_lsn()), true) FROM pg_stat_replication WHERE application_name = 'walreceiver'`).Scan(&behind))
		return !behind
	})
	proxy.Retarget(standby.Addr())
	p.await("standby in recovery")
	require.NoError(t, o.conn.Close(o.ctx))
	require.NoError(t, server.Stop(o.ctx, stack.Immediate))
	require.NoError(t, standby.Promote(o.ctx))
	require.Equal(t, 3, p.wait())
	require.Contains(t, p.out.String(), "is gone")
	require.Contains(t, p.out.String(), "failover")
	require.Contains(t, p.out.String(), "--accept-gap")
}
