package rig

import (
	"context"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pombo-cdc/pombo/integration/workload"
)

const (
	// stopLimit is how long a process may take to stop before it is killed.
	stopLimit = 30 * time.Second
	// pipeLimit is how long children that a process left behind may keep its log open.
	pipeLimit = time.Second
)

// Usage is what a process took of the machine in its whole life.
type Usage struct {
	CPU    time.Duration // user and system
	Memory int64         // peak resident, bytes
}

// Process is a running contender.
type Process struct {
	cmd    *exec.Cmd
	log    *workload.Transcript // standard output and standard error
	exited chan struct{}
}

// StartProcess starts a command, whose output becomes the log.
func StartProcess(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, log: workload.NewTranscript(), exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = p.log, p.log, pipeLimit
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	go func() {
		_ = cmd.Wait() // the exit code is read from ProcessState
		close(p.exited)
	}()
	return p, nil
}

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Log is what the process has printed so far.
func (p *Process) Log() string { return p.log.String() }

// Stop asks the process to stop, and kills it if it does not or if ctx ends. One that has ended is no error.
func (p *Process) Stop(ctx context.Context) (Usage, error) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error: it has ended
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	var err error
	select {
	case <-p.exited:
	case <-limit.C:
		err = fmt.Errorf("%s does not stop within %v; it logged:\n%s", p.cmd.Path, stopLimit, p.Log())
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	_ = p.cmd.Process.Kill()
	<-p.exited
	usage := Usage{CPU: p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()}
	if rusage, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		usage.Memory = rusage.Maxrss << 10
	}
	return usage, err
}

// failure is how a process that has ended by itself failed, if it did.
func (p *Process) failure() error {
	if state := p.cmd.ProcessState; !state.Success() {
		return fmt.Errorf("it ended with %s", state)
	}
	return nil
}

// CPU is the processor time, user and system, that the running process has taken so far.
func (p *Process) CPU() (time.Duration, error) { return cpuOf(p.cmd.Process.Pid) }

// cpuOf is the processor time of any process of this machine. It asks for the clock that clock_getcpuclockid(3) names,
// because /proc/PID/stat, which has the same, counts in steps of 10 ms.
func cpuOf(pid int) (time.Duration, error) {
	const allThreads = 2 // CPUCLOCK_SCHED of the kernel
	var spent unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|allThreads), &spent); err != nil {
		return 0, fmt.Errorf("read processor time of process %d: %w", pid, err)
	}
	return time.Duration(spent.Nano()), nil
}
