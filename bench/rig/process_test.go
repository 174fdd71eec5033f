package rig

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAProcessTellsItsUsageOnceItHasStopped(t *testing.T) {
	p, err := StartProcess(exec.CommandContext(t.Context(), "sh", "-c", "echo ready; exec sleep 60"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return p.Log() == "ready\n" }, 10*time.Second, time.Millisecond)
	soFar, err := p.CPU()
	require.NoError(t, err)
	require.Positive(t, soFar)

	usage, err := p.Stop(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, usage.CPU+time.Millisecond, soFar, "both clocks are of the same process")
	require.Positive(t, usage.Memory)
	<-p.Exited()
	_, err = p.CPU()
	require.ErrorContains(t, err, "read processor time")
}
