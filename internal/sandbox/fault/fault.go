// Package fault classifies what can go wrong when a sandbox is created or its files are copied.
package fault

import (
	"context"
	"errors"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/sandbox/idempotency"
)

// Canceled is the error of a create whose caller went away or whose time was up.
func Canceled(ctx context.Context, timeout time.Duration, step string, err error) error {
	if errors.Is(context.Cause(ctx), idempotency.ErrDeleted) {
		return idempotency.DeletedError()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return api.Errorf(api.CodeTimeout, "creating the sandbox took longer than %s, at step %s", timeout, step).WithCause(err)
	}
	return api.Errorf(api.CodeCanceled, "the create was canceled at step %s", step).WithCause(err)
}

// Classify adds the step to an error without a code.
func Classify(step string, err error) error {
	if _, ok := errors.AsType[*api.Error](err); ok {
		return err
	}
	if hostfile.IsFull(err) {
		e := api.Errorf(api.CodeNoCapacity, "creating the sandbox failed at step %s: the disk is full", step).WithCause(err)
		e.Retryable = true
		return e.WithHint("free space where Cloche keeps its state, and try again")
	}
	return api.Errorf(api.CodeInternal, "creating the sandbox failed at step %s", step).WithCause(err)
}

// ErrNoRoom is a workspace whose own bounds are too small.
var ErrNoRoom = errors.New("its bounds are reached")

// NoRoom marks an error of writing to a workspace that has bounds and reached them.
func NoRoom(ws api.Workspace, err error) error {
	if ws.Enforced == api.HeldByKernel && hostfile.IsFull(err) {
		return errors.Join(ErrNoRoom, err)
	}
	return err
}

// Disk classifies what went wrong with files of a sandbox on the host that should have been what says.
func Disk(sb api.Sandbox, what string, err error) error {
	if _, ok := errors.AsType[*api.Error](err); ok {
		return err
	}
	switch {
	case errors.Is(err, ErrNoRoom):
		ws := sb.Workspace
		e := api.Errorf(api.CodeNoCapacity, "the files of sandbox %s could not be %s: they do not fit into its workspace", sb.Name, what).WithCause(err)
		e.Field = "workspace.size_bytes"
		return e.WithHint("ask for a workspace of more than %d bytes, and of more inodes if those are bounded", ws.SizeBytes)
	case hostfile.IsFull(err):
		e := api.Errorf(api.CodeNoCapacity, "the files of sandbox %s could not be %s: the disk is full", sb.Name, what).WithCause(err)
		e.Retryable = true
		return e.WithHint("free space where Cloche keeps its state, and try again")
	case errors.Is(err, context.Canceled):
		return api.Errorf(api.CodeCanceled, "the files of sandbox %s were not %s: it was canceled", sb.Name, what).WithCause(err)
	case errors.Is(err, context.DeadlineExceeded):
		return api.Errorf(api.CodeTimeout, "the files of sandbox %s were not %s in time", sb.Name, what).WithCause(err)
	}
	return api.Errorf(api.CodeInternal, "the files of sandbox %s could not be %s", sb.Name, what).
		WithHint("the daemon's log has the details").WithCause(err)
}
