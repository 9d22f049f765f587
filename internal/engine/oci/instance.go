//go:build linux

package oci

import (
	"context"
	"net"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// instance is one sandbox.
type instance struct {
	lifecycle.Instance
	e   *Engine
	rec record
	// init is the agent, the first process: all others die with it.
	init    *pidfd.Process
	watcher *watcher // nil: it may outlive this process, or this process has not made it
	closed  bool     // guarded by WhileIdle
}

var (
	_ engine.Instance = (*instance)(nil)
	_ engine.Statter  = (*instance)(nil)
	_ engine.Mortal   = (*instance)(nil)

	_ engine.FileHolder = (*instance)(nil)
	_ engine.Stoppable  = (*instance)(nil)
	_ engine.Pauser     = (*instance)(nil)
)

func newInstance(e *Engine, rec record, state []byte, p *pidfd.Process, g *cgroup.Group) *instance {
	i := &instance{e: e, rec: rec, init: p}
	i.Init(rec.ID, state, g, e.log)
	go func() {
		<-p.Done()
		i.Bury(lifecycle.AgentEnding(p))
	}()
	return i
}

// Stopped implements engine.Stoppable.
func (i *instance) Stopped() []string {
	if i.init.Stopped() {
		return []string{"agent"}
	}
	return nil
}

// Done implements engine.Instance.
func (i *instance) Done() <-chan struct{} { return i.init.Done() }

// Dial implements engine.Instance.
func (i *instance) Dial(context.Context) (net.Conn, error) {
	if err := i.CheckDial(i.init.Dead(), i.Group.Frozen()); err != nil {
		return nil, err
	}
	return lifecycle.DialAgent(i.rec.ID, i.rec.Dir, i.init.Dead)
}

// Close implements engine.Instance.
func (i *instance) Close(ctx context.Context) error {
	i.Expect(true)
	i.init.Kill()
	return i.WhileIdle(func() error { return i.close(ctx) })
}

func (i *instance) close(ctx context.Context) error {
	if i.closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lifecycle.KillTimeout)
	defer cancel()
	i.Group.Release() // of version 1: what is frozen there does not die
	if err := i.init.Wait(ctx); err != nil {
		return i.CloseError(api.ResourceProcesses, "wait for the agent", err)
	}
	<-i.Buried()
	i.e.forget(ctx, i.rec)
	if err := i.e.removeGroup(ctx, i.rec, i.Group); err != nil {
		return i.CloseError(api.ResourceCgroup, "remove its cgroup", err)
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
	<-i.Buried()
}

// Pause implements engine.Pauser by the freezer of version 2, which the kernel keeps:
// no process has to remember it, and what is frozen can be killed.
func (i *instance) Pause(ctx context.Context) error {
	return i.Drive(ctx, "pause", i.init.Dead, i.Group.Freeze, i.init.Done())
}

// Resume implements engine.Pauser.
func (i *instance) Resume(ctx context.Context) error {
	return i.Drive(ctx, "resume", i.init.Dead, i.Group.Thaw, i.init.Done())
}

// FileHolders implements engine.FileHolder: its files are mounted for its own processes.
func (i *instance) FileHolders(context.Context) ([]int, error) {
	return pidfd.Tree(i.init.ID.PID), nil
}
