//go:build linux && (amd64 || arm64)

package confine

import (
	"errors"
	"math"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Questions are calls of programs that wait for the agent's answer: those that would
// give a set-id bit to a file which is there.
type Questions struct {
	listener int
	// joins says which threads may enter a user namespace; nil allows no thread.
	joins func(thread int) bool
}

// ModeChange is such a call. All of it comes from the program.
type ModeChange struct {
	// Thread is the caller, as this process sees it.
	Thread int
	// File is the descriptor of the file; it is -1 where a path names it.
	File int
	// Dir is the descriptor that Path is relative to, or AT_FDCWD. Path is where the path is
	// in the memory of the program.
	Dir  int
	Path uint64
	// Flags are fchmodat2's.
	Flags uint32
	Mode  uint32

	id uint64
}

// The kernel's structures and requests, as they are on both architectures.
type (
	notification struct {
		id         uint64
		pid, flags uint32
		nr         int32
		arch       uint32
		pointer    uint64
		args       [6]uint64
	}
	answer struct {
		id    uint64
		value int64
		errno int32
		flags uint32
	}
)

const (
	notifContinue = 1

	notifReceive = 0xc050_2100
	notifSend    = 0xc018_2101
	notifValid   = 0x4008_2102
)

// Next waits for a question.
func (q *Questions) Next() (ModeChange, error) {
	for {
		var n notification
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(q.listener), notifReceive, uintptr(unsafe.Pointer(&n)))
		if errno == unix.EINTR || errno == unix.ENOENT { // the caller has ended
			continue
		}
		if errno != 0 {
			return ModeChange{}, errno
		}
		if c, ok := n.change(); ok {
			return c, nil
		}
		if n.nr == unix.SYS_SETNS && uint32(n.args[1]) == unix.CLONE_NEWUSER && q.joins != nil && q.joins(int(n.pid)) {
			// Its arguments are numbers, and the caller is what the agent has started to call
			// this: nothing of them can change.
			_ = q.send(answer{id: n.id, flags: notifContinue})
			continue
		}
		_ = q.send(answer{id: n.id, errno: -int32(unix.EPERM)})
	}
}

// change reads a call's arguments.
func (n notification) change() (ModeChange, bool) {
	at := slices.IndexFunc(allModes(), func(m modeCall) bool { return int32(m.nr) == n.nr && m.there })
	if at < 0 {
		return ModeChange{}, false
	}
	m := allModes()[at]
	c := ModeChange{Thread: int(n.pid), File: -1, Dir: unix.AT_FDCWD, Mode: uint32(n.args[m.mode]) & 0o7777, id: n.id}
	switch m.name {
	case "fchmod":
		// An invalid descriptor is one that no process has.
		if c.File = int(int32(n.args[0])); c.File < 0 {
			c.File = math.MaxInt32
		}
	case "chmod":
		c.Path = n.args[0]
	case "fchmodat2":
		c.Flags = uint32(n.args[3])
		fallthrough
	default:
		c.Dir, c.Path = int(int32(n.args[0])), n.args[1]
	}
	return c, true
}

// Waits reports whether the caller still waits: what was found of it by its number until
// then was its own.
func (q *Questions) Waits(c ModeChange) bool {
	id := c.id
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(q.listener), notifValid, uintptr(unsafe.Pointer(&id)))
	return errno == 0
}

// Answer has the call return; nil is success, and an error that is not an errno
// is EPERM. A caller that has gone is no error.
func (q *Questions) Answer(c ModeChange, err error) error {
	a := answer{id: c.id}
	if err != nil {
		a.errno = -int32(unix.EPERM)
		if errno, ok := errors.AsType[unix.Errno](err); ok {
			a.errno = -int32(errno)
		}
	}
	return q.send(a)
}

func (q *Questions) send(a answer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(q.listener), notifSend, uintptr(unsafe.Pointer(&a)))
	if errno != 0 && errno != unix.ENOENT {
		return errno
	}
	return nil
}

func allModes() []modeCall { return slices.Concat(modes[:], nativeModes[:]) }
