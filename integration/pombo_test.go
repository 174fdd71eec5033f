package integration

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/workload"
)

// patience is how long a condition may take on a slow, busy machine before a test gives up.
const patience = 90 * time.Second

// process is a running pombo and what it has printed.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    *workload.Transcript
	exited chan struct{}
}

// start runs pombo in the background; it is killed at the end of the test if it still runs.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(binary, args...), out: workload.NewTranscript(), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	require.NoError(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // the exit code is read from ProcessState
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("pombo %s printed:\n%s", strings.Join(args, " "), p.out)
		}
	})
	return p
}

// pombo runs a command to its end and returns its exit code and output.
func pombo(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	p := start(t, args...)
	return p.wait(), p.out.String()
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// wait returns the exit code.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.t.Fatalf("pombo does not end; it printed:\n%s", p.out)
		return -1
	}
}

// kill ends it as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// stop asks it to stop and returns the exit code and how long that took.
func (p *process) stop() (int, time.Duration) {
	p.t.Helper()
	began := time.Now()
	p.signal(syscall.SIGTERM)
	return p.wait(), time.Since(began)
}

// await waits until it has printed a text.
func (p *process) await(text string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	require.NoError(p.t, p.out.Await(ctx, text, p.exited))
}

// peakMemory is the largest resident memory so far, in bytes.
func (p *process) peakMemory() int64 {
	p.t.Helper()
	status, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/status")
	require.NoError(p.t, err)
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			require.NoError(p.t, err)
			return kib << 10
		}
	}
	p.t.Fatal("no VmHWM")
	return 0
}

// cpuTime is what the process has used so far.
func (p *process) cpuTime() time.Duration {
	p.t.Helper()
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/stat")
	require.NoError(p.t, err)
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime of proc(5), in hundredths of a second
		n, err := strconv.ParseInt(field, 10, 64)
		require.NoError(p.t, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
