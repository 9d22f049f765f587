//go:build linux

package pidfd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/poll"
)

// ID names a process uniquely: its number and when it was started, field 22 of
// /proc/pid/stat in clock ticks. It is so within one boot of the machine.
type ID struct {
	PID   int    `json:"pid"`
	Start string `json:"start"`
}

// Process is a process of a sandbox, started by this daemon or an earlier one. It is known by
// its pidfd, so nothing here can ever touch a process that took over the number. All
// methods except Close and Abandon are safe for concurrent use at any time.
type Process struct {
	// ID never changes.
	ID   ID
	fd   *os.File
	done chan struct{}
	end  string // known when done is closed
}

// New takes over a pidfd, or opens one when it is negative, and watches the process
// until it is dead. A child of this process is reaped then, only here.
func New(pid, pidfd int) (*Process, error) {
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
	p := &Process{ID: ID{PID: pid}, fd: os.NewFile(uintptr(pidfd), "pidfd"), done: make(chan struct{})}
	p.ID.Start, _ = StartTime(pid)
	go p.watch()
	return p, nil
}

// Find finds the process of an ID. It is os.ErrProcessDone when the process has ended.
func Find(id ID) (*Process, error) {
	if id.PID <= 0 || id.Start == "" {
		return nil, os.ErrProcessDone
	}
	fd, err := unix.PidfdOpen(id.PID, 0)
	if err != nil {
		if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
			return nil, os.ErrProcessDone
		}
		return nil, fmt.Errorf("open pidfd of %d: %w", id.PID, err)
	}
	// The pidfd holds the number, so what is read now is about its process.
	now, err := StartTime(id.PID)
	if err != nil || now != id.Start || isDead(fd) {
		_ = unix.Close(fd)
		return nil, os.ErrProcessDone
	}
	return New(id.PID, fd)
}

// watch waits for the death of the process without holding a thread.
func (p *Process) watch() {
	defer close(p.done)
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		if !isDead(int(fd)) {
			return false
		}
		p.end = p.reap(int(fd))
		return true
	})
}

// reap reaps the zombie if it is our child, and says how it ended; not ours is no
// error.
func (p *Process) reap(pidfd int) string {
	// As long as the zombie of the child exists, no other process has its number.
	if err := unix.Waitid(unix.P_PIDFD, pidfd, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil {
		return ""
	}
	var status unix.WaitStatus
	pid, err := unix.Wait4(p.ID.PID, &status, unix.WNOHANG, nil)
	switch {
	case err != nil || pid != p.ID.PID:
		return ""
	case status.Signaled():
		return "was killed by signal " + cmp.Or(api.SignalName(int(status.Signal())), strconv.Itoa(int(status.Signal())))
	}
	return "ended with exit code " + strconv.Itoa(status.ExitStatus())
}

// isDead reports whether the process of a pidfd has ended, reaped or not.
func isDead(pidfd int) bool {
	events, err := poll.Events(pidfd, unix.POLLIN, 0)
	return err == nil && events != 0
}

// Done is closed when the process is dead, reaped if it was our child, or abandoned.
func (p *Process) Done() <-chan struct{} { return p.done }

// How is a clause without a subject that says how it ended, such as "was killed by
// signal KILL". It is for after Done, and empty of a process that was not our child.
func (p *Process) How() string {
	<-p.done
	return p.end
}

// Kill sends SIGKILL. A process that is already dead is fine.
func (p *Process) Kill() {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
}

// Wait returns when the process is dead.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Dead reports whether the process is known to be dead.
func (p *Process) Dead() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Usable reports whether the process is alive and not about to end.
func (p *Process) Usable() bool { return !p.Dead() && !Dying(p.ID.PID) }

// Stopped reports whether a signal or a debugger has stopped the process. One that is dead
// is not stopped.
func (p *Process) Stopped() bool {
	fields, err := stat(p.ID.PID)
	if err != nil || p.Dead() || string(fields[19]) != p.ID.Start {
		return false
	}
	return string(fields[0]) == "T" || string(fields[0]) == "t"
}

// Descriptor is the number of the pidfd, for a call by who knows that it is not closed
// meanwhile.
func (p *Process) Descriptor() int { return int(RawFD(p.fd)) }

// Close gives up the pidfd; only for a process that is dead.
func (p *Process) Close() { p.fd.Close() }

// Abandon gives up the pidfd of a process that may not be dead yet, and waits for what
// watches it.
func (p *Process) Abandon() {
	p.fd.Close()
	<-p.done
}

// StartTime is when the process with a number was started, as in ID.
func StartTime(pid int) (string, error) {
	fields, err := stat(pid)
	if err != nil {
		return "", err
	}
	return string(fields[19]), nil
}

// stat is the fields of /proc/pid/stat from the state on, which is the third; there are
// at least 20.
func stat(pid int) ([][]byte, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, err
	}
	// The command, in parentheses, may hold anything; fields are counted after it.
	i := bytes.LastIndexByte(b, ')')
	fields := bytes.Fields(b[i+1:])
	if i < 0 || len(fields) < 20 {
		return nil, fmt.Errorf("read the state of process %d: malformed", pid)
	}
	return fields, nil
}

// Dying reports whether a process that is not dead yet will soon be: it has given up
// its memory, and with it the command line.
func Dying(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err != nil || len(b) == 0
}

// Boot names the machine's boot; empty when it cannot be told. Process numbers and
// start times begin anew with each.
func Boot() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// Outlived reports whether the machine has been booted since it named that boot.
func Outlived(boot string) bool {
	now := Boot()
	return boot != "" && now != "" && boot != now
}
