package files

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
)

// onTool runs one file tool on the agent of a sandbox. The tool works in the sandbox's
// workspace where at names no other root.
func onTool[T any](ctx context.Context, f *Files, caller policy.Caller, verb policy.Verb, ref string, at *api.ToolPlace, call func(context.Context, *agent.Client, api.Sandbox) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return onAgent(ctx, f, caller, verb, ref, func(ctx context.Context, c *agent.Client, sb api.Sandbox) (T, error) {
		at.Naming = api.Naming{} // has chosen the sandbox
		if at.Root == "" {
			at.Root = sb.Workspace.Path
		}
		return call(ctx, c, sb)
	})
}

// ReadText reads lines of a text file.
func (f *Files) ReadText(ctx context.Context, caller policy.Caller, ref string, r api.ToolRead) (api.ToolText, error) {
	return onTool(ctx, f, caller, policy.VerbReadFile, ref, &r.ToolPlace, func(ctx context.Context, c *agent.Client, _ api.Sandbox) (api.ToolText, error) {
		return c.ReadText(ctx, r)
	})
}

// WriteText replaces a file, or makes it as the sandbox's user's.
func (f *Files) WriteText(ctx context.Context, caller policy.Caller, ref string, w api.ToolWrite) (api.ToolWritten, error) {
	return onTool(ctx, f, caller, policy.VerbWriteFile, ref, &w.ToolPlace, func(ctx context.Context, c *agent.Client, sb api.Sandbox) (api.ToolWritten, error) {
		return c.WriteText(ctx, sb.User, w)
	})
}

// EditText replaces text in a file.
func (f *Files) EditText(ctx context.Context, caller policy.Caller, ref string, e api.ToolEdit) (api.ToolWritten, error) {
	return onTool(ctx, f, caller, policy.VerbEditFile, ref, &e.ToolPlace, func(ctx context.Context, c *agent.Client, sb api.Sandbox) (api.ToolWritten, error) {
		return c.EditText(ctx, sb.User, e)
	})
}

// Glob finds files by name.
func (f *Files) Glob(ctx context.Context, caller policy.Caller, ref string, g api.ToolGlob) (api.ToolFiles, error) {
	return onTool(ctx, f, caller, policy.VerbListFiles, ref, &g.ToolPlace, func(ctx context.Context, c *agent.Client, _ api.Sandbox) (api.ToolFiles, error) {
		return c.Glob(ctx, g)
	})
}

// Grep finds lines in text files.
func (f *Files) Grep(ctx context.Context, caller policy.Caller, ref string, g api.ToolGrep) (api.ToolLines, error) {
	return onTool(ctx, f, caller, policy.VerbReadFile, ref, &g.ToolPlace, func(ctx context.Context, c *agent.Client, _ api.Sandbox) (api.ToolLines, error) {
		return c.Grep(ctx, g)
	})
}
