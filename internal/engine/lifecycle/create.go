//go:build linux

package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// StepRecord is the step of a creation that writes its record, and so finds out that
// there is such a sandbox.
const StepRecord = "record"

// Step is a part of a creation.
type Step struct {
	// Name is what the step does, in words that follow "could not".
	Name string
	// Do does it, or fails and leaves what it has made to the undo of the creation.
	Do func(context.Context) error
}

// TakeSteps does the steps of a sandbox's creation in their order, none of them once the
// caller has gone. The first that fails ends it: its name comes with its error.
func TakeSteps(ctx context.Context, log *slog.Logger, sandbox string, steps []Step) (failed string, err error) {
	for _, s := range steps {
		began := time.Now()
		err := ctx.Err()
		if err == nil {
			err = s.Do(ctx)
		}
		log.Debug("create step", "sandbox", sandbox, "step", s.Name, "took", time.Since(began))
		if err != nil {
			return s.Name, err
		}
	}
	return "", nil
}

// Undo is how to take back what a creation has made so far.
type Undo []func()

// Add has f called before all that was added earlier.
func (u *Undo) Add(f func()) { *u = append(*u, f) }

// Run takes back all of it, newest first.
func (u Undo) Run() {
	for i := len(u) - 1; i >= 0; i-- {
		u[i]()
	}
}

// CreateError is the error of a creation that failed for a reason which is no engine's
// own: it is classified already, the agent has said why it cannot start, the caller has gone or waited too long, there is such a
// sandbox, the machine is full, or the engine is shut down. For any other it is nil.
func CreateError(ctx context.Context, sandbox, step string, err error) error {
	if ours, ok := errors.AsType[*api.Error](err); ok {
		return ours
	}
	if said, ok := errors.AsType[AgentError](err); ok {
		return api.Errorf(api.CodeInternal, "create sandbox: %w", said)
	}
	retryable := func(e *api.Error) error {
		e.Retryable = true
		return e.WithCause(err)
	}
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(ctx.Err(), context.Canceled):
		return api.Errorf(api.CodeCanceled, "create sandbox: canceled while: %s", step).WithCause(err)
	case errors.Is(err, context.DeadlineExceeded):
		return retryable(api.Errorf(api.CodeTimeout, "create sandbox: no answer in time from: %s", step))
	case errors.Is(err, os.ErrExist) && step == StepRecord:
		return api.Errorf(api.CodeExists, "create sandbox: %s exists", sandbox).WithCause(err)
	case isFull(err):
		return retryable(api.Errorf(api.CodeNoCapacity, "create sandbox: the machine has no resources for it (%s)", step))
	case errors.Is(err, pidfd.ErrClosed):
		return api.Errorf(api.CodeUnavailable, "create sandbox: the engine is shut down").WithCause(err)
	}
	return nil
}

// isFull reports whether a call failed for want of something that others hold.
func isFull(err error) bool {
	full := []error{unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.ENOSPC}
	return slices.ContainsFunc(full, func(e error) bool { return errors.Is(err, e) })
}
