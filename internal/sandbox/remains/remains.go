// Package remains has the errors of a teardown that leaves something behind.
package remains

import (
	"context"
	"errors"
	"syscall"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
)

// Leftover is an error that says what is still there because of it.
type Leftover struct {
	Kind api.ResourceKind
	Err  error
}

// Error implements error.
func (l *Leftover) Error() string { return string(l.Kind) + " are left: " + l.Err.Error() }

// Unwrap returns the cause.
func (l *Leftover) Unwrap() error { return l.Err }

// Leaves says what is left because of err, unless it is nil or says so itself.
func Leaves(kind api.ResourceKind, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Leftover](err); ok {
		return err
	}
	if e, ok := errors.AsType[*engine.CloseError](err); ok {
		kind = e.Kind
	}
	if _, ok := errors.AsType[*directory.MountsError](err); ok {
		kind = api.ResourceMounts
	}
	return &Leftover{kind, err}
}

// Said returns the error of a failed teardown for the record. It contains no path of the host,
// because all callers that see the sandbox read it.
func Said(err error) string {
	what := "it"
	if l, ok := errors.AsType[*Leftover](err); ok {
		what = map[api.ResourceKind]string{
			api.ResourceProcesses: "its processes could not be ended",
			api.ResourceCgroup:    "its cgroup could not be removed",
			api.ResourceMounts:    "its mounts could not be unmounted",
			api.ResourceNetwork:   "its network could not be closed",
			api.ResourceListeners: "its listeners could not be closed",
			api.ResourceDisk:      "its files could not all be removed",
			api.ResourceLeases:    "its workspace could not be given up",
		}[l.Kind]
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return what + ": " + errno.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return what + " in time"
	}
	return what + "; the daemon's log says why"
}

// Counts are how much is left of each kind of resource.
type Counts map[api.ResourceKind]int

// List returns what is left, in the order of the teardown. err is the error of the attempt, or nil.
func (c Counts) List(err error) []api.Resource {
	failed := Kind(err)
	var out []api.Resource
	for _, kind := range api.ResourceKinds() {
		r := api.Resource{Kind: kind, Remaining: c[kind]}
		if kind == failed {
			r.Error, r.Remaining = Said(err), max(r.Remaining, 1)
		}
		out = append(out, r)
	}
	return out
}

// Kind is of what something is left because of err; empty if err does not say.
func Kind(err error) api.ResourceKind {
	if l, ok := errors.AsType[*Leftover](err); ok {
		return l.Kind
	}
	return ""
}

// Closed reports whether a channel is closed.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
