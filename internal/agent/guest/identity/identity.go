//go:build linux

package identity

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/guest/launcher"
)

const AgentID = agent.UID

// Identity is who the agent is, and what it gives its processes.
type Identity struct {
	// Privileged: the agent has capabilities to give and to take.
	Privileged bool
	// Only: the agent's user is the only one, and the kernel lets no process become another.
	Only bool
	// Shared: the kernel is the host's too.
	Shared bool
	// UserNS is the descriptor of the processes' user namespace; -1 is the
	// agent's own.
	UserNS int
}

// Caps are the capabilities of programs of uid 0.
func (id Identity) Caps() uint64 {
	if id.Shared {
		return launcher.SharedCaps
	}
	return launcher.OwnCaps
}

// Harden gives the agent its identity. It is called before anything is started
// and before another process can read a token.
func Harden(kernelGuards, single, shared bool) (Identity, error) {
	id := Identity{UserNS: -1, Only: kernelGuards && single, Shared: shared}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return id, fmt.Errorf("make agent undumpable: %w", err)
	}
	if uid := os.Geteuid(); uid != 0 && (uid != AgentID || kernelGuards) {
		if !kernelGuards {
			return id, fmt.Errorf("the agent runs as uid %d: only uid 0 can guard itself against its own processes", os.Geteuid())
		}
		return id, nil
	}
	id.Privileged = true
	if kernelGuards {
		return id, nil
	}
	if os.Geteuid() == 0 {
		if err := becomeAgent(); err != nil {
			return id, err
		}
	}
	fd, err := makeUserNS()
	if err != nil {
		return id, err
	}
	id.UserNS = fd
	return id, nil
}

// becomeAgent gives every thread agentID and all capabilities back, which the
// change of the uid takes from the effective set.
func becomeAgent() error {
	for _, step := range []struct {
		name string
		call func() error
	}{
		{"keep capabilities", func() error { return AllThreads(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0) }},
		{"drop groups", func() error { return AllThreads(unix.SYS_SETGROUPS, 0, 0, 0) }},
		{"set gid", func() error { return AllThreads(unix.SYS_SETRESGID, AgentID, AgentID, AgentID) }},
		{"set uid", func() error { return AllThreads(unix.SYS_SETRESUID, AgentID, AgentID, AgentID) }},
		{"raise capabilities", raiseAll},
		{"make agent undumpable", func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }},
	} {
		if err := step.call(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// AllThreads makes a system call on every thread of the agent. Arguments that are pointers stay where they are.
//
//go:uintptrescapes
func AllThreads(nr, a, b, c uintptr) error {
	_, _, e := syscall.AllThreadsSyscall(nr, a, b, c)
	if e == unix.ENOTSUP {
		return fmt.Errorf("the agent is built with cgo, with which a process cannot change all its threads: %w", e)
	}
	if e != 0 {
		return e
	}
	return nil
}

// capState is the argument of capget and capset.
type capState struct {
	hdr  unix.CapUserHeader
	data [2]unix.CapUserData
}

// permitted reads the calling thread's capabilities and makes the effective set
// equal to the permitted one, without applying it.
func permitted() (*capState, error) {
	s := &capState{hdr: unix.CapUserHeader{Version: launcher.CapVersion3}}
	if err := unix.Capget(&s.hdr, &s.data[0]); err != nil {
		return nil, err
	}
	for i := range s.data {
		s.data[i].Effective = s.data[i].Permitted
	}
	return s, nil
}

func raiseAll() error {
	s, err := permitted()
	if err != nil {
		return err
	}
	// Both arguments are used by each thread's call while s is alive.
	err = AllThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&s.hdr)), uintptr(unsafe.Pointer(&s.data)), 0)
	runtime.KeepAlive(s)
	return err
}

// raise makes the calling thread's permitted capabilities effective.
func raise() error {
	s, err := permitted()
	if err != nil {
		return err
	}
	return unix.Capset(&s.hdr, &s.data[0])
}

// makeUserNS makes the processes' user namespace, which has every id but the
// agent's, and returns a descriptor of it.
func makeUserNS() (int, error) {
	var gate [2]int
	if err := unix.Pipe2(gate[:], unix.O_CLOEXEC); err != nil {
		return -1, os.NewSyscallError("pipe2", err)
	}
	defer unix.Close(gate[0])
	pid, err := forkUserNS(gate[0], gate[1])
	if err != nil {
		unix.Close(gate[1])
		return -1, fmt.Errorf("make user namespace: %w", err)
	}
	defer func() {
		unix.Close(gate[1]) // the holder ends
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}()
	dir := "/proc/" + strconv.Itoa(pid)
	mapping := []byte("0 0 " + strconv.FormatUint(AgentID, 10) + "\n")
	for _, name := range []string{"/uid_map", "/gid_map"} {
		if err := writeFile(dir+name, mapping); err != nil {
			return -1, fmt.Errorf("map ids: %w", err)
		}
	}
	fd, err := unix.Open(dir+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open user namespace: %w", err)
	}
	return fd, nil
}

