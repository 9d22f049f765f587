//go:build linux

package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// process is a process of the sandbox, ours or that of an earlier daemon. It is
// known by its pidfd, so nothing here can ever touch a process that took over
// the number.
type process struct {
	pid   int
	start string // field 22 of /proc/pid/stat: start time in clock ticks
	fd    *os.File
	done  chan struct{} // closed when the process is dead, reaped if it was our child, or abandoned
}

// newProcess takes over a pidfd and watches it until the process is dead.
func newProcess(pid, pidfd int) (*process, error) {
	if pidfd < 0 {
		var err error
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			return nil, fmt.Errorf("open pidfd of %d: %w", pid, err)
		}
	}
	if err := unix.SetNonblock(pidfd, true); err != nil {
		_ = unix.Close(pidfd)
		return nil, fmt.Errorf("set pidfd nonblocking: %w", err)
	}
	p := &process{pid: pid, fd: os.NewFile(uintptr(pidfd), "pidfd"), done: make(chan struct{})}
	p.start, _ = startTime(pid)
	go p.watch()
	return p, nil
}

// openProcess finds the process that had this pid and start time. It is
// os.ErrProcessDone when there is none any more.
func openProcess(pid int, start string) (*process, error) {
	if pid <= 0 || start == "" {
		return nil, os.ErrProcessDone
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
			return nil, os.ErrProcessDone
		}
		return nil, fmt.Errorf("open pidfd of %d: %w", pid, err)
	}
	// The pidfd holds the number, so what is read now is about its process.
	now, err := startTime(pid)
	if err != nil || now != start || isDead(fd) {
		_ = unix.Close(fd)
		return nil, os.ErrProcessDone
	}
	return newProcess(pid, fd)
}

// watch waits for the death of the process without holding a thread.
func (p *process) watch() {
	defer close(p.done)
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		if !isDead(int(fd)) {
			return false
		}
		// Reaps the zombie if it is our child; not ours is no error.
		_ = unix.Waitid(unix.P_PIDFD, int(fd), nil, unix.WEXITED|unix.WNOHANG, nil)
		return true
	})
}

// isDead reports whether the process of a pidfd has ended, reaped or not.
func isDead(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err != unix.EINTR {
			return n > 0
		}
	}
}

// kill sends SIGKILL. A process that is already dead is fine.
func (p *process) kill() {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
}

// wait returns when the process is dead.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *process) dead() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// close gives up the pidfd; only for a process that is dead.
func (p *process) close() { p.fd.Close() }

// abandon gives up the pidfd of a process that may not be dead yet, and waits
// for what watches it.
func (p *process) abandon() {
	p.fd.Close()
	<-p.done
}

func startTime(pid int) (string, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", err
	}
	// The command, in parentheses, may hold anything; fields are counted after it.
	i := bytes.LastIndexByte(b, ')')
	fields := bytes.Fields(b[i+1:])
	if i < 0 || len(fields) < 20 {
		return "", fmt.Errorf("read start time of %d: malformed", pid)
	}
	return string(fields[19]), nil
}
