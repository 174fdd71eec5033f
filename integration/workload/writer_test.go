package workload_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/stack"
	"github.com/pombo-cdc/pombo/integration/workload"
)

const outboxTable = `CREATE TABLE outbox_event (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, payload text, created_at timestamp)`

func TestAWriterKnowsTheFateOfEveryEventOverRestartsOfItsServer(t *testing.T) {
	p, err := stack.StartPostgres(t.Context(), stack.PostgresOptions{Settings: map[string]string{"fsync": "off"}, Log: t.Output()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	dsn, err := p.CreateDatabase(t.Context(), "restarted")
	require.NoError(t, err)
	connect := func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, dsn) }
	conn, err := connect(t.Context())
	require.NoError(t, err)
	_, err = conn.PgConn().Exec(t.Context(), workload.Schema+";"+outboxTable).ReadAll()
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))

	ledger := workload.NewLedger(nil)
	ctx, stop := context.WithCancel(t.Context())
	pace := make(chan struct{})
	var writing sync.WaitGroup
	for i := range 8 {
		conn, err := connect(t.Context())
		require.NoError(t, err)
		w := &workload.Writer{
			Conn: conn, Connect: connect, Ledger: ledger, Type: "Order", Topic: "orders",
			Aggregates: 3, Rand: rand.New(rand.NewPCG(uint64(i), 1)), Large: 10_000,
		}
		writing.Go(func() {
			require.NoError(t, w.Run(ctx, pace))
			require.NoError(t, w.Conn.Close(t.Context()))
		})
	}
	writing.Go(func() {
		for ctx.Err() == nil {
			select {
			case pace <- struct{}{}:
			case <-ctx.Done():
			}
		}
	})
	for _, mode := range []stack.StopMode{stack.Immediate, stack.Fast, stack.Immediate} {
		written := ledger.Report().Committed
		require.Eventually(t, func() bool { return ledger.Report().Committed > written+200 }, time.Minute, time.Millisecond)
		if err := p.Stop(t.Context(), mode); errors.Is(err, errors.ErrUnsupported) {
			break // a server that was given does not restart
		} else if err != nil {
			t.Fatal(err)
		}
		require.NoError(t, p.Start(t.Context()))
	}
	stop()
	writing.Wait()

	conn, err = connect(t.Context())
	require.NoError(t, err)
	rows, err := conn.Query(t.Context(), `SELECT id::text, aggregate_id, payload, (payload::json ->> 'seq')::bigint FROM outbox_event ORDER BY 2, 4`)
	require.NoError(t, err)
	var r workload.Record
	var id, key, payload string
	var seq int64
	_, err = pgx.ForEachRow(rows, []any{&id, &key, &payload, &seq}, func() error {
		r = workload.Record{
			Topic: "orders", Key: []byte(key), Value: []byte(payload),
			Headers: map[string]string{"eventId": id, "eventType": "OrderChanged"},
		}
		ledger.Observe(r)
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	report := ledger.Report()
	require.NoError(t, report.Err(), "what is there is what the writers know to be committed")
	require.Equal(t, report.Committed, ledger.Written(), "nothing is in doubt")
	require.Zero(t, report.Duplicates)
	require.Empty(t, ledger.Stale())
}
