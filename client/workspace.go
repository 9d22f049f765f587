package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/cloche-dev/cloche/api"
)

// CreateWorkspace makes a named workspace. One that a sandbox asks for by a name
// that is free is made as well; this is for one that is to have bounds or labels
// of its own.
func (c *Client) CreateWorkspace(ctx context.Context, spec api.WorkspaceSpec) (api.WorkspaceInfo, error) {
	var info api.WorkspaceInfo
	return info, c.call(ctx, http.MethodPost, "/workspaces", nil, spec, &info)
}

// Workspaces returns the caller's named workspaces, sorted by name.
func (c *Client) Workspaces(ctx context.Context) (api.WorkspaceList, error) {
	var l api.WorkspaceList
	return l, c.call(ctx, http.MethodGet, "/workspaces", nil, nil, &l)
}

// GetWorkspace tells what is on record about a named workspace, and how full it
// is where the daemon can say so without a walk. An empty tenant is the caller's
// own; another's is for the operator.
func (c *Client) GetWorkspace(ctx context.Context, tenant, name string) (api.WorkspaceInfo, error) {
	var info api.WorkspaceInfo
	p, err := workspacePath(name)
	if err != nil {
		return info, err
	}
	return info, c.call(ctx, http.MethodGet, p, ofTenant(tenant), nil, &info)
}

// RemoveWorkspace removes a named workspace with all that is in it. One that a
// sandbox has is api.ErrConflict.
func (c *Client) RemoveWorkspace(ctx context.Context, tenant, name string) error {
	p, err := workspacePath(name)
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodDelete, p, ofTenant(tenant), nil, nil)
}

// workspacePath is the path of a workspace. What is no name would name another
// path.
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
