package client

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

// Info returns what a caller can learn about the daemon before any other request.
func (c *Client) Info(ctx context.Context) (api.Info, error) {
	var i api.Info
	return i, c.call(ctx, http.MethodGet, "/info", nil, nil, &i)
}

// ResolveName returns the sandbox name that a template and an identity select, and whether the
// sandbox exists. Use the name in calls other than create, exec and process start.
func (c *Client) ResolveName(ctx context.Context, n api.Naming) (api.ResolvedName, error) {
	var r api.ResolvedName
	if err := checkNaming("", n); err != nil {
		return r, err
	}
	return r, c.call(ctx, http.MethodPost, "/names/resolve", nil, n, &r)
}

// checkNaming refuses values that would arrive changed and could select another caller's sandbox.
func checkNaming(at string, n api.Naming) error {
	if err := checkText(at+"name_template", n.NameTemplate); err != nil || n.Identity == nil {
		return err
	}
	id := n.Identity
	if err := checkEnv(at+"identity.variables", id.Variables); err != nil {
		return err
	}
	return checkTexts(at+"identity.", "launcher_type", id.LauncherType, "launcher_id", id.LauncherID, "sender_id", id.SenderID, "query_id", id.QueryID)
}