// forkUserNS forks a process into a new user namespace; it ends when gate's
// write end closes.
func forkUserNS(gateRead, gateWrite int) (int, error) {
	l, mem, err := launcher.NewMemory()
	if err != nil {
		return 0, err
	}
	*l = launcher.Launcher{Holder: true, Command: int32(gateRead), Outcome: int32(gateWrite)}
	return l.ForkWith(mem, unix.CLONE_NEWUSER)
}

// writeFile writes one of the kernel's control files with a single write.
func writeFile(path string, data []byte) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	if n, err := unix.Write(fd, bytes.Clone(data)); err != nil || n != len(data) {
		return fmt.Errorf("write %s: %d of %d bytes: %w", path, n, len(data), err)
	}
	return nil
}

// As runs fn on a thread that makes files as u, with the agent's capabilities.
// fn must not start goroutines that make files.
func (id Identity) As(u User, fn func() error) error {
	if !id.Privileged || (id.UserNS < 0 && u.UID == 0 && u.GID == 0) {
		return fn()
	}
	uid, gid := uint32(0), uint32(0)
	if id.UserNS >= 0 {
		uid, gid = AgentID, AgentID
	}
	runtime.LockOSThread()
	if err := setEffective(u.UID, u.GID); err != nil {
		if back := setEffective(uid, gid); back == nil {
			runtime.UnlockOSThread()
		}
		return fmt.Errorf("become uid %d: %w", u.UID, err)
	}
	err := fn()
	if back := setEffective(uid, gid); back != nil {
		// The thread stays locked: it ends with its goroutine.
		return fmt.Errorf("become the agent again: %w", back)
	}
	runtime.UnlockOSThread()
	return err
}

// With runs fn on a thread that has the rights of u's programs and no others: the
// kernel judges what fn does as it judges them. fn must not start goroutines that use
// files.
func (id Identity) With(u User, fn func() error) error {
	if !id.Privileged || id.Only && u.Root() {
		return fn()
	}
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	runtime.LockOSThread()
	groups, err := threadGroups()
	if err == nil {
		if err = id.weaken(u); err == nil {
			err = fn()
		} else {
			err = fmt.Errorf("become uid %d: %w", u.UID, err)
		}
		back := setEffective(uid, gid)
		if back == nil && !id.Only {
			back = setThreadGroups(groups)
		}
		if back != nil {
			// The thread stays locked: it ends with its goroutine.
			return errors.Join(err, fmt.Errorf("become the agent again: %w", back))
		}
	}
	runtime.UnlockOSThread()
	return err
}

// weaken gives the calling thread the groups, the ids and the capabilities of u's programs.
func (id Identity) weaken(u User) error {
	if !id.Only {
		if err := setThreadGroups(u.Groups); err != nil {
			return err
		}
	}
	if err := setEffective(u.UID, u.GID); err != nil {
		return err
	}
	kept := uint64(0)
	if u.Root() {
		kept = id.Caps()
	}
	s, err := permitted()
	if err != nil {
		return err
	}
	for i := range s.data {
		s.data[i].Effective &= uint32(kept >> (32 * uint(i)))
	}
	return unix.Capset(&s.hdr, &s.data[0])
}

// threadGroups are the calling thread's supplementary groups.
func threadGroups() ([]uint32, error) {
	groups := make([]uint32, maxKernelGroups)
	n, _, e := unix.RawSyscall(unix.SYS_GETGROUPS, maxKernelGroups, uintptr(unsafe.Pointer(&groups[0])), 0)
	if e != 0 {
		return nil, os.NewSyscallError("getgroups", e)
	}
	return groups[:n], nil
}

// maxKernelGroups is Linux's NGROUPS_MAX.
const maxKernelGroups = 1 << 16

// setThreadGroups changes the calling thread only.
func setThreadGroups(groups []uint32) error {
	_, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0)
	runtime.KeepAlive(groups)
	if e != 0 {
		return os.NewSyscallError("setgroups", e)
	}
	return nil
}

// setEffective changes the calling thread only, which the wrappers of package
// syscall would not.
func setEffective(uid, gid uint32) error {
	const keep = ^uintptr(0)
	// Leaving uid 0 would take the permitted capabilities along.
	if _, _, e := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0); e != 0 {
		return e
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, keep, uintptr(gid), keep); e != 0 {
		return e
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); e != 0 {
		return e
	}
	return raise()
}
