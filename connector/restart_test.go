package connector

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// However often a session has ended, it has left no goroutine behind.
func TestFiftySessionsLeaveNoGoroutine(t *testing.T) {
	f := newFixture(t)
	before := goleak.IgnoreCurrent()
	ended := make(chan error, 1)
	var last ending
	for range 50 {
		go func() { ended <- runSession(context.WithoutCancel(t.Context()), f.cfg, &last) }()
		f.awaitLog("streaming")
		f.insert()
		_, err := f.db.Exec(t.Context(), `SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = $1`, f.cfg.Source.Slot)
		require.NoError(t, err)
		require.Error(t, await(t, ended, "the end of the session"))
	}
	goleak.VerifyNone(t, before, goleak.IgnoreAnyFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick")) // sarama's, one for all
}
