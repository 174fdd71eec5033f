package stack

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

const (
	// startTimeout is how long a server may take to answer, on a machine that is busy with other tests.
	startTimeout = 3 * time.Minute
	// attemptTimeout is how long one question may take whether a server is there.
	attemptTimeout = 5 * time.Second
	// quitTimeout is how long a server gets to end before it is killed.
	quitTimeout = 10 * time.Second
)

// server is what an instance runs as: a process of this machine or a container.
type server interface {
	// start runs it again after it has ended, and does not wait until it answers.
	start(ctx context.Context) error
	// signal does not wait for what the signal does.
	signal(sig syscall.Signal) error
	// exited is closed once nothing of the last start runs any more.
	exited() <-chan struct{}
	// logTail is the end of its log, or why there is none.
	logTail() string
}

// instance owns the life of one server: what Postgres and Kafka have in common. It is not safe for concurrent use.
type instance struct {
	name   string // for errors
	origin string
	server server                      // nil where it was not started here, or is no process of its own
	ready  func(context.Context) error // nil error: it answers
	undo   []func() error              // see atClose
}

// await waits until the server answers. Its error has the end of the log.
func (i *instance) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no answer within %v", startTimeout))
	defer cancel()
	var err error
	answers := poll(ctx, i.server.exited(), func() bool {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		defer cancel()
		err = i.ready(attempt)
		return err == nil
	})
	switch {
	case answers:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("await its answer: %w: %w; its log ends with:\n%s", context.Cause(ctx), err, i.server.logTail())
	default:
		return fmt.Errorf("it ended at once; its log ends with:\n%s", i.server.logTail())
	}
}

// start runs the server again and waits until it answers.
func (i *instance) start(ctx context.Context) error {
	if i.server == nil {
		return i.unsupported("start")
	}
	select {
	case <-i.server.exited():
	default:
		return fmt.Errorf("start %s: it runs already", i.name)
	}
	err := i.server.start(ctx)
	if err == nil {
		err = i.await(ctx)
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", i.name, err)
	}
	return nil
}

// stop sends a signal and waits until the server has ended.
func (i *instance) stop(ctx context.Context, sig syscall.Signal) error {
	if err := i.signal("stop", sig); err != nil {
		return err
	}
	select {
	case <-i.server.exited():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop %s: await its end: %w", i.name, context.Cause(ctx))
	}
}

// signal sends a signal, which the error names by what it is for, and does not wait. To a server that has ended it does nothing.
func (i *instance) signal(purpose string, sig syscall.Signal) error {
	if i.server == nil {
		return i.unsupported(purpose)
	}
	select {
	case <-i.server.exited():
		return nil
	default:
	}
	if err := i.server.signal(sig); err != nil {
		return fmt.Errorf("%s %s: %w", purpose, i.name, err)
	}
	return nil
}

// quit ends the server for good, by force if it has to be.
func (i *instance) quit(sig syscall.Signal) error {
	for _, sig := range []syscall.Signal{sig, syscall.SIGKILL} {
		if err := i.signal("end", sig); err != nil {
			return err
		}
		select {
		case <-i.server.exited():
			return nil
		case <-time.After(quitTimeout):
		}
	}
	return fmt.Errorf("end %s: it outlives a kill", i.name)
}

// atClose adds what has to be undone of a start.
func (i *instance) atClose(step func() error) { i.undo = append(i.undo, step) }

// close undoes what a start did, last first. A second call does nothing.
func (i *instance) close() error {
	var err error
	for n := len(i.undo) - 1; n >= 0; n-- {
		err = errors.Join(err, i.undo[n]())
	}
	i.undo = nil
	return err
}

func (i *instance) unsupported(purpose string) error {
	return fmt.Errorf("%s %s: %w for a server that is %s", purpose, i.name, errors.ErrUnsupported, i.origin)
}
