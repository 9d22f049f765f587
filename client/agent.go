package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cloche-dev/cloche/api"
)

// Errors returns the newest errors of creates, execs and process starts, newest first. A caller
// gets its own errors. The operator gets those of all tenants.
func (c *Client) Errors(ctx context.Context, o api.ErrorOptions) (api.ErrorList, error) {
	q := url.Values{}
	if o.Tenant != "" {
		q.Set("tenant", o.Tenant)
	}
	if o.Limit != 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}
	var l api.ErrorList
	return l, c.call(ctx, http.MethodGet, "/errors", q, nil, &l)
}

// Guidance returns a description of a sandbox for a model, as text for a system prompt.
func (c *Client) Guidance(ctx context.Context, o api.GuidanceOptions) (api.Guidance, error) {
	q := url.Values{}
	if o.Sandbox != "" {
		q.Set("sandbox", o.Sandbox)
	}
	if o.Profile != "" {
		q.Set("profile", o.Profile)
	}
	if o.AllSkills {
		q.Set("all_skills", "true")
	}
	var g api.Guidance
	return g, c.call(ctx, http.MethodGet, "/guidance", q, nil, &g)
}

// ReadText reads lines of a text file in a sandbox, with limits that suit a model. ReadText,
// WriteText, EditText, Glob and Grep work in the sandbox's workspace, or in the given root.
func (c *Client) ReadText(ctx context.Context, ref string, r api.ToolRead) (api.ToolText, error) {
	return callTool[api.ToolText](ctx, c, ref, "read", r.ToolPlace, r)
}

// WriteText replaces a text file in a sandbox, or creates it with its parent directories.
func (c *Client) WriteText(ctx context.Context, ref string, w api.ToolWrite) (api.ToolWritten, error) {
	return callTool[api.ToolWritten](ctx, c, ref, "write", w.ToolPlace, w, "content", w.Content)
}

// EditText replaces text in a file in a sandbox.
func (c *Client) EditText(ctx context.Context, ref string, e api.ToolEdit) (api.ToolWritten, error) {
	return callTool[api.ToolWritten](ctx, c, ref, "edit", e.ToolPlace, e, "old", e.Old, "new", e.New)
}

// Glob finds files in a sandbox by name, most recently changed first.
func (c *Client) Glob(ctx context.Context, ref string, g api.ToolGlob) (api.ToolFiles, error) {
	return callTool[api.ToolFiles](ctx, c, ref, "glob", g.ToolPlace, g, "pattern", g.Pattern)
}

// Grep finds lines in text files in a sandbox.
func (c *Client) Grep(ctx context.Context, ref string, g api.ToolGrep) (api.ToolLines, error) {
	return callTool[api.ToolLines](ctx, c, ref, "grep", g.ToolPlace, g, "pattern", g.Pattern, "include", g.Include)
}

// callTool calls a file tool. texts are pairs of names and values that must be valid UTF-8.
func callTool[Out any](ctx context.Context, c *Client, ref, name string, at api.ToolPlace, in any, texts ...string) (out Out, err error) {
	p, err := sandboxPath(ref, "/tools/"+name)
	if err != nil {
		return out, err
	}
	if err := checkNaming("", at.Naming); err != nil {
		return out, err
	}
	if err := checkTexts("", append(texts, "root", at.Root, "path", at.Path)...); err != nil {
		return out, err
	}
	return out, c.call(ctx, http.MethodPost, p, nil, in, &out)
}
