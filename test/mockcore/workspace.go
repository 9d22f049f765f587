package mockcore

import (
	"context"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// CreateWorkspace makes anything that has a name. One of more than 1 TiB cannot
// be held to that.
func (c *Core) CreateWorkspace(_ context.Context, caller core.Caller, spec api.WorkspaceSpec) (api.WorkspaceInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !api.ValidName(spec.Name):
		return api.WorkspaceInfo{}, api.Invalid("name", "workspace name %q is not valid", spec.Name).WithHint("use letters")
	case spec.SizeBytes > 1<<40:
		return api.WorkspaceInfo{}, api.Errorf(api.CodeUnsupported, "this machine cannot hold a workspace to it").WithHint("ask for less")
	case c.workspaceAt(spec.Name) >= 0:
		return api.WorkspaceInfo{}, api.Errorf(api.CodeExists, "a workspace named %q exists", spec.Name).WithHint("choose another name")
	}
	info := api.WorkspaceInfo{
		Name: spec.Name, Tenant: caller.Tenant, Labels: spec.Labels, SizeBytes: spec.SizeBytes, Inodes: spec.Inodes, CreatedAt: Epoch(),
	}
	if spec.SizeBytes > 0 {
		info.Enforced, info.UsedBytes, info.UsedInodes = api.HeldByKernel, new(int64(4096)), new(int64(2))
	}
	if spec.Name == "taken" {
		info.Sandboxes, info.UsedAt = []string{"sb-1"}, new(Epoch())
	}
	c.workspaces = append(c.workspaces, info)
	return info, nil
}

func (c *Core) workspaceAt(name string) int {
	return slices.IndexFunc(c.workspaces, func(w api.WorkspaceInfo) bool { return w.Name == name })
}

// Workspaces lists what was made.
func (c *Core) Workspaces(context.Context, core.Caller) (api.WorkspaceList, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return api.WorkspaceList{Workspaces: slices.Clone(c.workspaces)}, nil
}

// GetWorkspace finds a workspace by its name, in any tenant but "foreign".
func (c *Core) GetWorkspace(_ context.Context, _ core.Caller, tenant, name string) (api.WorkspaceInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.workspaceAt(name)
	if i < 0 || tenant == "foreign" {
		return api.WorkspaceInfo{}, noWorkspace(name)
	}
	return c.workspaces[i], nil
}

// RemoveWorkspace forgets a workspace; the one named "taken" is never free.
func (c *Core) RemoveWorkspace(_ context.Context, _ core.Caller, tenant, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.workspaceAt(name)
	switch {
	case i < 0 || tenant == "foreign":
		return noWorkspace(name)
	case name == "taken":
		return api.Errorf(api.CodeConflict, "workspace taken is taken: sandbox sb-1 has it to write").WithHint("wait until that one has ended")
	}
	c.workspaces = slices.Delete(c.workspaces, i, i+1)
	return nil
}

func noWorkspace(name string) error {
	return api.Errorf(api.CodeNotFound, "there is no workspace %q", name).WithHint("cloche workspace ls lists the ones that exist")
}
