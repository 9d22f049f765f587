package mockcore

import (
	"context"
	"net/http"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// Errors is one of each kind.
func (c *Core) Errors(_ context.Context, caller core.Caller, o api.ErrorOptions) (api.ErrorList, error) {
	if o.Tenant != "" && o.Tenant != caller.Tenant {
		return api.ErrorList{}, nil
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return api.ErrorList{Errors: []api.ErrorRecord{
		{Time: at, Stage: api.StageExecution, Code: api.CodeNotFound, Message: "there is no sandbox \"box\"", RequestID: "rq-1", QueryID: "q-1", Tenant: caller.Tenant, Sandbox: "sb-1"},
		{Time: at.Add(-time.Minute), Stage: api.StageBuild, Code: api.CodeInvalid, Message: "name is not valid", Tenant: caller.Tenant},
	}}, nil
}

// Guidance says all that there can be to say.
func (c *Core) Guidance(_ context.Context, _ core.Caller, o api.GuidanceOptions) (api.Guidance, error) {
	return api.Guidance{
		Text: "You have a sandbox.\n", Sandbox: o.Sandbox, Profile: "default", Workspace: "/workspace", WorkspaceKept: true, Network: api.NetworkNone,
		Skills: []api.GuidanceSkill{{Name: "reports", Description: "writes reports", Path: "/workspace/.skills/reports/SKILL.md"}},
		Limits: api.Limits{CPUs: 1, MemoryBytes: 512 << 20},
	}, nil
}

// The file tools know one file, /workspace/f.

func textFile(at api.ToolPlace) error {
	if at.Path != "f" {
		return api.Errorf(api.CodeNotFound, "there is no file %q", at.Path)
	}
	return nil
}

// ReadText reads it.
func (c *Core) ReadText(_ context.Context, _ core.Caller, _ string, r api.ToolRead) (api.ToolText, error) {
	return api.ToolText{Path: "/workspace/f", Content: "text\n", FirstLine: 1, Lines: 1, Size: 5}, textFile(r.ToolPlace)
}

// WriteText makes it.
func (c *Core) WriteText(_ context.Context, _ core.Caller, _ string, w api.ToolWrite) (api.ToolWritten, error) {
	return api.ToolWritten{Path: "/workspace/f", Size: int64(len(w.Content)), Created: true}, textFile(w.ToolPlace)
}

// EditText changes it.
func (c *Core) EditText(_ context.Context, _ core.Caller, _ string, e api.ToolEdit) (api.ToolWritten, error) {
	return api.ToolWritten{Path: "/workspace/f", Size: 5, Replaced: 1, Line: 1}, textFile(e.ToolPlace)
}

// Glob finds it.
func (c *Core) Glob(_ context.Context, _ core.Caller, _ string, g api.ToolGlob) (api.ToolFiles, error) {
	if g.Pattern != "*" {
		return api.ToolFiles{}, nil
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return api.ToolFiles{Files: []api.ToolFile{{Path: "/workspace/f", Type: api.TypeFile, Size: 5, ModTime: at}}, Partial: api.PartialMatches}, nil
}

// Grep finds its line.
func (c *Core) Grep(_ context.Context, _ core.Caller, _ string, g api.ToolGrep) (api.ToolLines, error) {
	if g.Pattern != "text" {
		return api.ToolLines{Searched: 1}, nil
	}
	return api.ToolLines{
		Matches: []api.ToolMatch{{Path: "/workspace/f", Line: 1, Text: "text", Cut: true}}, Searched: 1,
		Binary: []string{"/workspace/b"}, Unread: []string{"/workspace/u"}, Partial: api.PartialTime,
	}, nil
}

// Metrics is one metric.
func (c *Core) Metrics(context.Context, core.Caller) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write([]byte("# HELP cloche_sandboxes Sandboxes by state.\n# TYPE cloche_sandboxes gauge\ncloche_sandboxes{state=\"running\"} 1\n"))
	}), nil
}
