package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/sandbox/quota"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// diskReserve is the part of a filesystem, one of so many, that a workspace which was over its bound
// must leave free: one that does not is removed.
const diskReserve = 20

func (h handle) ID() string    { return h.s.id }
func (h handle) Running() bool { return h.s.snapshot().State == api.StateRunning }

// Bounds implements quota.Sandbox.
func (h handle) Bounds() (workspace.Bounds, bool) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	limit := quota.BoundsOf(h.s.info)
	return limit, h.s.info.State == api.StateRunning && quota.Watches(h.s.info.Workspace) && h.s.excess == nil && limit.Any()
}

// Count implements quota.Sandbox.
func (h handle) Count(limit workspace.Bounds) (workspace.Taken, error) {
	return h.m.workspaces.take(h.s, limit)
}

// Exceeded implements quota.Sandbox.
func (h handle) Exceeded(err *api.Error) { h.m.workspaces.overfull(h.s, err) }

// take counts the workspace and the layer over it.
func (wk workspaces) take(s *live, limit workspace.Bounds) (workspace.Taken, error) {
	dir, err := wk.open(s)
	if err != nil {
		return workspace.Taken{}, err
	}
	defer dir.Close()
	dirs := []*workspace.Dir{dir}
	if s.snapshot().Workspace.Layered {
		layer, err := workspace.OpenDir(s.layerPath())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return workspace.Taken{}, err
		}
		if err == nil {
			defer layer.Close()
			dirs = append(dirs, layer)
		}
	}
	return workspace.Take(wk.m.ctx, limit, dirs, wk.processesOf(s))
}

// processesOf are the processes of the host that may hold files of a sandbox.
func (wk workspaces) processesOf(s *live) []int {
	s.mu.Lock()
	held, ok := s.inst.(engine.FileHolder)
	s.mu.Unlock()
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(wk.m.ctx, callTimeout)
	defer cancel()
	pids, err := held.FileHolders(ctx)
	if err != nil {
		wk.m.log.Debug("list who has files of a sandbox", "sandbox", s.id, "error", err)
	}
	return pids
}

// overfull stops a sandbox whose workspace holds more than it may, at once: a grace would
// be time to write more. What it wrote is kept, unless the disk is about to be full.
func (wk workspaces) overfull(s *live, over *api.Error) {
	over.Quota.Phase = api.QuotaDuring
	over.TerminalReason = api.EndedQuota
	over.Message += ", so the sandbox was stopped; limits.disk_bytes and workspace.size_bytes allow more"
	s.mu.Lock()
	if s.excess != nil || s.info.State != api.StateRunning {
		s.mu.Unlock()
		return
	}
	s.excess = over
	s.info.TerminalReason = api.EndedQuota
	s.mu.Unlock()
	wk.m.log.Warn("stop a sandbox for what its workspace holds", "sandbox", s.id, "error", over)
	w := why{cause: api.EndedQuota, text: over.Message}
	if left, err := workspace.SpaceAt(wk.m.sandboxesDir()); err == nil && left.FreeBytes < left.TotalBytes/diskReserve {
		w.text = fmt.Sprintf("%s, and left %d bytes of the disk free", over.Message, left.FreeBytes)
		if _, err := wk.m.remove(wk.m.ctx, s, w); err != nil {
			wk.m.log.Error("remove a sandbox that has filled the disk; it is being retried", "sandbox", s.id, "error", err)
		}
		return
	}
	if _, err := wk.m.end(wk.m.ctx, s, w, nil); err != nil {
		wk.m.log.Error("stop a sandbox for what its workspace holds; it is being retried", "sandbox", s.id, "error", err)
	}
}
