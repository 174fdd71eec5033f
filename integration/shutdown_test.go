//go:build faults

package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/stack"
)

// F09, F07: at a shutdown Postgres waits until everything is confirmed and asks without a pause, which must have an end while
// Kafka is away, whether the receiver reads or waits for room in the buffer.
func TestPostgresStopsThoughKafkaIsAwayAndNothingIsLost(t *testing.T) {
	broker := fragile.get(t)
	for _, rows := range []int{1, 3000} {
		for mode, name := range map[stack.StopMode]string{stack.Fast: "fast", stack.Smart: "smart"} {
			t.Run(fmt.Sprintf("%s, %d rows", name, rows), func(t *testing.T) {
				o, server := newOutboxOnOwnPostgres(t, nil)
				o.brokers = broker.Brokers()
				o.createTopic("Order", 4)
				p := o.streaming("--buffer", "1MiB")
				require.NoError(t, broker.Stop(o.ctx))
				o.sql(bulk(rows))
				p.await("topic does not take events")
				require.NoError(t, o.conn.Close(o.ctx)) // a smart stop waits for it

				used, began := p.cpuTime(), time.Now()
				ctx, cancel := context.WithTimeout(o.ctx, time.Minute)
				defer cancel()
				require.NoError(t, server.Stop(ctx, mode))
				took := time.Since(began)
				t.Logf("stopped in %s, for which Pombo used the CPU for %s", took, p.cpuTime()-used)
				require.Less(t, took, 45*time.Second)
				require.Less(t, p.cpuTime()-used, took/4)
				require.Contains(t, p.out.String(), "the replication connection is dropped")

				require.NoError(t, server.Start(o.ctx))
				require.NoError(t, broker.Start(o.ctx))
				o.conn = o.connect()
				o.awaitConfirmed(o.walEnd())
				require.Equal(t, rows, o.distinct("Order"))
				code, _ := p.stop()
				require.Zero(t, code)
			})
		}
	}
}

// A Kafka that is away at the start, refusing or silent, must not look like a dead connector to Postgres.
func TestASessionOutlivesAShortWalSenderTimeoutWhileKafkaIsAway(t *testing.T) {
	broker := fragile.get(t)
	o := newOutbox(t)
	o.brokers = broker.Brokers()
	o.createTopic("Order", 1)
	o.consume("Order")
	o.exec(`ALTER DATABASE ` + o.name + ` SET wal_sender_timeout = '2s'`)
	for name, away := range map[string]struct{ begin, end func() error }{
		"refusing": {func() error { return broker.Stop(o.ctx) }, func() error { return broker.Start(o.ctx) }},
		"silent":   {broker.Pause, broker.Resume},
	} {
		require.NoError(t, away.begin())
		p := o.run()
		o.await("it has the slot", func() bool { return o.walsender() != 0 })
		o.commit(o.event("Order", "k", "t", name))
		if name == "silent" {
			first := o.walsender()
			for range 8 { // take more than two timeouts
				o.reportedTwice()
			}
			require.Equal(t, first, o.walsender())
		}
		require.NoError(t, away.end())
		o.arrived()
		require.NotContains(t, p.out.String(), "replication stream")
		code, _ := p.stop()
		require.Zero(t, code)
	}
}
