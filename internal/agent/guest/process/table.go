//go:build linux

package process

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// table knows the agent's children. One goroutine reaps them, and the orphans
// that the kernel gives to the agent, so that no wait is stolen and no pid is
// signalled after it has been given to another process.
type table struct {
	mu       sync.Mutex
	children map[int]*child
	// more wakes the reaper when there are children again.
	more *sync.Cond
	// idle is closed when stopping and no child is left.
	idle     chan struct{}
	stopping bool
	// orphaned is called, without mu, after an orphan was reaped.
	orphaned func()
	// confined forks on a kernel that is the host's; nil is any thread.
	confined *confined
}

// child is one process that the agent has forked.
type child struct {
	pid int
	// exited is closed when status is there.
	exited chan struct{}
	status unix.WaitStatus
}

func newTable() *table {
	t := &table{children: map[int]*child{}, idle: make(chan struct{}), orphaned: func() {}}
	t.more = sync.NewCond(&t.mu)
	return t
}

// fork forks l's process and enters it before the reaper can see its end.
func (t *table) fork(l *parked) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopping {
		return errStopping
	}
	fork := l.Launcher.Fork
	if t.confined != nil {
		fork = func(mem []byte) (int, error) { return t.confined.fork(l.Launcher, mem) }
	}
	pid, err := fork(l.mem)
	if err != nil {
		return err
	}
	l.pid, l.confined = pid, t.confined
	t.children[pid] = &child{pid: pid, exited: make(chan struct{})}
	t.more.Signal()
	return nil
}

// child returns the child of that pid, nil when it has been reaped.
func (t *table) child(pid int) *child {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.children[pid]
}

// signal signals c, or its process group, unless it has been reaped.
func (t *table) signal(c *child, sig unix.Signal, wholeGroup bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.children[c.pid] != c {
		return unix.ESRCH
	}
	if wholeGroup {
		return unix.Kill(-c.pid, sig)
	}
	return unix.Kill(c.pid, sig)
}

// stop makes the reaper end, and close idle, once no child is left: then no
// process of the sandbox is, because each descends from the agent.
func (t *table) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopping = true
	t.more.Signal()
}

// reap runs until stop.
func (t *table) reap() {
	for {
		if err := waitAny(); err == nil {
			t.reapSome()
		} else if errors.Is(err, unix.ECHILD) && !t.sleep() {
			return
		}
	}
}

// sleep waits for children; false says that there will be none.
func (t *table) sleep() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.children) == 0 {
		if t.stopping {
			close(t.idle)
			return false
		}
		t.more.Wait()
	}
	return true
}

// reapSome reaps what can be reaped, up to a child of the agent's. Orphans that
// end faster than they are reaped must not hide the children among them: after
// each batch every child is asked for.
func (t *table) reapSome() {
	const batch = 64
	var ended []*child
	orphans := 0
	t.mu.Lock()
	for len(ended) == 0 && orphans < batch {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WALL, nil)
		if err != nil || pid <= 0 {
			break
		}
		if c := t.endLocked(pid, status); c != nil {
			ended = append(ended, c)
		} else {
			orphans++
		}
	}
	if orphans == batch {
		for pid := range t.children {
			var status unix.WaitStatus
			if got, err := unix.Wait4(pid, &status, unix.WNOHANG|unix.WALL, nil); err == nil && got == pid {
				ended = append(ended, t.endLocked(pid, status))
			}
		}
	}
	t.mu.Unlock()
	for _, c := range ended {
		close(c.exited)
	}
	if orphans > 0 {
		t.orphaned()
	}
}

// endLocked takes the child of that pid out, nil without one.
func (t *table) endLocked(pid int, status unix.WaitStatus) *child {
	c := t.children[pid]
	if c != nil {
		delete(t.children, pid)
		c.status = status
	}
	return c
}

// isInit says whether the agent is its pid namespace's first process.
func isInit() bool { return os.Getpid() == 1 }
