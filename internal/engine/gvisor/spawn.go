//go:build linux

package gvisor

import (
	"cmp"
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/cloche-dev/cloche/internal/engine/gvisor/early"

	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// command is a process of the sandbox that is about to be started, with the
// descriptors it is given. Every file added is closed by close, started or not.
type command struct {
	exe    *os.File // not closed here
	args   []string
	files  []*os.File
	first  int      // the number of the first of them; 0: the first that is free
	stderr *os.File // not closed here; nil: as the other standard streams
	table  int      // how many descriptors the process is going to have at most, if not 0
	sys    syscall.SysProcAttr
}

// add gives the process f under a number that is returned.
func (c *command) add(f *os.File) string {
	c.files = append(c.files, f)
	return strconv.Itoa(cmp.Or(c.first, early.Executable+1) + len(c.files) - 1)
}

// flag gives the process f and names its number by a flag.
func (c *command) flag(name string, f *os.File) {
	c.args = append(c.args, "--"+name+"="+c.add(f))
}

func (c *command) close() {
	for _, f := range c.files {
		f.Close()
	}
	c.files = nil
}

// spawn starts the process with standard streams on null and an empty
// environment. It must be called on the spawner's thread.
func (c *command) spawn(null *os.File) (*pidfd.Process, error) {
	fds := make([]uintptr, 0, early.Executable+1+len(c.files))
	fds = append(fds, null.Fd(), null.Fd(), pidfd.RawFD(cmp.Or(c.stderr, null)), pidfd.RawFD(c.exe))
	for _, f := range c.files {
		fds = append(fds, pidfd.RawFD(f))
	}
	last := len(fds) - 1
	if c.table > 0 {
		// One at the end, which the first step closes: what has been made large
		// enough for it stays so.
		for len(fds) < c.table-1 {
			fds = append(fds, ^uintptr(0))
		}
		fds = append(fds, null.Fd())
	}
	pfd := -1
	c.sys.PidFD = &pfd
	c.sys.Setsid = true
	args := c.args
	if args[0] == early.FirstSentry || args[0] == early.FirstGofer {
		// The first step of a role closes whatever else it has inherited.
		args = slices.Insert(slices.Clone(args), 1, strconv.Itoa(last))
	}
	pid, err := start(args, &syscall.ProcAttr{Env: []string{}, Files: fds, Sys: &c.sys})
	runtime.KeepAlive(c)
	if err != nil {
		return nil, err
	}
	return pidfd.New(pid, pfd)
}

// A start is tried again after busyWait, at most busyTries times, while the kernel says that the executable is open for writing.
const (
	busyTries = 200
	busyWait  = 5 * time.Millisecond
)

// start starts the executable among the files. When it has just been unpacked, a child that another thread has forked meanwhile
// has it open for writing until that child executes its own program, and Linux executes no such file.
func start(args []string, attr *syscall.ProcAttr) (pid int, err error) {
	for range busyTries {
		pid, _, err = syscall.StartProcess("/proc/self/fd/"+strconv.Itoa(early.Executable), args, attr)
		if !errors.Is(err, syscall.ETXTBSY) {
			break
		}
		<-time.After(busyWait)
	}
	return pid, err
}
