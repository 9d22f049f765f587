//go:build linux

package gvisor

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
)

// spawner starts processes from one thread that lives as long as it does. Two
// things need that: the kernel sends a parent-death signal when the thread that
// forked dies, not the process; and a thread can enter the cgroups of a sandbox,
// fork into them and leave again, without the rest of the process moving.
type spawner struct {
	start sync.Once
	stop  sync.Once
	jobs  chan func()
	quit  chan struct{}
	done  chan struct{}
}

var errSpawnerClosed = errors.New("the engine is closed")

func newSpawner() *spawner {
	return &spawner{jobs: make(chan func()), quit: make(chan struct{}), done: make(chan struct{})}
}

func (s *spawner) run() {
	// Never unlocked: the thread ends with the goroutine.
	runtime.LockOSThread()
	defer close(s.done)
	for {
		select {
		case job := <-s.jobs:
			job()
		case <-s.quit:
			return
		}
	}
}

// do runs f on the thread.
func (s *spawner) do(ctx context.Context, f func() error) error {
	s.start.Do(func() { go s.run() })
	result := make(chan error, 1)
	select {
	case s.jobs <- func() { result <- f() }:
		return <-result
	case <-s.quit:
		return errSpawnerClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *spawner) close() {
	s.stop.Do(func() { close(s.quit) })
	s.start.Do(func() { close(s.done) })
	<-s.done
}

// command is a process of the sandbox that is about to be started, with the
// descriptors it is given. Every file added is closed by close, started or not.
type command struct {
	exe   string
	args  []string
	files []*os.File
	sys   syscall.SysProcAttr
}

// add gives the process f under a number that is returned.
func (c *command) add(f *os.File) string {
	c.files = append(c.files, f)
	return strconv.Itoa(2 + len(c.files))
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
func (c *command) spawn(null *os.File) (*process, error) {
	fds := make([]uintptr, 0, 3+len(c.files))
	fds = append(fds, null.Fd(), null.Fd(), null.Fd())
	for _, f := range c.files {
		fds = append(fds, rawFD(f))
	}
	pidfd := -1
	c.sys.PidFD = &pidfd
	c.sys.Setsid = true
	pid, _, err := syscall.StartProcess(c.exe, c.args, &syscall.ProcAttr{Env: []string{}, Files: fds, Sys: &c.sys})
	runtime.KeepAlive(c.files)
	if err != nil {
		return nil, err
	}
	return newProcess(pid, pidfd)
}

// rawFD returns the descriptor without making it blocking, as File.Fd would.
func rawFD(f *os.File) uintptr {
	var n uintptr
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n = fd })
	}
	return n
}
