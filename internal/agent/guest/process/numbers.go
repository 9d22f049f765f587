//go:build linux

package process

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/launcher"
)

// MaxNumbers bounds the namespaces that are kept. One that is given up lives on with the
// programs in it.
const MaxNumbers = 16

// numbers are user namespaces in which the one id of a sandbox has another number. Programs
// of one user share theirs: the kernel lets none trace another one across namespaces.
type numbers struct {
	table *table

	mu   sync.Mutex
	list []number // the last one used is the last
}

type number struct {
	identity.ShownIDs
	fd int
}

func newNumbers(t *table) *numbers { return &numbers{table: t} }

// with runs fn with a descriptor of the namespace in which the sandbox's one id is ids.
func (n *numbers) with(ids identity.ShownIDs, fn func(userNS int) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	at := slices.IndexFunc(n.list, func(x number) bool { return x.ShownIDs == ids })
	if at < 0 {
		fd, err := n.make(ids)
		if err != nil {
			return noNumber(identity.User{Shown: &ids}, err)
		}
		if len(n.list) == MaxNumbers {
			_ = unix.Close(n.list[0].fd)
			n.list = slices.Delete(n.list, 0, 1)
		}
		n.list = append(n.list, number{ids, fd})
	} else {
		used := n.list[at]
		n.list = append(slices.Delete(n.list, at, at+1), used)
	}
	return fn(n.list[len(n.list)-1].fd)
}

// noNumber says that a kernel does not show the sandbox's one id under another number.
func noNumber(u identity.User, err error) error {
	return api.Errorf(api.CodeUnsupported, "user %d: this sandbox has one id, and its kernel does not give a program another number for it: %w", u.IDs().UID, err).
		WithHint("use root, which has no rights on the host, or a daemon that runs as root")
}

// make makes a namespace. Its first process opens it, for the agent has no right to look for it
// there, and lives until the ids are mapped: the kernel gives the files of one that has ended to
// root of the host.
func (n *numbers) make(ids identity.ShownIDs) (int, error) {
	proc := unix.AT_FDCWD
	prefix := "/proc/"
	if c := n.table.confined; c != nil {
		if !c.joining.asked {
			return -1, errors.New("another filter of system calls asks for the agent's programs already")
		}
		// What programs see of /proc is read-only.
		if proc, prefix = c.oom.proc, ""; proc < 0 {
			return -1, errors.New("there is no /proc that the agent can write to")
		}
	}
	l, mem, err := launcher.NewMemory()
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Munmap(mem) }()
	var said [2]int
	if err := unix.Pipe2(said[:], unix.O_CLOEXEC); err != nil {
		return -1, os.NewSyscallError("pipe2", err)
	}
	defer unix.Close(said[0])
	defer unix.Close(said[1])
	name := []byte("/proc/self/ns/user\x00")
	defer runtime.KeepAlive(name)
	*l = launcher.Launcher{Opens: &name[0], UserNS: -1, Outcome: int32(said[1])}
	// The reaper must not see its end.
	n.table.mu.Lock()
	defer n.table.mu.Unlock()
	pid, err := l.ForkWith(mem, unix.CLONE_NEWUSER|unix.CLONE_FILES)
	if err != nil {
		return -1, fmt.Errorf("make user namespace: %w", err)
	}
	defer func() {
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = unix.Wait4(pid, nil, unix.WALL, nil)
	}()
	if err := awaitOpen(said[0], pid); err != nil {
		return -1, err
	}
	fd := int(l.UserNS)
	if fd < 0 {
		return -1, fmt.Errorf("open user namespace: %w", l.Errno)
	}
	for _, m := range []struct {
		file string
		id   uint32
	}{{"gid_map", ids.GID}, {"uid_map", ids.UID}} {
		line := strconv.FormatUint(uint64(m.id), 10) + " 0 1\n"
		if err := writeAt(proc, prefix+strconv.Itoa(pid)+"/"+m.file, line); err != nil {
			_ = unix.Close(fd)
			return -1, fmt.Errorf("map ids: %w", err)
		}
	}
	return fd, nil
}

// awaitOpen waits until a process has said something, or has ended. A program may stop or
// kill it.
func awaitOpen(said, pid int) error {
	for {
		fds := []unix.PollFd{{Fd: int32(said), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(nudge/time.Millisecond))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return os.NewSyscallError("poll", err)
		case n > 0:
			return nil
		default:
			var info unix.Siginfo
			err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG|unix.WALL, nil)
			if err != nil || info.Signo != 0 {
				return errKilled
			}
			_ = unix.Kill(pid, unix.SIGCONT)
		}
	}
}

// joining are launchers that enter a user namespace. Programs may enter none.
type joining struct {
	// asked: the agent is asked whether one may.
	asked bool

	mu   sync.Mutex
	list []*parked
}

func (j *joining) add(l *parked) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.list = append(j.list, l)
}

func (j *joining) remove(l *parked) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.list = slices.DeleteFunc(j.list, func(x *parked) bool { return x == l })
}

// has reports whether a process is a launcher that runs the agent's code still. It has one
// thread, and writes down that it executes a program before it does.
func (j *joining) has(pid int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.ContainsFunc(j.list, func(l *parked) bool {
		return l.pid == pid && launcher.Stage(atomic.LoadUint32((*uint32)(&l.Stage))) == launcher.StageParked
	})
}
