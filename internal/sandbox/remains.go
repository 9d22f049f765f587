package sandbox

import (
	"context"
	"errors"
	"os"
	"syscall"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// leftover is an error that says what is still there because of it.
type leftover struct {
	kind api.ResourceKind
	err  error
}

func (l *leftover) Error() string { return string(l.kind) + " are left: " + l.err.Error() }
func (l *leftover) Unwrap() error { return l.err }

// leaves says what is left because of err, unless it is nil or says so itself.
func leaves(kind api.ResourceKind, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*leftover](err); ok {
		return err
	}
	if e, ok := errors.AsType[*engine.CloseError](err); ok {
		kind = e.Kind
	}
	return &leftover{kind, err}
}

// said returns the error of a failed teardown for the record. It contains no path of the host,
// because all callers that see the sandbox read it.
func said(err error) string {
	what := "it"
	if l, ok := errors.AsType[*leftover](err); ok {
		what = map[api.ResourceKind]string{
			api.ResourceProcesses: "its processes could not be ended",
			api.ResourceCgroup:    "its cgroup could not be removed",
			api.ResourceMounts:    "its mounts could not be unmounted",
			api.ResourceNetwork:   "its network could not be closed",
			api.ResourceListeners: "its listeners could not be closed",
			api.ResourceDisk:      "its files could not all be removed",
			api.ResourceLeases:    "its workspace could not be given up",
		}[l.kind]
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return what + ": " + errno.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return what + " in time"
	}
	return what + "; the daemon's log says why"
}

// remains returns what is left of each kind of resource of a sandbox, in the order of the teardown.
// err is the error of the attempt, or nil.
func (m *Manager) remains(s *live, err error) []api.Resource {
	var failed api.ResourceKind
	if l, ok := errors.AsType[*leftover](err); ok {
		failed = l.kind
	}
	s.mu.Lock()
	inst, network, named := s.inst, s.network, s.info.Workspace.Name != "" && !s.detached
	s.mu.Unlock()
	var runs, group, disk, mounts int
	if inst != nil {
		runs, group = 1, 1
		if _, ok := errors.AsType[*engine.CloseError](err); ok && failed != api.ResourceProcesses || isClosed(inst.Done()) {
			runs = 0 // it says what is left, in the order of Close
		}
	}
	if _, serr := os.Lstat(s.dir); serr == nil {
		disk, mounts = 1, workspace.MountsBelow(s.dir)
	}
	count := map[api.ResourceKind]int{
		api.ResourceListeners: s.endpoints.Len(), api.ResourceProcesses: runs, api.ResourceCgroup: group,
		api.ResourceMounts: mounts, api.ResourceDisk: disk,
	}
	if network != nil {
		count[api.ResourceNetwork] = 1
	}
	if named {
		count[api.ResourceLeases] = 1
	}
	var out []api.Resource
	for _, kind := range api.ResourceKinds() {
		r := api.Resource{Kind: kind, Remaining: count[kind]}
		if kind == failed {
			r.Error, r.Remaining = said(err), max(r.Remaining, 1)
		}
		out = append(out, r)
	}
	return out
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
