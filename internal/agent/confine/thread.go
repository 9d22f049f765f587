//go:build linux && (amd64 || arm64)

package confine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Threads are the threads of an agent, by their first and last number; both 0 are none.
type Threads struct{ First, Last uint32 }

// ThreadsOf are the threads that a process has now.
func ThreadsOf(pid int) (Threads, error) {
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return Threads{}, fmt.Errorf("look for the agent's threads: %w", err)
	}
	var t Threads
	for _, e := range entries {
		n, err := strconv.ParseUint(e.Name(), 10, 32)
		if err != nil {
			return Threads{}, fmt.Errorf("look for the agent's threads: %w", err)
		}
		if t.Last = max(t.Last, uint32(n)); t.First == 0 {
			t.First = uint32(n)
		}
		t.First = min(t.First, uint32(n))
	}
	return t, nil
}

// Proc makes /proc read-only for all that is in the caller's mount namespace: root
// inside could change files of every process and thread there, the agent's among them.
// It needs CAP_SYS_ADMIN; an engine that gives the agent none has done it.
func Proc() error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	err := unix.MountSetattr(unix.AT_FDCWD, "/proc", unix.AT_SYMLINK_NOFOLLOW, &attr)
	if err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("make /proc read-only: %w", err)
	}
	return nil
}

// Thread puts the profile, and Landlock where the kernel has it, on the calling
// thread, irrevocably, and on all that is forked from it. The caller is locked to its
// thread and never unlocks it.
func Thread(agent Threads) error {
	if err := prepare(); err != nil {
		return err
	}
	_, err := install(agent, asking{})
	return err
}

// AskingThread is Thread for an agent that answers for calls, see Questions. With joins,
// threads for which it reports true may enter a user namespace. Where the kernel
// takes no such filter, or another one of the thread asks already, it is Thread, and the
// questions are nil.
func AskingThread(agent Threads, joins func(thread int) bool) (*Questions, error) {
	if err := prepare(); err != nil {
		return nil, err
	}
	listener, err := install(agent, asking{modes: true, joins: joins != nil})
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINVAL) {
		_, err = install(agent, asking{})
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	return &Questions{listener, joins}, nil
}

// prepare does what comes before a filter.
func prepare() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	return landlock()
}

// install puts the filter on the calling thread. The descriptor is where its questions
// come.
func install(agent Threads, asks asking) (int, error) {
	code, err := filter(agent, asks)
	if err != nil {
		return -1, err
	}
	var flags uintptr
	if asks.modes {
		flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
	}
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: unsafe.SliceData(code)}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(code)
	if errno != 0 {
		return -1, fmt.Errorf("install the filter of system calls: %w", errno)
	}
	return int(fd), nil
}

// What the domain handles: no process in it makes a device, signals or traces who is not
// in it, connects to a socket that was not made in it, or mounts anything. Moving files between directories has to be allowed again.
const (
	handledFS = unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_REFER
	scoped    = 1<<0 | 1<<1 // abstract sockets, signals
	// refers is the first version that knows about moving files, scopes the one that
	// knows scopes, and resolves the one (of Linux 7.1) that keeps those in the domain from
	// sockets with a path that were not made in it.
	refers   = 2
	scopes   = 6
	resolves = 9
)

// rulesetAttr is the kernel's landlock_ruleset_attr.
type rulesetAttr struct{ fs, net, scoped uint64 }

// landlock enters a domain. A kernel without Landlock, or with its first version, is
// no error: the profile holds alone.
func landlock() error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || version < refers {
		return nil
	}
	attr := rulesetAttr{fs: handledFS}
	if version >= scopes {
		attr.scoped = scoped
	}
	if version >= resolves {
		attr.fs |= unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
	}
	size := unsafe.Sizeof(attr)
	if version < scopes {
		size = 8
	}
	set, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return fmt.Errorf("make Landlock's rules: %w", errno)
	}
	defer unix.Close(int(set))
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make Landlock's rules: %w", err)
	}
	defer unix.Close(root)
	beneath := unix.LandlockPathBeneathAttr{Allowed_access: unix.LANDLOCK_ACCESS_FS_REFER, Parent_fd: int32(root)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, set, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&beneath)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("make Landlock's rules: %w", errno)
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, set, 0, 0); errno != 0 {
		return fmt.Errorf("enter Landlock's domain: %w", errno)
	}
	return nil
}
