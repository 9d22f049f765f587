//go:build linux

package native

import (
	"context"
	"net"
	"time"

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
	init *pidfd.Process
	// above is the program that isolates it and ends with it; may be nil.
	above  *pidfd.Process
	closed bool // guarded by WhileIdle
}

var (
	_ engine.Instance = (*instance)(nil)
	_ engine.Statter  = (*instance)(nil)
	_ engine.Mortal   = (*instance)(nil)

	_ engine.FileHolder = (*instance)(nil)
	_ engine.Stoppable  = (*instance)(nil)
	_ engine.Pauser     = (*instance)(nil)
)

func newInstance(e *Engine, rec record, state []byte, p, above *pidfd.Process, g *cgroup.Group) *instance {
	i := &instance{e: e, rec: rec, init: p, above: above}
	i.Init(rec.ID, state, g, e.log)
	go i.watch()
	return i
}

// watch waits for the end.
func (i *instance) watch() {
	if i.above != nil {
		i.Bury(i.watchBoth())
		return
	}
	<-i.init.Done()
	i.Bury(lifecycle.AgentEnding(i.init))
}

// watchBoth sees that neither of the two outlives the other.
func (i *instance) watchBoth() (last engine.Ending) {
	select {
	case <-i.init.Done():
		late := time.NewTimer(childTimeout)
		defer late.Stop()
		select {
		case <-i.above.Done():
		case <-late.C:
			i.above.Kill()
		}
	case <-i.above.Done():
		// It may have kept itself from being told.
		i.init.Kill()
	}
	<-i.init.Done()
	<-i.above.Done()
	if how := jailEnd(i.above.How()); how != "" {
		last.How = "its agent " + how
	} else if how := i.above.How(); how != "" {
		last.How = "its " + i.e.name + " " + how
	}
	last.LastWords = lastWords(i.rec.Dir)
	return last
}

// Stopped implements engine.Stoppable.
func (i *instance) Stopped() (names []string) {
	if i.init.Stopped() {
		names = append(names, "agent")
	}
	if i.above != nil && i.above.Stopped() {
		names = append(names, i.e.name)
	}
	return names
}

// dead reports whether a process of the two is.
func (i *instance) dead() bool { return i.init.Dead() || i.above != nil && i.above.Dead() }

// kill kills all there is: the others die with them.
func (i *instance) kill() {
	i.init.Kill()
	if i.above != nil {
		i.above.Kill()
	}
}

// wait waits for the death of what kill kills.
func (i *instance) wait(ctx context.Context) error {
	if i.above != nil {
		if err := i.above.Wait(ctx); err != nil {
			return err
		}
	}
	return i.init.Wait(ctx)
}

// Done implements engine.Instance.
func (i *instance) Done() <-chan struct{} {
	if i.above != nil {
		return i.Buried()
	}
	return i.init.Done()
}

// Dial implements engine.Instance.
func (i *instance) Dial(context.Context) (net.Conn, error) {
	if err := i.CheckDial(i.dead(), i.Group.Frozen()); err != nil {
		return nil, err
	}
	return lifecycle.DialAgent(i.rec.ID, i.rec.Dir, i.dead)
}

// Pause implements engine.Pauser by the freezer of version 2, which the kernel keeps:
// no process has to remember it, and what is frozen can be killed.
func (i *instance) Pause(ctx context.Context) error {
	return i.Drive(ctx, "pause", i.dead, i.Group.Freeze, i.init.Done())
}

// Resume implements engine.Pauser.
func (i *instance) Resume(ctx context.Context) error {
	return i.Drive(ctx, "resume", i.dead, i.Group.Thaw, i.init.Done())
}

// Close implements engine.Instance.
func (i *instance) Close(ctx context.Context) error {
	i.Expect(true)
	i.kill()
	return i.WhileIdle(func() error { return i.close(ctx) })
}

func (i *instance) close(ctx context.Context) error {
	if i.closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lifecycle.KillTimeout)
	defer cancel()
	i.Group.Release()
	if err := i.wait(ctx); err != nil {
		return i.CloseError(api.ResourceProcesses, "wait for the agent", err)
	}
	<-i.Buried()
	if err := i.Group.Remove(ctx); err != nil {
		return i.CloseError(api.ResourceCgroup, "remove its cgroup", err)
	}
	removeFiles(i.rec.Dir)
	i.e.records.Remove(i.rec)
	i.e.ids.Release(i.rec.IDs)
	i.init.Close()
	if i.above != nil {
		i.above.Close()
	}
	i.closed = true
	return nil
}

// FileHolders implements engine.FileHolder: its files are mounted for its own processes.
func (i *instance) FileHolders(context.Context) ([]int, error) {
	return pidfd.Tree(i.init.ID.PID), nil
}
