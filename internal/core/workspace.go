package core

import (
	"cmp"
	"context"
	"errors"
	"strconv"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// CreateWorkspace makes a named workspace of the caller's.
func (s *Service) CreateWorkspace(ctx context.Context, caller Caller, spec api.WorkspaceSpec) (api.WorkspaceInfo, error) {
	d := details{"workspace": spec.Name}
	for field, n := range map[string]int64{"size_bytes": spec.SizeBytes, "inodes": spec.Inodes} {
		if n != 0 {
			d[field] = strconv.FormatInt(n, 10)
		}
	}
	permit, err := policy.DecideWorkspace(spec, workspace.HardQuota(s.opts.Home), caller, s.rules())
	if err != nil {
		return api.WorkspaceInfo{}, s.refused(ctx, caller, policy.VerbCreateWorkspace, "", d, err)
	}
	if err := s.intend(ctx, caller, policy.VerbCreateWorkspace, "", d); err != nil {
		return api.WorkspaceInfo{}, err
	}
	granted := permit.Spec()
	info, err := s.opts.Workspaces.Create(workspace.Wish{
		Tenant: permit.Tenant(), Name: granted.Name, Labels: granted.Labels, Max: permit.Max(),
		Bounds: workspace.Bounds{SizeBytes: granted.SizeBytes, Inodes: granted.Inodes},
	})
	return info, s.done(ctx, caller, policy.VerbCreateWorkspace, "", d, err)
}

// Workspaces lists the named workspaces that caller sees.
func (s *Service) Workspaces(_ context.Context, caller Caller) (api.WorkspaceList, error) {
	l, err := s.opts.Workspaces.List(func(tenant string) bool { return policy.Sees(caller, tenant) })
	if err != nil {
		// One that cannot be read must not hide the others.
		s.log.Error("list workspaces", "error", err)
	}
	return api.WorkspaceList{Workspaces: l}, nil
}

// GetWorkspace tells of a named workspace. An empty tenant is the caller's own;
// another's is the operator's to name.
func (s *Service) GetWorkspace(_ context.Context, caller Caller, tenant, name string) (api.WorkspaceInfo, error) {
	tenant = cmp.Or(tenant, caller.Tenant)
	if !policy.Sees(caller, tenant) {
		return api.WorkspaceInfo{}, workspace.Missing(name)
	}
	return s.opts.Workspaces.Get(tenant, name)
}

// RemoveWorkspace removes a named workspace that no sandbox has.
func (s *Service) RemoveWorkspace(ctx context.Context, caller Caller, tenant, name string) error {
	tenant = cmp.Or(tenant, caller.Tenant)
	d := details{"workspace": name, "workspace_tenant": tenant}
	if !policy.Sees(caller, tenant) {
		return s.refused(ctx, caller, policy.VerbRemoveWorkspace, "", d, workspace.Missing(name))
	}
	if err := s.intend(ctx, caller, policy.VerbRemoveWorkspace, "", d); err != nil {
		return err
	}
	return s.done(ctx, caller, policy.VerbRemoveWorkspace, "", d, s.opts.Workspaces.Remove(tenant, name))
}

// workspaceFact is what policy must know of the workspace that a request names;
// nil is one that does not exist.
func (s *Service) workspaceFact(caller Caller, spec api.SandboxSpec) *api.WorkspaceInfo {
	if spec.Workspace == nil || !api.ValidName(spec.Workspace.Name) {
		return nil
	}
	info, err := s.opts.Workspaces.Get(caller.Tenant, spec.Workspace.Name)
	if err != nil || info.State != "" {
		// What is wrong with it is found again when it is opened.
		return nil
	}
	return &info
}

// measuredExec runs one program to its end, between two looks at a workspace that
// is measured. An error of it is remembered as one of whom asked is for.
func (s *Service) measuredExec(ctx context.Context, caller Caller, sb api.Sandbox, permit policy.ExecPermit, asked api.Naming) (api.Result, error) {
	if err := s.beforeRun(ctx, caller, sb); err != nil {
		return api.Result{}, s.remember(ctx, caller, api.StageQuotaBefore, sb.ID, asked, err)
	}
	res, err := s.opts.Sandboxes.Exec(ctx, caller, sb.ID, permit)
	s.metrics.Ran(sb.Engine, res, err)
	s.logExec(ctx, sb, permit, res, err)
	if over := s.afterRun(ctx, caller, sb); over != nil {
		return res, s.remember(ctx, caller, api.StageQuotaAfter, sb.ID, asked, over)
	}
	return res, s.remember(ctx, caller, api.StageExecution, sb.ID, asked, err)
}

// limitText cuts a result to what its caller wants to read of it.
func limitText(res *api.Result, req api.ExecRequest) {
	if n := req.MaxOutputChars; n != nil {
		res.LimitText(int(*n))
	}
}

// beforeRun refuses to run anything in a sandbox whose workspace is measured and
// holds too much.
func (s *Service) beforeRun(ctx context.Context, caller Caller, sb api.Sandbox) error {
	if sb.Workspace.Enforced != api.HeldByMeasure {
		return nil
	}
	return s.opts.Sandboxes.MeasureWorkspace(ctx, caller, sb.ID, api.QuotaBefore)
}

// afterRun removes a sandbox whose workspace is measured and holds too much by
// now. A removal that fails is retried, and replaces no error.
func (s *Service) afterRun(ctx context.Context, caller Caller, sb api.Sandbox) error {
	if sb.Workspace.Enforced != api.HeldByMeasure {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	err := s.opts.Sandboxes.MeasureWorkspace(ctx, caller, sb.ID, api.QuotaAfter)
	if err == nil || errors.Is(err, api.ErrNotFound) {
		return nil
	}
	// Also what could not be measured does not go on unmeasured.
	if rerr := s.Remove(ctx, caller, sb.ID); rerr != nil && !errors.Is(rerr, api.ErrNotFound) {
		s.log.Error("remove a sandbox over its quota; it is being retried", "sandbox", sb.ID, "error", rerr)
	}
	return err
}
