//go:build linux

package native

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

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
	init *pidfd.Process
	// above is the program that isolates it and ends with it; may be nil.
	above *pidfd.Process
	group *cgroup.Group

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
)

func newInstance(e *Engine, rec record, p, above *pidfd.Process, g *cgroup.Group) *instance {
	i := &instance{e: e, rec: rec, state: lifecycle.Encode(rec), init: p, above: above, group: g, buried: make(chan struct{})}
	go i.watch()
	return i
}

// watch reports a death that no caller requested.
func (i *instance) watch() {
	defer close(i.buried)
	if i.above == nil {
		<-i.init.Done()
		if i.init.How() != "" {
			i.last.How = "its agent " + i.init.How()
		}
	} else {
		i.watchBoth()
	}
	if !i.asked.Load() {
		i.e.log.Warn("sandbox died", "sandbox", i.rec.ID, "how", i.last.How)
	}
}

// watchBoth sees that neither of the two outlives the other.
func (i *instance) watchBoth() {
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
		i.last.How = "its agent " + how
	} else if how := i.above.How(); how != "" {
		i.last.How = "its " + i.e.name + " " + how
	}
	i.last.LastWords = lastWords(i.rec.Dir)
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

// Ending implements engine.Mortal.
func (i *instance) Ending() engine.Ending {
	<-i.buried // follows the death at once
	return i.last
}

// State implements engine.Instance.
func (i *instance) State() []byte { return i.state }

// Done implements engine.Instance.
func (i *instance) Done() <-chan struct{} {
	if i.above != nil {
		return i.buried
	}
	return i.init.Done()
}

// Dial implements engine.Instance.
func (i *instance) Dial(context.Context) (net.Conn, error) {
	if i.dead() {
		return nil, api.Errorf(api.CodeSandboxLost, "dial sandbox %s: it is dead", i.rec.ID)
	}
	if i.group.Frozen() {
		return nil, api.Errorf(api.CodeState, "dial sandbox %s: it is paused", i.rec.ID).WithHint("resume it")
	}
	conn, err := dial(i.rec.Dir)
	if err != nil {
		if i.dead() {
			return nil, api.Errorf(api.CodeSandboxLost, "dial sandbox %s: it died", i.rec.ID).WithCause(err)
		}
		e := api.Errorf(api.CodeUnavailable, "dial sandbox %s: the agent does not listen", i.rec.ID).WithCause(err)
		e.Retryable = true
		return nil, e
	}
	return conn, nil
}

// Close implements engine.Instance.
func (i *instance) Close(ctx context.Context) error {
	i.asked.Store(true)
	i.kill()
	i.driving.Lock()
	defer i.driving.Unlock()
	if i.closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	i.group.Release()
	if err := i.wait(ctx); err != nil {
		return i.closeError("wait for the agent", err)
	}
	<-i.buried
	if err := i.group.Remove(ctx); err != nil {
		return i.closeError("remove its cgroup", err)
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

// FileHolders implements engine.FileHolder: its files are mounted for its own processes.
func (i *instance) FileHolders(context.Context) ([]int, error) {
	return pidfd.Tree(i.init.ID.PID), nil
}
