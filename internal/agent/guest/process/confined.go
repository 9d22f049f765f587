//go:build linux

package process

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent/confine"
	"github.com/cloche-dev/cloche/internal/agent/guest/launcher"
)

// confined is the one thread from which launchers are forked on a kernel that the
// sandbox shares with the host: what it may not do, no program may, and the agent
// need not put that on each.
type confined struct {
	jobs chan confinedJob
	oom  oomScores
	// joining are the launchers that may enter a user namespace.
	joining joining
}

// confinedJob is a fork, or what make does.
type confinedJob struct {
	l    *launcher.Launcher
	mem  []byte
	make func() (int, error)
	done chan<- forked
}

// forked has the number of a process, or the descriptor that was made.
type forked struct {
	pid int
	err error
}

// confine starts the thread. It lives as long as the agent, which is the sandbox's
// first process.
// alive says whether a process is a child that has not been reaped. Only where joins is set
// a program may be shown another number than its own.
func confineThread(joins bool, alive func(pid int) bool) (*confined, error) {
	c := &confined{jobs: make(chan confinedJob), oom: openOOMScores()}
	began := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		err := punctual()
		if err == nil {
			err = confine.Proc()
		}
		var agent confine.Threads
		if err == nil {
			agent, err = confine.ThreadsOf(os.Getpid())
		}
		var asked *confine.Questions
		if err == nil {
			var may func(int) bool
			if joins {
				may = func(thread int) bool { return alive(thread) && c.joining.has(thread) }
			}
			asked, err = confine.AskingThread(agent, may)
		}
		c.joining.asked = asked != nil
		if asked != nil {
			go answerModes(asked)
		}
		began <- err
		if err != nil {
			return
		}
		for j := range c.jobs {
			if j.make == nil {
				j.make = func() (int, error) { return j.l.ForkConfined(j.mem) }
			}
			n, err := j.make()
			j.done <- forked{n, err}
		}
	}()
	return c, <-began
}

// timerSlack is what every process of the kernel begins with.
const timerSlack = 50 * time.Microsecond

// punctual gives what this thread forks the timers that a program expects: the engine
// may have let the agent's be later.
func punctual() error {
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0); err != nil {
		return fmt.Errorf("set timer slack: %w", err)
	}
	return nil
}

func (c *confined) fork(l *launcher.Launcher, mem []byte) (int, error) {
	done := make(chan forked)
	c.jobs <- confinedJob{l: l, mem: mem, done: done}
	f := <-done
	return f.pid, f.err
}

// socket makes a unix socket that programs may connect to when it has a path: where
// Landlock keeps them from those made outside of their domain, it has to be made inside.
// Without a thread it makes any.
func (c *confined) socket(kind int) (int, error) {
	open := func() (int, error) { return unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0) }
	if c == nil {
		return open()
	}
	done := make(chan forked)
	c.jobs <- confinedJob{make: open, done: done}
	f := <-done
	return f.pid, f.err
}
