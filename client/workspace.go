package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/cloche-dev/cloche/api"
)

// CreateWorkspace creates a named workspace. A create of a sandbox also creates a workspace with an
// unused name. Use CreateWorkspace to set its limits or labels.
func (c *Client) CreateWorkspace(ctx context.Context, spec api.WorkspaceSpec) (api.WorkspaceInfo, error) {
	var info api.WorkspaceInfo
	return info, c.call(ctx, http.MethodPost, "/workspaces", nil, spec, &info)
}

// Workspaces returns the caller's named workspaces, sorted by name.
func (c *Client) Workspaces(ctx context.Context) (api.WorkspaceList, error) {
	var l api.WorkspaceList
	return l, c.call(ctx, http.MethodGet, "/workspaces", nil, nil, &l)
}

// GetWorkspace returns the record of a named workspace, and its usage if the daemon can get it
// without a walk of the directory tree. An empty tenant is the caller's own. Only the operator can
// name another tenant.
func (c *Client) GetWorkspace(ctx context.Context, tenant, name string) (api.WorkspaceInfo, error) {
	var info api.WorkspaceInfo
	p, err := workspacePath(name)
	if err != nil {
		return info, err
	}
	return info, c.call(ctx, http.MethodGet, p, ofTenant(tenant), nil, &info)
}

// RemoveWorkspace removes a named workspace with all its content. If a sandbox uses it, the error
// is api.ErrConflict.
func (c *Client) RemoveWorkspace(ctx context.Context, tenant, name string) error {
	p, err := workspacePath(name)
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodDelete, p, ofTenant(tenant), nil, nil)
}

// workspacePath returns the URL path of a workspace. It refuses an invalid name, which could change
// the path.
func workspacePath(name string) (string, error) {
	if !api.ValidName(name) {
		return "", api.Invalid("name", "%.80q is not the name of a workspace", name).
			WithHint("a name has 1 to %d of a-z, 0-9, '-', '_' and '.', and begins with a letter or digit", api.MaxNameLen)
	}
	return "/workspaces/" + name, nil
}

func ofTenant(tenant string) url.Values {
	if tenant == "" {
		return nil
	}
	return url.Values{"tenant": {tenant}}
}
