package integration

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/stack"
	"github.com/pombo-cdc/pombo/integration/workload"
)

// begin starts a transaction in a session of its own.
func (o *outbox) begin() pgx.Tx {
	o.t.Helper()
	tx, err := o.connect().Begin(o.ctx)
	require.NoError(o.t, err)
	o.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// C06: a prepared transaction is published when its COMMIT comes, whatever was restarted meanwhile, and never if it is rolled back.
func TestPreparedTransactionsArePublishedWhenTheyAreCommitted(t *testing.T) {
	o, server := newOutboxOnOwnPostgres(t, map[string]string{"max_prepared_transactions": "5"})
	o.consume("Order")
	p := o.streaming()
	kept, dropped := o.event("Order", "kept", "t", "1"), o.event("Order", "dropped", "t", "2")
	for name, e := range map[string]workload.Event{"kept": kept, "dropped": dropped} {
		tx := o.begin()
		o.insert(tx, e)
		_, err := tx.Exec(o.ctx, `PREPARE TRANSACTION '`+name+`'`)
		require.NoError(t, err)
	}
	o.commit(o.event("Order", "k", "t", "before the restart"))
	o.arrived()
	p.kill()
	_ = o.conn.Close(o.ctx)
	require.NoError(t, server.Stop(o.ctx, stack.Fast))
	require.NoError(t, server.Start(o.ctx))
	o.conn = o.connect()
	o.streaming()
	o.commit(o.event("Order", "k", "t", "after the restart"))
	o.ledger.Intend(kept, dropped)
	o.exec(`COMMIT PREPARED 'kept'`)
	o.ledger.Committed(kept)
	o.exec(`ROLLBACK PREPARED 'dropped'`)
	o.ledger.RolledBack(dropped)
	o.arrived()
	o.awaitConfirmed(o.walEnd())
	o.arrived()
}

// C07: a transaction that stays open holds up nobody, and its event arrives after its COMMIT, also after a restart in between.
func TestALongTransactionHoldsUpNobody(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	p := o.streaming()
	long := o.event("Order", "long", "t", "committed at the end")
	tx := o.begin()
	o.insert(tx, long)
	restart := func() string {
		var lsn string
		require.NoError(t, o.conn.QueryRow(o.ctx, `SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = $1`, o.name).Scan(&lsn))
		return lsn
	}
	for range 3 {
		for i := range 100 {
			o.commit(o.event("Order", fmt.Sprint("k", i%5), "t", "flows"))
		}
		o.arrived()
		o.awaitConfirmed(o.walEnd())
		o.exec(`CHECKPOINT`)
		p.kill()
		p = o.streaming()
	}
	held := restart()
	o.ledger.Intend(long)
	require.NoError(t, tx.Commit(o.ctx))
	o.ledger.Committed(long)
	o.arrived()
	o.await("restart_lsn moves on", func() bool {
		o.exec(`CHECKPOINT`) // which logs what is running: from there a slot can start
		return restart() != held
	})
}

// C02, C13: transactions that Postgres has to spill, in lockstep, with savepoints and rollbacks among them.
func TestInterleavedTransactionsThatAreSpilledArriveInCommitOrder(t *testing.T) {
	o := newOutbox(t)
	o.exec(`ALTER DATABASE ` + o.name + ` SET logical_decoding_work_mem = '64kB'`)
	o.consume("Order")
	o.streaming()
	first, second, third := o.begin(), o.begin(), o.begin()
	var rolledBack, committed, between []workload.Event
	for i := range 500 {
		e := o.event("Order", "rolled back", "t", fmt.Sprint(i))
		o.insert(first, e)
		rolledBack = append(rolledBack, e)
		e = o.event("Order", "committed", "t", fmt.Sprint(i))
		o.insert(second, e)
		committed = append(committed, e)
		savepoint, err := second.Begin(o.ctx)
		require.NoError(t, err)
		undone := o.event("Order", "undone", "t", fmt.Sprint(i))
		o.insert(savepoint, undone)
		require.NoError(t, savepoint.Rollback(o.ctx))
		rolledBack = append(rolledBack, undone)
		if i%10 == 0 {
			e = o.event("Order", "between", "t", fmt.Sprint(i))
			o.insert(third, e)
			between = append(between, e)
		}
	}
	o.ledger.Intend(rolledBack...)
	o.ledger.Intend(committed...)
	o.ledger.Intend(between...)
	require.NoError(t, third.Commit(o.ctx))
	o.ledger.Committed(between...)
	require.NoError(t, first.Rollback(o.ctx))
	o.ledger.RolledBack(rolledBack...)
	require.NoError(t, second.Commit(o.ctx))
	o.ledger.Committed(committed...)
	require.Zero(t, o.arrived().Duplicates)
	o.awaitConfirmed(o.walEnd())
	require.Equal(t, len(committed)+len(between), o.ledger.Report().Records)
}
