package sandbox

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/sandbox/quota"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// workspaces opens, measures and gives up the workspaces of sandboxes.
type workspaces struct {
	m *Manager
	// quotas watches those whose bounds no kernel enforces.
	quotas *quota.Watch
}

// openWorkspace finds or makes the workspace and stages it as the first mount
// after the image's.
func (c *creation) openWorkspace(ctx context.Context) error {
	ws := c.s.info.Workspace
	if host, ok := c.permit.WorkspaceDir(); ok {
		return c.stage(host)
	}
	if ws.Name != "" {
		if err := c.attachWorkspace(); err != nil {
			return err
		}
	}
	if ws.Volume {
		return c.openVolume(ws)
	}
	dir, err := c.m.workspaces.open(c.s)
	if err != nil {
		return err
	}
	if quota.Watches(ws) && c.snapshot == nil && c.from == nil && c.fork == nil {
		c.m.workspaces.quotas.Begin(&c.s.space)
	}
	return c.stageWorkspace(ctx, dir)
}

// openVolume has the engine keep the workspace.
func (c *creation) openVolume(ws api.Workspace) error {
	keeper, ok := c.m.engineNamed(c.permit.Engine()).(engine.VolumeKeeper)
	if !ok {
		return api.Errorf(api.CodeUnsupported, "engine %s shares no files with this host, and keeps none", c.permit.Engine()).
			WithHint("use another engine")
	}
	v := engine.Volume{Target: ws.Path, ReadOnly: ws.ReadOnly}
	if ws.Name != "" {
		name, err := c.m.opts.Workspaces.Volume(c.s.tenant, ws.Name)
		if err != nil {
			return err
		}
		v.Name = name
	} else if c.s.keepsVolume() {
		v.Name = c.s.id // it outlives the instance
		if c.from == nil {
			c.s.undo.Push("volume", func(ctx context.Context) error { return keeper.RemoveVolume(ctx, v.Name) })
		}
	}
	c.plan.Volumes = append(c.plan.Volumes, v)
	return nil
}

// keepsVolume reports whether the private workspace is a volume with the name of the sandbox, because the sandbox can
// be started again.
func (s *live) keepsVolume() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spec != nil && s.info.Workspace.Volume && s.info.Workspace.Name == "" && s.info.Tier != api.TierRemote
}

// dropVolume removes the volume of a sandbox that is being removed. The caller holds s.ops.
func (wk workspaces) dropVolume(ctx context.Context, s *live) error {
	keeper, ok := wk.m.engineNamed(s.snapshot().Engine).(engine.VolumeKeeper)
	if !ok || !s.keepsVolume() {
		return nil
	}
	return keeper.RemoveVolume(ctx, s.id)
}

// attachWorkspace takes the named workspace for this sandbox.
func (c *creation) attachWorkspace() error {
	ws, grant, keeper := c.s.info.Workspace, c.permit.Workspace(), ""
	if c.memory != nil || c.from != nil && keepsWorkspace(ws) {
		return nil // it has not been given up
	}
	if ws.Volume {
		keeper = c.permit.Engine()
	}
	_, err := c.m.opts.Workspaces.Attach(workspace.Wish{
		Tenant: c.s.tenant, Name: ws.Name, Max: grant.Max, Bounds: workspace.Bounds{SizeBytes: grant.SizeBytes, Inodes: grant.Inodes}, Engine: keeper,
	}, workspace.Holder{Owner: c.m.opts.Owner, Sandbox: c.s.id, ReadOnly: ws.ReadOnly})
	if err != nil {
		return err
	}
	c.s.undo.Push("workspace", func(context.Context) error { return c.m.workspaces.detach(c.s, false) })
	return nil
}

// open opens the files of a workspace that Cloche keeps. The caller closes
// what it gets, before anything removes the sandbox's directory.
func (wk workspaces) open(s *live) (*workspace.Dir, error) {
	info := s.snapshot()
	ws, staging := info.Workspace, filepath.Join(s.dir, directory.Staging)
	switch {
	case ws.Volume:
		return nil, workspace.Elsewhere(cmp.Or(ws.Name, "of "+info.Name), info.Engine)
	case ws.Name != "":
		return wk.m.opts.Workspaces.Open(s.tenant, ws.Name, staging)
	case ws.Enforced == api.HeldByKernel:
		bounds := workspace.Bounds{SizeBytes: ws.SizeBytes, Inodes: ws.Inodes}
		return workspace.PrivateBounded(filepath.Join(s.dir, "workspace-"+s.id), staging, bounds)
	}
	return workspace.Private(filepath.Join(s.dir, "workspace"))
}

