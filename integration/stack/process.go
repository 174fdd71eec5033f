package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
)

// spec says how to start a process.
type spec struct {
	path    string
	args    []string
	dir     string
	logFile string              // of standard output and standard error
	account *syscall.Credential // nil: as this process
	onDeath syscall.Signal      // what it gets when this process dies
}

// process is a server that runs as a child of this process.
type process struct {
	spec spec
	cmd  *exec.Cmd
	gone chan struct{} // of the last start
}

func startProcess(s spec) (*process, error) {
	p := &process{spec: s}
	return p, p.run()
}

func (p *process) start(context.Context) error { return p.run() }

// run forks. A pipe that the child and all its children inherit tells when the last of them is gone: backends outlive a
// killed postmaster for a moment, and until then it cannot be started again.
func (p *process) run() error {
	log, err := os.OpenFile(p.spec.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = log.Close() }() // the child has its own
	alive, inherited, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	defer func() { _ = inherited.Close() }() // or the pipe would never end
	p.cmd = exec.Command(p.spec.path, p.spec.args...)
	p.cmd.Dir = p.spec.dir
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.ExtraFiles = []*os.File{inherited}
	p.cmd.SysProcAttr = childAttributes(p.spec.account, p.spec.onDeath)
	if err := fork(p.cmd); err != nil {
		return errors.Join(fmt.Errorf("run %s: %w", filepath.Base(p.spec.path), err), alive.Close())
	}
	p.gone = make(chan struct{})
	go reap(p.cmd, alive, p.gone)
	return nil
}

// reap waits for a process and for what it left behind. How they ended does not matter, and the log has it.
func reap(cmd *exec.Cmd, alive *os.File, gone chan<- struct{}) {
	_ = cmd.Wait()
	_, _ = io.Copy(io.Discard, alive)
	_ = alive.Close()
	close(gone)
}

func (p *process) exited() <-chan struct{} { return p.gone }

func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// logTailBytes is how much of a log goes into an error.
const logTailBytes = 3000

func (p *process) logTail() string {
	data, err := os.ReadFile(p.spec.logFile)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(data[max(0, len(data)-logTailBytes):]))
}

// output runs a command to its end and returns what it printed. An error has the end of that too.
func output(ctx context.Context, account *syscall.Credential, dir, name string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = childAttributes(account, syscall.SIGKILL)
	err := fork(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		tail := out.Bytes()[max(0, out.Len()-logTailBytes):]
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(name), err, bytes.TrimSpace(tail))
	}
	return out.String(), nil
}

// fork starts cmd from a thread that lives as long as this process. The kernel sends a child its death signal when the
// thread ends that forked it, and Go ends threads as it likes.
func fork(cmd *exec.Cmd) error {
	result := make(chan error)
	forker() <- func() { result <- cmd.Start() }
	return <-result
}

var forker = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go forkForEver(work)
	return work
})

// forkForEver is a goroutine without an end, which tests that look for others have to know.
func forkForEver(work <-chan func()) {
	runtime.LockOSThread()
	for f := range work {
		f()
	}
}
