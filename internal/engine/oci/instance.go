//go:build linux

package oci

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// instance is one sandbox.
type instance struct {
	e     *Engine
	rec   record
	state []byte
	// init is the agent, the first process: all others die with it.
	init    *pidfd.Process
	group   *cgroup.Group
	watcher *watcher // nil: it may outlive this process, or this process has not made it

	driving sync.Mutex // held by Pause, Resume and Close
	closed  bool
	asked   atomic.Bool   // Close was called: the death is no surprise
	buried  chan struct{} // closed when the end was seen
	last    engine.Ending // set before buried is closed
}

var (
	_ engine.Instance = (*instance)(nil)
	_ engine.Statter  = (*instance)(nil)
	_ engine.Mortal   = (*instance)(nil)

	_ engine.FileHolder = (*instance)(nil)
	_ engine.Stoppable  = (*instance)(nil)
	_ engine.Pauser     = (*instance)(nil)
)

func newInstance(e *Engine, rec record, p *pidfd.Process, g *cgroup.Group) *instance {
	i := &instance{e: e, rec: rec, state: lifecycle.Encode(rec), init: p, group: g, buried: make(chan struct{})}
	go i.watch()
	return i
}

// Stopped implements engine.Stoppable.
func (i *instance) Stopped() []string {
	if i.init.Stopped() {
		return []string{"agent"}
	}
	return nil
}

// watch reports a death that no caller requested.
func (i *instance) watch() {
	defer close(i.buried)
	<-i.init.Done()
	if i.init.How() != "" {
		i.last.How = "its agent " + i.init.How()
	}
	if !i.asked.Load() {
		i.e.log.Warn("sandbox died", "sandbox", i.rec.ID, "how", i.last.How)
	}
}

// Ending implements engine.Mortal. The daemon does not see how a process ends that is
// not its child.
func (i *instance) Ending() engine.Ending {
	<-i.buried // follows the death at once
	return i.last
}

// State implements engine.Instance.
func (i *instance) State() []byte { return i.state }

// Done implements engine.Instance.
func (i *instance) Done() <-chan struct{} { return i.init.Done() }

// Dial implements engine.Instance.
func (i *instance) Dial(context.Context) (net.Conn, error) {
	if i.init.Dead() {
		return nil, api.Errorf(api.CodeSandboxLost, "dial sandbox %s: it is dead", i.rec.ID)
	}
	if i.group.Frozen() {
		return nil, api.Errorf(api.CodeState, "dial sandbox %s: it is paused", i.rec.ID).WithHint("resume it")
	}
	conn, err := dial(i.rec.Dir)
	if err != nil {
		if i.init.Dead() {
			return nil, api.Errorf(api.CodeSandboxLost, "dial sandbox %s: it died", i.rec.ID).WithCause(err)
		}
		e := api.Errorf(api.CodeUnavailable, "dial sandbox %s: the agent does not listen", i.rec.ID).WithCause(err)
		e.Retryable = true
		return nil, e
	}
	return conn, nil
}

// dial opens a stream to the agent's socket.
func dial(dir string) (net.Conn, error) {
	fd, err := pidfd.Socket(filepath.Join(dir, agentSocket), unix.Connect)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), agentSocket)
	defer f.Close()
	return net.FileConn(f)
}

// Close implements engine.Instance.
func (i *instance) Close(ctx context.Context) error {
	i.asked.Store(true)
	i.init.Kill()
	i.driving.Lock()
	defer i.driving.Unlock()
	if i.closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	i.group.Release() // of version 1: what is frozen there does not die
	if err := i.init.Wait(ctx); err != nil {
		return i.closeError("wait for the agent", err)
	}
	<-i.buried
	i.e.forget(ctx, i.rec)
	if err := i.e.removeGroup(ctx, i.rec, i.group); err != nil {
		return i.closeError("remove its cgroup", err)
	}
	removeFiles(i.rec.Dir)
	i.e.records.Remove(i.rec)
	i.e.ids.Release(i.rec.IDs)
	i.letGo()
	i.closed = true
	return nil
}

// letGo gives up what is held of a sandbox that is dead.
func (i *instance) letGo() {
	if i.watcher != nil {
		i.watcher.release()
	}
	i.init.Abandon()
	<-i.buried
}

func (i *instance) closeError(what string, err error) error {
	e := api.Errorf(api.CodeInternal, "close sandbox %s: %s: %w", i.rec.ID, what, err)
	e.Retryable = true
	return e
}

// Stat implements engine.Statter.
func (i *instance) Stat(context.Context) (engine.Stat, error) {
	s, err := i.group.Stat()
	if err != nil {
		return engine.Stat{}, api.Errorf(api.CodeUnsupported, "stat sandbox %s: %w", i.rec.ID, err)
	}
	return s, nil
}

// Pause implements engine.Pauser by the freezer of version 2, which the kernel keeps:
// no process has to remember it, and what is frozen can be killed.
func (i *instance) Pause(ctx context.Context) error { return i.drive(ctx, "pause", i.group.Freeze) }

// Resume implements engine.Pauser.
func (i *instance) Resume(ctx context.Context) error { return i.drive(ctx, "resume", i.group.Thaw) }

// drive does one of the two at a time. It ends when the instance does.
func (i *instance) drive(ctx context.Context, what string, do func(context.Context) error) error {
	i.driving.Lock()
	defer i.driving.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-i.init.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	defer func() { cancel(); <-ended }()
	if i.init.Dead() || i.asked.Load() {
		return api.Errorf(api.CodeSandboxLost, "%s sandbox %s: it is dead", what, i.rec.ID)
	}
	err := do(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cgroup.ErrNoFreezer):
		return api.Errorf(api.CodeUnsupported, "%s sandbox %s: this machine has no cgroup hierarchy of version 2 that the daemon can use", what, i.rec.ID).
			WithHint("mount cgroup2, or use engine gvisor")
	case i.init.Dead() || i.asked.Load():
		return api.Errorf(api.CodeSandboxLost, "%s sandbox %s: it died", what, i.rec.ID).WithCause(err)
	case errors.Is(err, context.Canceled):
		return api.Errorf(api.CodeCanceled, "%s sandbox %s: canceled", what, i.rec.ID).WithCause(err)
	case errors.Is(err, context.DeadlineExceeded):
		e := api.Errorf(api.CodeTimeout, "%s sandbox %s: not done in time", what, i.rec.ID).WithCause(err)
		e.Retryable = true
		return e
	}
	return api.Errorf(api.CodeInternal, "%s sandbox %s: it cannot be done", what, i.rec.ID).
		WithHint("the daemon's log has the details").WithCause(err)
}

// FileHolders implements engine.FileHolder: its files are mounted for its own processes.
func (i *instance) FileHolders(context.Context) ([]int, error) {
	return pidfd.Tree(i.init.ID.PID), nil
}
