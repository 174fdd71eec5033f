package rig

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProcessorTimeIsReadBehindAnyName(t *testing.T) {
	stat := []byte("42 (a) b (c)) S 1 42 42 0 -1 4194304 500 0 0 0 123 45 0 0 20 0 9 0 1000 1 1\n")
	cpu, err := parseCPU(stat)
	require.NoError(t, err)
	require.Equal(t, 1680*time.Millisecond, cpu)

	_, err = parseCPU([]byte("42 (a"))
	require.ErrorContains(t, err, "read processor time")
}

func TestAProcessTellsItsUsageOnceItHasStopped(t *testing.T) {
	p, err := StartProcess(exec.CommandContext(t.Context(), "sh", "-c", "echo ready; exec sleep 60"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return p.Log() == "ready\n" }, 10*time.Second, time.Millisecond)
	_, err = p.CPU()
	require.NoError(t, err)
	usage, err := p.Stop(t.Context())
	require.NoError(t, err)
	require.Positive(t, usage.Memory)
	<-p.Exited()
}
