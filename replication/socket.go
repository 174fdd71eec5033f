//go:build unix

package replication

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a connection that Go's poller does not know. The walsender makes one send a row, and for each of them the
// poller wakes a thread, even while nobody reads. That costs more than all that is done with the row, and the walsender
// pays its part. A socket is woken only where a read waits. One goroutine may read while another writes; any may set
// deadlines and close it.
type socket struct {
	fd               int // non-blocking
	local, remote    net.Addr
	reading, writing direction

	closed atomic.Bool
	open   sync.RWMutex // held for reading by whoever uses a descriptor
}

// unpolled takes a connection out of the poller, and takes it over. One without a descriptor stays as it is.
func unpolled(conn net.Conn) (net.Conn, error) {
	polled, ok := conn.(syscall.Conn)
	if !ok {
		return conn, nil
	}
	s := &socket{
		fd:    noDescriptor,
		local: conn.LocalAddr(), remote: conn.RemoteAddr(),
		reading: direction{events: unix.POLLIN}, writing: direction{events: unix.POLLOUT},
	}
	if err := errors.Join(s.take(polled), conn.Close()); err != nil {
		return nil, fmt.Errorf("take connection out of the poller: %w", errors.Join(err, s.Close()))
	}
	return s, nil
}

func (s *socket) take(polled syscall.Conn) (err error) {
	if err := errors.Join(s.reading.open(), s.writing.open()); err != nil {
		return err
	}
	raw, err := polled.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) {
		s.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	})
	return errors.Join(controlErr, os.NewSyscallError("fcntl", err))
}

// Read implements net.Conn.
func (s *socket) Read(p []byte) (int, error) {
	n, err := s.transfer(&s.reading, unix.Read, p)
	switch {
	case err != nil:
		return 0, s.opError("read", err)
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn.
func (s *socket) Write(p []byte) (int, error) {
	for written := 0; ; {
		n, err := s.transfer(&s.writing, unix.Write, p[written:])
		if err != nil {
			return written, s.opError("write", err)
		}
		if written += n; written == len(p) {
			return written, nil
		}
	}
}

// transfer makes a system call, as soon as it does not block.
func (s *socket) transfer(d *direction, call func(fd int, p []byte) (int, error), p []byte) (int, error) {
	s.open.RLock()
	defer s.open.RUnlock()
	for {
		if s.closed.Load() {
			return 0, net.ErrClosed
		}
		if d.left() <= 0 {
			return 0, os.ErrDeadlineExceeded
		}
		switch n, err := call(s.fd, p); {
		case err == nil:
			return n, nil
		case errors.Is(err, unix.EAGAIN):
			if err := d.wait(s.fd); err != nil {
				return 0, err
			}
		case !errors.Is(err, unix.EINTR):
			return 0, err
		}
	}
}

func (s *socket) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: s.remote.Network(), Source: s.local, Addr: s.remote, Err: err}
}

// Close implements net.Conn. It waits until the calls that it interrupts have let go of the descriptors.
func (s *socket) Close() error {
	if s.closed.Swap(true) {
		return s.opError("close", net.ErrClosed)
	}
	s.reading.notify()
	s.writing.notify()
	s.open.Lock()
	defer s.open.Unlock()
	return errors.Join(closeDescriptor(s.fd), s.reading.close(), s.writing.close())
}

// LocalAddr implements net.Conn.
func (s *socket) LocalAddr() net.Addr { return s.local }

// RemoteAddr implements net.Conn.
func (s *socket) RemoteAddr() net.Addr { return s.remote }

// SetDeadline implements net.Conn.
func (s *socket) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (s *socket) SetReadDeadline(t time.Time) error { return s.move(&s.reading, t) }

// SetWriteDeadline implements net.Conn.
func (s *socket) SetWriteDeadline(t time.Time) error { return s.move(&s.writing, t) }

func (s *socket) move(d *direction, t time.Time) error {
	s.open.RLock()
	defer s.open.RUnlock()
	if s.closed.Load() {
		return s.opError("set", net.ErrClosed)
	}
	d.move(t)
	return nil
}

// noDescriptor is one that is not open.
const noDescriptor = -1

func closeDescriptor(fd int) error {
	if fd == noDescriptor {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(fd))
}

// pause sleeps without the runtime, whose timers are as fine as a millisecond where it is idle.
func pause(d time.Duration) {
	t := unix.NsecToTimeval(d.Nanoseconds())
	_, _ = unix.Select(0, nil, nil, nil, &t) // a signal ends it early, which does no harm
}
