package integration

import (
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/stack"
	"github.com/pombo-cdc/pombo/integration/workload"
)

// zombies is an outbox with two instances, of which the one that works gets stuck with events queued for Kafka.
type zombies struct {
	*outbox
	broker   *stack.Kafka
	postgres *stack.Proxy // between the first instance and its server
	first    *process
	second   *process
	flags    []string
}

func newZombies(t *testing.T, flags ...string) *zombies {
	t.Helper()
	z := &zombies{outbox: newOutbox(t), broker: fragile.get(t), flags: flags}
	z.brokers = z.broker.Brokers()
	z.createTopic("Order", 4)
	z.consume("Order")
	z.exec(`ALTER DATABASE ` + z.name + ` SET wal_sender_timeout = '2s'`)
	u, err := url.Parse(z.dsn)
	require.NoError(t, err)
	z.postgres, err = stack.NewProxy(u.Host)
	require.NoError(t, err)
	t.Cleanup(func() { _ = z.postgres.Close() })
	u.Host = z.postgres.Addr()
	z.first = z.streaming(append(flags, "--postgres", u.String())...)
	return z
}

// write commits n events for each of several keys, which are in all partitions.
func (z *zombies) write(n int, payload string) {
	for range n {
		for k := range 8 {
			z.commit(z.event("Order", fmt.Sprint("k", k), "t", payload))
		}
	}
}

// stick has the first instance send a batch to a broker that stands still, and queue more behind it.
func (z *zombies) stick() {
	z.write(1, "before")
	z.arrived()
	z.second = z.run(z.flags...)
	z.second.await("standing by")
	require.NoError(z.t, z.broker.Pause())
	sent := z.lsn(`SELECT sent_lsn::text FROM pg_stat_replication WHERE pid = $1`, z.walsender())
	z.write(5, strings.Repeat("queued ", 20_000))
	z.await("the instance has received what is written", func() bool {
		return z.lsn(`SELECT sent_lsn::text FROM pg_stat_replication WHERE pid = $1`, z.walsender()) > sent
	})
	z.reportedTwice()
}

// newest requires that nothing is lost or reordered and that the last record of each key is its last event.
func (z *zombies) newest() {
	z.t.Helper()
	z.arrived()
	z.first.stop()
	z.second.stop()
	last := make(map[string]workload.Record)
	for _, r := range z.read("Order", int(z.records("Order"))) {
		last[string(r.Key)] = r
	}
	for key, r := range last {
		require.Equal(z.t, "newest of "+key, string(r.Value), "an old value came behind a new one")
	}
}

// writeNewest commits one more event for each key, which says so.
func (z *zombies) writeNewest() {
	for k := range 8 {
		key := fmt.Sprint("k", k)
		z.commit(z.event("Order", key, "t", "newest of "+key))
	}
}

// freeze stops the first instance until the second has published what it had queued and newer events, and wakes it up again.
// It does not notice that Postgres has parted from it, and so sends what it has. freeze returns the number of records before that.
func (z *zombies) freeze() int64 {
	z.stick()
	z.postgres.Stall(stack.Both)
	z.first.signal(syscall.SIGSTOP)
	require.NoError(z.t, z.broker.Resume())
	z.second.await("streaming")
	z.writeNewest()
	z.arrived()
	z.awaitConfirmed(z.walEnd())
	records := z.records("Order")
	z.first.signal(syscall.SIGCONT)
	return records
}

// A process that was stopped for longer than wal_sender_timeout, with events queued for Kafka, wakes up after another has
// published those and newer ones: the brokers refuse what it still sends, and it confirms nothing.
func TestAnInstanceThatWakesUpLateIsShutOut(t *testing.T) {
	z := newZombies(t)
	records := z.freeze()
	z.first.await("another instance uses transactional id")
	require.NoError(t, z.postgres.Heal())
	z.first.await("standing by")
	require.Equal(t, records, z.records("Order"), "the brokers took a batch of the old instance")
	z.newest()
}

// The same with a process that wakes up at once, so that it writes to partitions to which the other has not written yet: that
// will write there again what it finds.
func TestAnInstanceThatWakesUpEarlyLeavesNoOldValueBehind(t *testing.T) {
	z := newZombies(t)
	for range 3 {
		z.stick()
		z.first.signal(syscall.SIGSTOP)
		pid := z.walsender()
		require.NoError(t, z.broker.Resume())
		z.await("another session has the slot", func() bool { return z.walsender() != pid && z.walsender() != 0 })
		z.first.signal(syscall.SIGCONT)
		z.writeNewest()
		z.first.await("standing by")
		z.second.await("streaming")
		z.arrived()
		z.second.kill()
	}
	z.second = z.run(z.flags...)
	z.writeNewest()
	z.newest()
}

// A process that is cut off from Postgres alone goes on writing to Kafka what it has queued.
func TestAnInstanceThatIsCutOffFromPostgresLeavesNoOldValueBehind(t *testing.T) {
	z := newZombies(t)
	z.stick()
	pid := z.walsender()
	z.postgres.Stall(stack.Both)
	z.await("another session has the slot", func() bool { return z.walsender() != pid && z.walsender() != 0 })
	require.NoError(t, z.broker.Resume())
	z.writeNewest()
	z.second.await("streaming")
	z.arrived()
	z.awaitConfirmed(z.walEnd())
	require.NoError(t, z.postgres.Heal())
	z.first.await("standing by")
	z.newest()
}

// Without fencing nothing is lost and first occurrences stay in order. What is left is said in docs/operations.md: the late
// batches of an old instance come behind newer events.
func TestWithoutFencingAnInstanceThatWakesUpLateLosesNothing(t *testing.T) {
	z := newZombies(t, "--fencing", "off")
	records := z.freeze()
	z.await("the old instance sends what it had queued", func() bool { return z.records("Order") > records })
	require.NoError(t, z.postgres.Heal())
	z.first.await("standing by")
	z.write(1, "after")
	z.arrived()
}
