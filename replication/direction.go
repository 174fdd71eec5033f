//go:build unix

package replication

import (
	"errors"
	"math"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// direction is reading from a socket, or writing to it: what is waited for and until when.
type direction struct {
	events   int16
	deadline atomic.Int64 // nanoseconds since the epoch of this file, by the monotonic clock; 0 is none
	waiting  atomic.Bool
	moved    [2]int // a pipe that tells the one who waits to look at the deadline again
}

var epoch = time.Now()

func (d *direction) open() error {
	d.moved = [2]int{noDescriptor, noDescriptor}
	syscall.ForkLock.RLock() // no child may inherit them
	defer syscall.ForkLock.RUnlock()
	if err := unix.Pipe(d.moved[:]); err != nil {
		return os.NewSyscallError("pipe", err)
	}
	for _, fd := range d.moved {
		unix.CloseOnExec(fd)
		if err := unix.SetNonblock(fd, true); err != nil {
			return os.NewSyscallError("setnonblock", err)
		}
	}
	return nil
}

func (d *direction) close() error {
	return errors.Join(closeDescriptor(d.moved[0]), closeDescriptor(d.moved[1]))
}

// move sets the deadline, which counts for a call that waits already.
func (d *direction) move(t time.Time) {
	if t.IsZero() {
		d.deadline.Store(0)
	} else {
		d.deadline.Store(int64(t.Sub(epoch)))
	}
	if d.waiting.Load() {
		d.notify()
	}
}

// notify has the one who waits look at the deadline. A pipe that is full tells it already.
func (d *direction) notify() { _, _ = unix.Write(d.moved[1], []byte{0}) }

// left is the time until the deadline.
func (d *direction) left() time.Duration {
	deadline := d.deadline.Load()
	if deadline == 0 {
		return math.MaxInt64
	}
	return time.Duration(deadline) - time.Since(epoch)
}

// wait returns when the descriptor is ready, or when there is another reason to look.
func (d *direction) wait(fd int) error {
	d.waiting.Store(true) // before the deadline is read: whoever moves it afterwards notifies
	defer d.waiting.Store(false)
	fds := []unix.PollFd{{Fd: int32(fd), Events: d.events}, {Fd: int32(d.moved[0]), Events: unix.POLLIN}}
	_, err := unix.Poll(fds, milliseconds(d.left()))
	if err != nil && !errors.Is(err, unix.EINTR) {
		return os.NewSyscallError("poll", err)
	}
	if fds[1].Revents != 0 {
		var told [16]byte
		_, _ = unix.Read(d.moved[0], told[:]) // what is left wakes the next one, for nothing
	}
	return nil
}

// milliseconds rounds up to what poll takes.
func milliseconds(left time.Duration) int {
	switch {
	case left == math.MaxInt64:
		return -1
	case left <= 0:
		return 0
	}
	return int(min((left+time.Millisecond-1)/time.Millisecond, math.MaxInt32))
}
