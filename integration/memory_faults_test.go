//go:build faults

package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/stack"
	"github.com/pombo-cdc/pombo/integration/workload"
)

// memoryLimit is what the connector stays under, whatever happens around it.
const memoryLimit = 64_000_000

// requireSmall requires that a process has never needed more memory than limit.
func requireSmall(t *testing.T, p *process, limit int64) {
	t.Helper()
	peak := p.peakMemory()
	t.Logf("peak resident memory %.1f MB", float64(peak)/1e6)
	if len(raceFlags) == 0 { // the race detector multiplies memory
		require.Less(t, peak, limit)
	}
}

// C01.
func TestATransactionOfAMillionRowsOf1KBStaysUnder64MB(t *testing.T) {
	o := newOutbox(t)
	o.createTopic("Order", 4)
	o.exec(bulk(1_000_000))
	p := o.streaming()
	seen := o.awaitRecords("Order", 500_000)
	requireSmall(t, p, memoryLimit)
	p.kill()
	p = o.streaming()
	o.awaitRecords("Order", seen+1_000_000)
	o.awaitConfirmed(o.walEnd())
	requireSmall(t, p, memoryLimit)
}

// F11: a backlog of 2 GB in front of a broker that takes 100 KB/s.
func TestABacklogOf2GBBeforeAThrottledBrokerStaysUnder64MB(t *testing.T) {
	broker, err := stack.StartKafka(t.Context(), stack.KafkaOptions{Proxied: true})
	require.NoError(t, err)
	t.Cleanup(func() { _ = broker.Close() })
	o := newOutbox(t)
	o.brokers = broker.Direct()
	o.createTopic("Order", 4)
	for range 20 {
		o.exec(bulk(100_000))
	}
	broker.Proxy().Throttle(stack.Upload, 100_000)
	p := o.streaming("--brokers", strings.Join(broker.Brokers(), ","), "--compression", "none")
	pid := o.walsender()
	for published := int64(1); published <= 25; published++ {
		o.awaitRecords("Order", 1000*published)
		requireSmall(t, p, memoryLimit)
	}
	require.Equal(t, pid, o.walsender())
	require.NotContains(t, p.out.String(), "session ended")
	require.NoError(t, broker.Proxy().Heal())
	o.awaitRecords("Order", 500_000) // it goes fast again
	requireSmall(t, p, memoryLimit)
	code, _ := p.stop()
	require.Zero(t, code)
}

// G10: the broker is away for ten minutes while 300 events are committed a second.
func TestAnOutageOfTenMinutesStaysUnder64MB(t *testing.T) {
	broker := fragile.get(t)
	o := newOutbox(t)
	o.brokers = broker.Brokers()
	o.createTopic("Order", 4)
	o.consume("Order")
	p := o.streaming()
	stop := o.load(4, 110) // transactions, of three events on average
	o.awaitReport(func(r workload.Report) bool { return r.Records > 1000 })
	require.NoError(t, broker.Kill(o.ctx))
	away := time.Now()
	before := o.ledger.Report().Committed
	o.awaitFor(12*time.Minute, "ten minutes are over", func() bool { return time.Since(away) > 10*time.Minute })
	t.Logf("%d events were committed meanwhile", o.ledger.Report().Committed-before)
	requireSmall(t, p, memoryLimit)
	require.NoError(t, broker.Start(o.ctx))
	stop()
	r := o.arrived()
	t.Logf("%+v", r)
	requireSmall(t, p, memoryLimit)
	code, _ := p.stop()
	require.Zero(t, code)
}
