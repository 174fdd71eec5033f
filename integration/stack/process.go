package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a server that runs as a child. The kernel ends it when this process dies.
type process struct {
	cmd     *exec.Cmd
	logFile string
	exited  chan struct{}
}

// spec says how to start a process.
type spec struct {
	path    string
	args    []string
	env     []string // beside the environment of this process
	logFile string
	user    *syscall.Credential
	onDeath syscall.Signal // what the kernel sends when this process dies
}

func start(s spec) (*process, error) {
	logFile, err := os.OpenFile(s.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = logFile.Close() }() // the child has it
	cmd := exec.Command(s.path, s.args...)
	cmd.Env = append(os.Environ(), s.env...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:    true, // Ctrl-C is ours to pass on
		Pdeathsig:  s.onDeath,
		Credential: s.user,
	}
	if err := fork(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.path, err)
	}
	p := &process{cmd: cmd, logFile: s.logFile, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended does not matter, that it did does
		close(p.exited)
	}()
	return p, nil
}

// fork starts cmd from a thread that lives as long as this process: the kernel sends the death signal when
// the thread ends that forked, and Go ends threads as it likes.
func fork(cmd *exec.Cmd) error {
	result := make(chan error)
	forker() <- func() { result <- cmd.Start() }
	return <-result
}

var forker = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// signal sends a signal and does not wait.
func (p *process) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// end sends a signal and waits until the process has ended.
func (p *process) end(ctx context.Context, s syscall.Signal) error {
	if err := p.signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %d: %w", p.cmd.Process.Pid, err)
	}
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of process %d: %w", p.cmd.Process.Pid, context.Cause(ctx))
	}
}

// quitTimeout is how long a server gets to end before it is killed.
const quitTimeout = 10 * time.Second

// quit ends the process for good, by force if it has to be.
func (p *process) quit(s syscall.Signal) error {
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), quitTimeout)
	defer cancel()
	if p.end(ctx, s) == nil {
		return nil
	}
	return p.end(context.Background(), syscall.SIGKILL)
}

// await polls ready until it succeeds, the process dies or ctx ends. Its error has the last lines of the log.
func (p *process) await(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("it ended at once; its log ends with:\n%s", p.logTail())
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w; its log ends with:\n%s", err, p.logTail())
		case <-tick.C:
		}
	}
}

func (p *process) logTail() string {
	data, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
