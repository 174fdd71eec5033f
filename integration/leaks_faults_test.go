//go:build faults

package integration

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

const restarts = 50

// entries is the number of entries of a folder of the process in /proc: fd has a descriptor each, task a thread.
func (p *process) entries(folder string) int {
	p.t.Helper()
	all, err := os.ReadDir("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/" + folder)
	require.NoError(p.t, err)
	return len(all)
}

// requireNoMore requires that the process comes to rest with as many descriptors and threads as it had, and in little memory.
func (p *process) requireNoMore(o *outbox, descriptors, threads int) {
	p.t.Helper()
	o.await("descriptors are closed", func() bool { return p.entries("fd") <= descriptors })
	require.LessOrEqual(p.t, p.entries("task"), threads+4, "the runtime adds some when system calls take long")
	requireSmall(p.t, p, memoryLimit)
}

// H07: fifty sessions end under load. Each next one goes on, and in the end the process has what it had.
func TestFiftyRestartsOfTheSessionLeaveNothingBehind(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	stop := o.load(2, 50)
	p := o.streaming()
	var descriptors, threads int
	for i := range restarts {
		o.awaitMore(20)
		if i == 3 {
			descriptors, threads = p.entries("fd"), p.entries("task")
		}
		pid := o.walsender()
		o.exec(`SELECT pg_terminate_backend($1)`, pid)
		o.await("another session has the slot", func() bool { return o.walsender() != pid && o.walsender() != 0 })
	}
	stop()
	o.arrived()
	p.requireNoMore(o, descriptors, threads)
	code, _ := p.stop()
	require.Zero(t, code)
}

func TestFiftyLostConnectionsToKafkaLeaveNothingBehind(t *testing.T) {
	broker := newProxiedKafka(t, nil)
	o := newOutbox(t)
	o.brokers = broker.Direct()
	o.createTopic("Order", 4)
	o.consume("Order")
	stop := o.load(2, 50)
	p := o.streaming("--brokers", broker.Brokers()[0])
	var descriptors, threads int
	for i := range restarts {
		o.awaitMore(20)
		if i == 3 {
			descriptors, threads = p.entries("fd"), p.entries("task")
		}
		broker.Proxy().Reset()
	}
	stop()
	o.arrived()
	p.requireNoMore(o, descriptors, threads)
	code, _ := p.stop()
	require.Zero(t, code)
}

// H07: Postgres stops in each way, three times, in the middle of a large transaction's way to Kafka. (A smart stop waits for its
// clients, so there are none but the connector.)
func TestPostgresRestartsInTheMiddleOfWorkLoseNothing(t *testing.T) {
	o, server := newOutboxOnOwnPostgres(t, nil)
	o.createTopic("Order", 4)
	o.consume("Payment")
	p := o.streaming()
	const rows = 20_000
	for range 3 {
		for _, mode := range stopModes {
			o.exec(bulk(rows))
			o.commit(o.event("Payment", "k", "t", "before"))
			_ = o.conn.Close(o.ctx)
			require.NoError(t, server.Stop(o.ctx, mode))
			require.NoError(t, server.Start(o.ctx))
			o.conn = o.connect()
			o.commit(o.event("Payment", "k", "t", "after"))
			o.arrived()
		}
	}
	o.awaitConfirmed(o.walEnd())
	require.Equal(t, 3*len(stopModes)*rows, o.distinct("Order"))
	code, _ := p.stop()
	require.Zero(t, code)
}
