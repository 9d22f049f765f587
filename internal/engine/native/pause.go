//go:build linux

package native

import (
	"context"
	"errors"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
)

var _ engine.Pauser = (*instance)(nil)

// Pause implements engine.Pauser by the freezer of version 2, which the kernel keeps:
// no process has to remember it, and what is frozen can be killed.
func (i *instance) Pause(ctx context.Context) error {
	return i.drive(ctx, "pause", i.group.Freeze)
}

// Resume implements engine.Pauser.
func (i *instance) Resume(ctx context.Context) error {
	return i.drive(ctx, "resume", i.group.Thaw)
}

// drive does one of the two at a time. It ends when the instance does.
func (i *instance) drive(ctx context.Context, what string, do func(context.Context) error) error {
	i.driving.Lock()
	defer i.driving.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-i.init.Done():
			cancel()
		case <-stop:
		}
	}()
	if i.dead() || i.asked.Load() {
		return api.Errorf(api.CodeSandboxLost, "%s sandbox %s: it is dead", what, i.rec.ID)
	}
	err := do(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cgroup.ErrNoFreezer):
		return api.Errorf(api.CodeUnsupported, "%s sandbox %s: %w", what, i.rec.ID, err).
			WithHint("mount cgroup2, or use engine gvisor")
	case i.dead() || i.asked.Load():
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
