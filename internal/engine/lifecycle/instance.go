//go:build linux

package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// Instance is the part of an instance that all these engines have alike. An engine embeds it in
// its own instance, calls Init once and has a goroutine that ends with Bury.
type Instance struct {
	// Group is the cgroup of the sandbox.
	Group *cgroup.Group

	id    string
	state []byte
	log   *slog.Logger

	driving sync.Mutex
	expects atomic.Bool
	buried  chan struct{}
	last    engine.Ending // set before buried is closed
}

// Init sets up an Instance. The state is what was recorded of it, by this build or an earlier one.
func (i *Instance) Init(id string, state []byte, g *cgroup.Group, log *slog.Logger) {
	i.id, i.state, i.Group, i.log = id, state, g, log
	i.buried = make(chan struct{})
}

// State implements engine.Instance.
func (i *Instance) State() []byte { return i.state }

// Expect says whether its death is expected: while it is created and from Close on another part
// reports the death. It returns what was said before.
func (i *Instance) Expect(death bool) (before bool) { return i.expects.Swap(death) }

// Bury says once that the sandbox has died, and how. A death that is not expected is logged.
func (i *Instance) Bury(last engine.Ending) {
	i.last = last
	if !i.expects.Load() {
		i.log.Warn("sandbox died", "sandbox", i.id, "how", last.How, "last words", last.LastWords)
	}
	close(i.buried)
}

// Buried is closed by Bury. It is nil before Init.
func (i *Instance) Buried() <-chan struct{} { return i.buried }

// Ending implements engine.Mortal. The daemon does not see how a process ends that is not its
// child.
func (i *Instance) Ending() engine.Ending {
	<-i.buried // follows the death at once
	return i.last
}

// Stat implements engine.Statter.
func (i *Instance) Stat(context.Context) (engine.Stat, error) {
	s, err := i.Group.Stat()
	if err != nil {
		return engine.Stat{}, api.Errorf(api.CodeUnsupported, "stat sandbox %s: %w", i.id, err)
	}
	return s, nil
}

// WhileIdle calls f when neither Drive nor another WhileIdle runs.
func (i *Instance) WhileIdle(f func() error) error {
	i.driving.Lock()
	defer i.driving.Unlock()
	return f()
}

// CheckDial is the error of a dial to a sandbox that is dead or paused.
func (i *Instance) CheckDial(dead, paused bool) error {
	switch {
	case dead:
		return api.Errorf(api.CodeSandboxLost, "dial sandbox %s: it is dead", i.id)
	case paused:
		return api.Errorf(api.CodeState, "dial sandbox %s: it is paused", i.id).WithHint("resume it")
	}
	return nil
}

// Drive does what a pause or a resume needs, one at a time. The context of do ends when a channel
// of ends is closed. Errors of do are classified; dead reports whether the sandbox is.
func (i *Instance) Drive(ctx context.Context, what string, dead func() bool, do func(context.Context) error, ends ...<-chan struct{}) error {
	i.driving.Lock()
	defer i.driving.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, end := range ends {
		wg.Go(func() {
			select {
			case <-end:
				cancel()
			case <-ctx.Done():
			}
		})
	}
	lost := func() bool { return dead() || i.expects.Load() }
	if lost() {
		return api.Errorf(api.CodeSandboxLost, "%s sandbox %s: it is dead", what, i.id)
	}
	err := do(ctx)
	ours, classified := errors.AsType[*api.Error](err)
	switch {
	case err == nil:
		return nil
	case classified:
		return ours
	case errors.Is(err, cgroup.ErrNoFreezer):
		return api.Errorf(api.CodeUnsupported, "%s sandbox %s: %w", what, i.id, err).
			WithHint("mount cgroup2, or use engine gvisor")
	case lost():
		return api.Errorf(api.CodeSandboxLost, "%s sandbox %s: it died", what, i.id).WithCause(err)
	case errors.Is(err, context.Canceled):
		return api.Errorf(api.CodeCanceled, "%s sandbox %s: canceled", what, i.id).WithCause(err)
	case errors.Is(err, context.DeadlineExceeded):
		e := api.Errorf(api.CodeTimeout, "%s sandbox %s: not done in time", what, i.id).WithCause(err)
		e.Retryable = true
		return e
	}
	return api.Errorf(api.CodeInternal, "%s sandbox %s: it cannot be done", what, i.id).
		WithHint("the daemon's log has the details").WithCause(err)
}

// CloseError is the error of a Close that could not do what, and what is left then.
func (i *Instance) CloseError(left api.ResourceKind, what string, err error) error {
	e := api.Errorf(api.CodeInternal, "close sandbox %s: %s: %w", i.id, what, &engine.CloseError{Kind: left, Err: err})
	e.Retryable = true
	return e
}

// AgentEnding tells how the agent of a dead sandbox ended.
func AgentEnding(agent *pidfd.Process) (last engine.Ending) {
	if how := agent.How(); how != "" {
		last.How = "its agent " + how
	}
	return last
}
