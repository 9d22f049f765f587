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

// CreateWorkspace creates a named workspace of the caller's tenant.
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

// Workspaces returns the named workspaces that the caller can see.
func (s *Service) Workspaces(_ context.Context, caller Caller) (api.WorkspaceList, error) {
	l, err := s.opts.Workspaces.List(func(tenant string) bool { return policy.Sees(caller, tenant) })
	if err != nil {
		// A workspace that cannot be read must not hide the others.
		s.log.Error("list workspaces", "error", err)
	}
	return api.WorkspaceList{Workspaces: l}, nil
}

// GetWorkspace returns the record of a named workspace. An empty tenant is the caller's own. Only
// the operator can name another one.
func (s *Service) GetWorkspace(_ context.Context, caller Caller, tenant, name string) (api.WorkspaceInfo, error) {
	tenant = cmp.Or(tenant, caller.Tenant)
	if !policy.Sees(caller, tenant) {
		return api.WorkspaceInfo{}, workspace.Missing(name)
	}
	return s.opts.Workspaces.Get(tenant, name)
}

// RemoveWorkspace removes a named workspace that no sandbox uses.
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

// workspaceFact returns what policy must know about the workspace that a request names. It is nil
// if the workspace does not exist.
func (s *Service) workspaceFact(caller Caller, spec api.SandboxSpec) *api.WorkspaceInfo {
	if spec.Workspace == nil || !api.ValidName(spec.Workspace.Name) {
		return nil
	}
	info, err := s.opts.Workspaces.Get(caller.Tenant, spec.Workspace.Name)
	if err != nil || info.State != "" {
		// The error is found again when the workspace is opened.
		return nil
	}
	return &info
}

// measuredExec runs one program to its end, and checks a measured workspace before and after it. An
// error is kept as an error of the caller asked.
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

// limitText truncates a result to the number of characters that its caller requested.
func limitText(res *api.Result, req api.ExecRequest) {
	if n := req.MaxOutputChars; n != nil {
		res.LimitText(int(*n))
	}
}

// beforeRun refuses to run a program in a sandbox whose measured workspace exceeds its quota.
func (s *Service) beforeRun(ctx context.Context, caller Caller, sb api.Sandbox) error {
	if sb.Workspace.Enforced != api.HeldByMeasure {
		return nil
	}
	return s.opts.Sandboxes.MeasureWorkspace(ctx, caller, sb.ID, api.QuotaBefore)
}

// afterRun removes a sandbox whose measured workspace now exceeds its quota. If the removal fails,
// it is retried, and the failure replaces no error.
func (s *Service) afterRun(ctx context.Context, caller Caller, sb api.Sandbox) error {
	if sb.Workspace.Enforced != api.HeldByMeasure {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	err := s.opts.Sandboxes.MeasureWorkspace(ctx, caller, sb.ID, api.QuotaAfter)
	if err == nil || errors.Is(err, api.ErrNotFound) {
		return nil
	}
	// A workspace that cannot be measured must not continue either.
	if rerr := s.Remove(ctx, caller, sb.ID); rerr != nil && !errors.Is(rerr, api.ErrNotFound) {
		s.log.Error("remove a sandbox over its quota; it is being retried", "sandbox", sb.ID, "error", rerr)
	}
	return err
}
