package integration

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// H05, E02.
func TestASecondInstanceWaitsAndTakesOverWithin2sOfAKill(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	active := o.streaming()
	stop := o.load(4, 300)
	for range 5 {
		standby := o.run()
		standby.await("standing by")
		o.awaitMore(50)
		require.NotContains(t, standby.out.String(), "streaming")

		active.kill()
		killed := time.Now()
		standby.await("streaming")
		o.awaitMore(1)
		took := time.Since(killed)
		t.Logf("took over in %s", took)
		if len(raceFlags) == 0 {
			require.Less(t, took, 2*time.Second)
		}
		active = standby
	}
	stop()
	o.arrived()
	code, _ := active.stop()
	require.Zero(t, code)
}

// E02: a holder that stands still keeps the slot until Postgres gives it up.
func TestAStandbyTakesOverFromAnInstanceThatStandsStill(t *testing.T) {
	o := newOutbox(t)
	o.consume("Order")
	o.exec(`ALTER DATABASE ` + o.name + ` SET wal_sender_timeout = '2s'`)
	frozen := o.streaming()
	o.commit(o.event("Order", "k", "t", "1"))
	o.arrived()
	standby := o.run()
	standby.await("standing by")
	frozen.signal(syscall.SIGSTOP)
	o.commit(o.event("Order", "k", "t", "2"))
	standby.await("streaming")
	o.commit(o.event("Order", "k", "t", "3"))
	o.arrived()

	// It wakes up, finds its session gone, and stands by in its turn.
	frozen.signal(syscall.SIGCONT)
	frozen.await("standing by")
	o.commit(o.event("Order", "k", "t", "4"))
	o.arrived()
	standby.kill()
	o.commit(o.event("Order", "k", "t", "5"))
	o.arrived()
	o.awaitConfirmed(o.walEnd())
	code, _ := frozen.stop()
	require.Zero(t, code)
}

func TestAStandbyStopsAtOnce(t *testing.T) {
	o := newOutbox(t)
	o.streaming()
	standby := o.run()
	standby.await("standing by")
	code, took := standby.stop()
	require.Zero(t, code)
	require.Less(t, took, 5*time.Second)
}