// keepsWorkspace is true for a sandbox that has its named workspace until it is
// removed: something is to be done with it then, or is still to be decided.
// Others give it up as soon as nothing of them runs.
func keepsWorkspace(ws api.Workspace) bool { return ws.Drop || ws.Layered }

// detach gives a named workspace up, when the sandbox has ended and,
// with removed, when it goes.
func (wk workspaces) detach(s *live, removed bool) error {
	ws := s.snapshot().Workspace
	if ws.Name == "" || !removed && keepsWorkspace(ws) && s.isAnnounced() {
		return nil
	}
	drop := removed && ws.Drop && !ws.ReadOnly && s.isAnnounced()
	if err := wk.m.opts.Workspaces.Detach(s.tenant, ws.Name, wk.m.opts.Owner, s.id, drop); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.detached = true
	return nil
}

// isAnnounced is true for a sandbox that was created.
func (s *live) isAnnounced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.making.Announced()
}

// sweep ends what sandboxes of an earlier daemon had that have ended.
func (wk workspaces) sweep() error {
	if wk.m.opts.Workspaces == nil { // in tests of nothing that has one
		return nil
	}
	return wk.m.opts.Workspaces.Sweep(wk.m.opts.Owner, func(id string) bool {
		wk.m.mu.Lock()
		s := wk.m.byID[id]
		wk.m.mu.Unlock()
		if s == nil {
			return false
		}
		return !s.hasEnded() || keepsWorkspace(s.snapshot().Workspace)
	})
}

// MeasureWorkspace counts the workspace of a sandbox whose limits are measured, and returns
// api.CodeQuota if it exceeds them. Any other sandbox is within its limits. It blocks no other
// call.
func (m *Manager) MeasureWorkspace(ctx context.Context, caller policy.Caller, ref string, phase api.QuotaPhase) error {
	s, err := m.find(caller, policy.VerbGet, ref)
	if err != nil {
		return err
	}
	return m.workspaces.measure(ctx, s, phase)
}

func (wk workspaces) measure(ctx context.Context, s *live, phase api.QuotaPhase) error {
	ws := s.snapshot().Workspace
	if ws.Enforced != api.HeldByMeasure {
		return nil
	}
	if err := (handle{wk.m, s}).SyncFiles(ctx, true); err != nil {
		return err
	}
	dir, err := wk.measured(s, ws)
	if err != nil {
		return err
	}
	err = workspace.Measure(ctx, dir, workspace.Bounds{SizeBytes: ws.SizeBytes, Inodes: ws.Inodes})
	if over, ok := errors.AsType[*api.Error](err); ok && over.Quota != nil {
		over.Quota.Phase = phase
	}
	return errors.Join(err, dir.Close())
}

// measureAfter looks, in the background, at the workspace of a sandbox whose
// managed process has ended. No caller waits for an error: too much, or what could
// not be measured, is why the sandbox is removed. One that is being ended already
// is left alone, since nothing in it can write any more.
func (wk workspaces) measureAfter(s *live) {
	if info := s.snapshot(); info.Workspace.Enforced != api.HeldByMeasure || info.State != api.StateRunning {
		return
	}
	wk.m.background(func() {
		err := wk.measure(wk.m.ctx, s, api.QuotaAfter)
		if err == nil || wk.m.ctx.Err() != nil || s.snapshot().State != api.StateRunning {
			return
		}
		reason := "its workspace could not be measured after a process"
		if over, ok := errors.AsType[*api.Error](err); ok {
			reason = over.Message + ", after a process"
		}
		wk.m.log.Warn("remove a sandbox for its quota", "sandbox", s.id, "error", err)
		if _, err := wk.m.remove(wk.m.ctx, s, why{cause: api.EndedQuota, text: reason}); err != nil {
			wk.m.log.Error("remove a sandbox for its quota; it is being retried", "sandbox", s.id, "error", err)
		}
	})
}

// measured opens what is to be measured.
func (wk workspaces) measured(s *live, ws api.Workspace) (*workspace.Dir, error) {
	if ws.Dir == "" {
		return wk.open(s)
	}
	real, err := filepath.EvalSymlinks(ws.Dir)
	if err != nil {
		return nil, api.Errorf(api.CodeState, "the directory of the workspace cannot be measured: it is not there any more").WithCause(err)
	}
	return workspace.OpenDir(real)
}
