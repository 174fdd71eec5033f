package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/pombo-cdc/pombo/integration/stack"
)

const (
	binary = "bin/pombo"
	// restartDelay is how soon an instance is started again.
	restartDelay = 500 * time.Millisecond
	// graceLimit is how long an instance may take to stop.
	graceLimit = 20 * time.Second
)

// instance is a pombo that is started again whenever it ends, as a supervisor does.
type instance struct {
	name     string
	args     []string
	proxy    *stack.Proxy // to Postgres
	log      *os.File
	sessions *sessions
	done     chan struct{} // closed when it has ended for good
	stopping chan struct{} // closed when it shall

	mu        sync.Mutex
	process   *os.Process
	killed    bool      // the process, by this program
	asked     bool      // the process, to stop; asked again, it ends at once
	streaming time.Time // since when it has the slot, or zero
	starts    int
	peak      int64 // resident memory, in bytes
	err       error // why it cannot go on
	partial   []byte
}

// supervise runs the instance until it is stopped, or ends in a way that a supervisor cannot cure.
func (i *instance) supervise() {
	defer close(i.done)
	for {
		cmd := exec.Command(binary, i.args...)
		cmd.Stdout, cmd.Stderr = i, i
		err := cmd.Start()
		if err == nil {
			i.started(cmd.Process)
			err = cmd.Wait()
		}
		if !i.ended(err) {
			return
		}
		select {
		case <-i.stopping:
			return
		case <-time.After(restartDelay):
		}
	}
}

func (i *instance) started(p *os.Process) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.process, i.killed, i.asked = p, false, false
	i.starts++
	select {
	case <-i.stopping: // it was told when there was no process; this one may not listen yet
		i.killed = true
		_ = p.Signal(syscall.SIGTERM)
	default:
	}
}

// ended notes how a process ended and reports whether to start another.
func (i *instance) ended(err error) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.process, i.streaming = nil, time.Time{}
	if err != nil && !i.killed {
		i.err = fmt.Errorf("%s ended by itself: %w", i.name, err)
	}
	return i.err == nil
}

func (i *instance) signal(s syscall.Signal) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.process == nil {
		return
	}
	if s == syscall.SIGTERM {
		i.killed = i.killed || i.asked || i.streaming.IsZero() // which may not listen yet
		i.asked = true
	}
	i.killed = i.killed || s == syscall.SIGKILL
	_ = i.process.Signal(s)
}

// stop ends the instance for good. It is an error if it does not end, or had to be started in vain.
func (i *instance) stop() error {
	close(i.stopping)
	i.signal(syscall.SIGCONT)
	i.signal(syscall.SIGTERM)
	select {
	case <-i.done:
		return i.failure()
	case <-time.After(graceLimit):
		i.signal(syscall.SIGKILL)
		<-i.done
		return fmt.Errorf("%s does not stop within %s", i.name, graceLimit)
	}
}

func (i *instance) failure() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.err
}

func (i *instance) streamingSince() time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.streaming
}

// Write keeps the log and learns from it what the instance does.
func (i *instance) Write(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.partial = append(i.partial, p...)
	for {
		line, rest, whole := bytes.Cut(i.partial, []byte("\n"))
		if !whole {
			break
		}
		i.read(line)
		i.partial = rest
	}
	return i.log.Write(p)
}

func (i *instance) read(line []byte) {
	var entry struct{ Message, Confirmed string }
	if json.Unmarshal(line, &entry) != nil {
		return
	}
	switch entry.Message {
	case "streaming":
		lsn, err := pglogrepl.ParseLSN(entry.Confirmed)
		if err != nil {
			i.err = errors.Join(i.err, fmt.Errorf("read log of %s: %w", i.name, err))
		}
		i.sessions.began(i.name, lsn)
		i.streaming = time.Now()
	case "session ended":
		i.streaming = time.Time{}
	}
}

// measure takes note of the largest resident memory of the process.
func (i *instance) measure() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.process == nil {
		return
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(i.process.Pid) + "/status")
	if err != nil {
		return // it has just ended, or there is no such file on this system
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			i.peak = max(i.peak, kib<<10)
		}
	}
}
