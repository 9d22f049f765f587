//go:build linux

package attack_test

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/api/openapi"
	"github.com/cloche-dev/cloche/client"
)

// stoppedCall is one operation of the API as TestAttackStopped asks for it.
type stoppedCall struct {
	// path has the query too; empty is a call that by makes: a WebSocket, or a stream that is
	// read to its first line.
	path string
	// body is JSON, or the name of one of stoppedBodies.
	body string
	// by makes the call with the Go client; nil is an operation of clientLess.
	by func(context.Context, *client.Client) error
	// may are the errors that it may have if nothing is stopped.
	may []api.Code
	// own is what the call itself waits for, beside its deadline: a grace period, or the
	// timeout of a program with the time after which the daemon ends it.
	own time.Duration
}

// clientLess are the operations that the Go client has no method for, and who asks for them.
var clientLess = map[string]string{
	"createSandboxStream": "the client asks createSandbox for the same stream",
	"getContract":         "people and generators read it",
	"getHealth":           "the client asks for it by itself, and probes do",
	"getMetrics":          "Prometheus asks for it",
	"getReadiness":        "probes ask for it",
}

// did drops a result.
func did[T any](_ T, err error) error { return err }

// closed closes what a call has opened.
func closed(c io.Closer, err error) error {
	if err == nil {
		_ = c.Close()
	}
	return err
}

// programTime is the timeout of programs, and programMost what they may take with it: the
// daemon ends one that its agent does not end, after it has asked the agent twice about one
// that has not begun.
const (
	programTime = 3 * time.Second
	programMost = programTime + agentGrace + 10*time.Second
)

// calls are those of every operation, by its id. {key}, {job} and {engine} in paths and
// bodies stand for what the set-up made.
func (s *stoppedPart) calls() map[string]stoppedCall {
	all := map[string]stoppedCall{}
	for _, some := range []map[string]stoppedCall{
		s.sandboxCalls(), s.endingCalls(), s.programCalls(), s.processCalls(), s.endpointCalls(), s.fileCalls(), s.toolCalls(), imageCalls(), s.keptCalls(), skillCalls(),
		recordCalls(), s.ruleCalls(), daemonCalls(),
	} {
		maps.Copy(all, some)
	}
	return all
}

func (s *stoppedPart) sandboxCalls() map[string]stoppedCall {
	return map[string]stoppedCall{
		"createSandbox": {path: "/v1/sandboxes", body: `{"name":"made","engine":"{engine}","network":"on"}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.Create(ctx, api.SandboxSpec{}))
		}},
		"createSandboxStream": {path: "/v1/sandboxes/stream", body: `{"name":"made-stream","engine":"{engine}"}`},
		"createSandboxes": {path: "/v1/batch/create", body: `{"specs":[{"name":"made-batch","engine":"{engine}"}]}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.CreateMany(ctx, api.BatchCreate{Specs: []api.SandboxSpec{{}}}))
		}},
		"holdSandbox":     {by: func(ctx context.Context, c *client.Client) error { return s.hold(ctx, c) }},
		"listSandboxes":   {path: "/v1/sandboxes", by: func(ctx context.Context, c *client.Client) error { return did(c.List(ctx, api.ListOptions{})) }},
		"getSandboxes":    {path: "/v1/batch/status", body: `{"ids":["box"]}`, by: func(ctx context.Context, c *client.Client) error { return did(c.StatusMany(ctx, "box")) }},
		"getSandbox":      {path: "/v1/sandboxes/box", by: func(ctx context.Context, c *client.Client) error { return did(c.Get(ctx, "box")) }},
		"getSandboxStats": {path: "/v1/sandboxes/box/stats", by: func(ctx context.Context, c *client.Client) error { return did(c.Stats(ctx, "box")) }},
		"startSandbox":    {path: "/v1/sandboxes/box/start", by: func(ctx context.Context, c *client.Client) error { return did(c.StartSandbox(ctx, "box")) }},
		"heartbeat":       {path: "/v1/sandboxes/box/heartbeat", by: func(ctx context.Context, c *client.Client) error { return did(c.Heartbeat(ctx, "box")) }},
		"extend": {path: "/v1/sandboxes/box/extend", body: `{"lifetime_ms":60000}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.Extend(ctx, "box", time.Minute))
		}},
	}
}

// endingCalls each have a sandbox of their own.
func (s *stoppedPart) endingCalls() map[string]stoppedCall {
	return map[string]stoppedCall{
		"stopSandbox": {path: "/v1/sandboxes/box-stop/stop", body: `{"grace_ms":1000}`, own: time.Second, by: func(ctx context.Context, c *client.Client) error {
			return did(c.Stop(ctx, "box-stop", api.StopOptions{}))
		}},
		"killSandbox":        {path: "/v1/sandboxes/box-kill/kill", by: func(ctx context.Context, c *client.Client) error { return did(c.Kill(ctx, "box-kill")) }},
		"removeSandbox":      {path: "/v1/sandboxes/box-remove", by: func(ctx context.Context, c *client.Client) error { return c.Remove(ctx, "box-remove") }},
		"removeSandboxByKey": {path: "/v1/sandboxes?idempotency_key=box-key", by: func(ctx context.Context, c *client.Client) error { return did(c.RemoveByKey(ctx, "box-key")) }},
		"removeSandboxes": {path: "/v1/batch/remove", body: `{"ids":["box-batch"]}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.RemoveMany(ctx, api.BatchSelect{IDs: []string{"box-batch"}}))
		}},
		"pauseSandbox":   {path: "/v1/sandboxes/box-pause/pause", by: func(ctx context.Context, c *client.Client) error { return did(c.Pause(ctx, "box-pause")) }},
		"suspendSandbox": {path: "/v1/sandboxes/box-suspend/suspend", by: func(ctx context.Context, c *client.Client) error { return did(c.Suspend(ctx, "box-suspend")) }},
		"forkSandbox": {path: "/v1/sandboxes/box-fork/fork", body: `{"names":["made-fork"]}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.Fork(ctx, "box-fork", api.ForkRequest{Names: []string{"made-fork-client"}}))
		}},
		"resumeSandbox": {path: "/v1/sandboxes/box-resume/resume", by: func(ctx context.Context, c *client.Client) error { return did(c.Resume(ctx, "box-resume")) }},
	}
}

func (s *stoppedPart) programCalls() map[string]stoppedCall {
	ms := programTime.Milliseconds()
	req := api.ExecRequest{Argv: []string{"true"}, TimeoutMS: &ms}
	const timed = `{"argv":["true"],"timeout_ms":3000}`
	phase := api.JobPhase{Commands: []api.JobCommand{{Argv: []string{"true"}, TimeoutMS: ms}}}
	return map[string]stoppedCall{
		"exec": {path: "/v1/sandboxes/box-exec/exec", body: timed, own: programMost, by: func(ctx context.Context, c *client.Client) error { return did(c.Exec(ctx, "box-exec", req)) }},
		"execStream": {own: programMost, by: func(ctx context.Context, c *client.Client) error {
			return s.streamed(c.ExecStream(ctx, "box-exec", req))
		}},
		"run": {path: "/v1/run", body: `{"spec":{"engine":"{engine}"},"exec":` + timed + `}`, own: programMost, by: func(ctx context.Context, c *client.Client) error {
			return did(c.Run(ctx, api.RunRequest{Exec: req}))
		}},
		"runStream": {own: programMost, by: func(ctx context.Context, c *client.Client) error {
			return s.streamed(c.RunStream(ctx, api.RunRequest{Spec: api.SandboxSpec{Engine: s.engine}, Exec: req}, nil))
		}},
		"runJob": {path: "/v1/jobs", body: `{"sandbox":"box-job","run":{"commands":[` + timed + `]}}`, own: programMost, by: func(ctx context.Context, c *client.Client) error {
			return did(c.RunJob(ctx, api.JobSpec{Sandbox: "box-job", Run: phase}, nil))
		}},
		"listJobs": {path: "/v1/jobs", by: func(ctx context.Context, c *client.Client) error { return did(c.Jobs(ctx, 0)) }},
		"getJob":   {path: "/v1/jobs/{job}", by: func(ctx context.Context, c *client.Client) error { return did(c.Job(ctx, s.job)) }},
		"continueJob": {path: "/v1/jobs/{job}/continue", body: `{"handler":"hold"}`, may: []api.Code{api.CodeState}, by: func(ctx context.Context, c *client.Client) error {
			return did(c.ContinueJob(ctx, s.job, api.JobContinue{Handler: "hold"}))
		}},
		"cancelJob": {path: "/v1/jobs/{job}", by: func(ctx context.Context, c *client.Client) error { return did(c.CancelJob(ctx, s.job)) }},
	}
}

func (s *stoppedPart) processCalls() map[string]stoppedCall {
	const web = "/v1/sandboxes/box/processes/web"
	spec := api.ProcessSpec{ExecRequest: api.ExecRequest{Argv: []string{"true"}}}
	return map[string]stoppedCall{
		"startProcess": {path: "/v1/sandboxes/box/processes", body: `{"argv":["true"]}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.StartProcess(ctx, "box", spec))
		}},
		"listProcesses": {path: "/v1/sandboxes/box/processes", by: func(ctx context.Context, c *client.Client) error { return did(c.Processes(ctx, "box")) }},
		"getProcess":    {path: web, by: func(ctx context.Context, c *client.Client) error { return did(c.Process(ctx, "box", "web")) }},
		"removeProcess": {path: "/v1/sandboxes/box/processes/gone", by: func(ctx context.Context, c *client.Client) error { return c.RemoveProcess(ctx, "box", "gone") }},
		"waitProcess": {path: web + "/wait", body: `{"timeout_ms":3000}`, own: programTime, by: func(ctx context.Context, c *client.Client) error {
			return did(c.WaitProcess(ctx, "box", "web", api.WaitRequest{}))
		}},
		"signalProcess": {path: "/v1/sandboxes/box/processes/tty/signal", body: `{"signal":"CONT"}`, by: func(ctx context.Context, c *client.Client) error {
			return c.SignalProcess(ctx, "box", "tty", api.SignalRequest{Signal: "CONT"})
		}},
		"resizeProcess": {path: "/v1/sandboxes/box/processes/tty/resize", body: `{"rows":9,"cols":9}`, by: func(ctx context.Context, c *client.Client) error {
			return c.ResizeProcess(ctx, "box", "tty", api.Size{Rows: 9, Cols: 9})
		}},
		"createContext": {path: "/v1/sandboxes/box/contexts", body: `{"language":"none"}`, may: []api.Code{api.CodeUnsupported}, by: func(ctx context.Context, c *client.Client) error {
			return did(c.CreateContext(ctx, "box", api.CodeContextSpec{Language: "none"}))
		}},
		"listContexts": {path: "/v1/sandboxes/box/contexts", by: func(ctx context.Context, c *client.Client) error { return did(c.Contexts(ctx, "box")) }},
		"restartContext": {path: "/v1/sandboxes/box/contexts/none/restart", may: []api.Code{api.CodeNotFound}, by: func(ctx context.Context, c *client.Client) error {
			return c.RestartContext(ctx, "box", "none")
		}},
		"removeContext": {path: "/v1/sandboxes/box/contexts/none", may: []api.Code{api.CodeNotFound}, by: func(ctx context.Context, c *client.Client) error {
			return c.RemoveContext(ctx, "box", "none")
		}},
		"runCode": {path: "/v1/sandboxes/box/code", body: `{"code":"1","context":"none"}`, may: []api.Code{api.CodeNotFound}, by: func(ctx context.Context, c *client.Client) error {
			return c.RunCode(ctx, "box", api.CodeRequest{Code: "1", Context: "none"}, func(api.CodeEvent) error { return nil })
		}},
		"writeStdin": {path: web + "/stdin", body: "text", by: func(ctx context.Context, c *client.Client) error {
			return did(c.WriteStdin(ctx, "box", "web", nil, strings.NewReader("text"), false))
		}},
		"attachProcess": {by: func(ctx context.Context, c *client.Client) error {
			a, err := c.Attach(ctx, "box", "web", api.AttachRequest{})
			if err != nil {
				return err
			}
			defer a.Close()
			if !s.answers {
				_, err = a.Recv()
			}
			return err
		}},
		"readLogs": {path: "/v1/sandboxes/box/logs?exec_id=web&follow={follow}", by: func(ctx context.Context, c *client.Client) error {
			return c.Logs(ctx, "box", api.LogOptions{ExecID: "web", Follow: true}, func(api.LogEntry) error { return nil })
		}},
		"openPort": {path: "/v1/sandboxes/box/ports", body: `{"port":7100}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.OpenPort(ctx, "box", api.PortSpec{Port: 7100}))
		}},
		"listPorts": {path: "/v1/sandboxes/box/ports", by: func(ctx context.Context, c *client.Client) error { return did(c.OpenPorts(ctx, "box")) }},
		"closePort": {path: "/v1/sandboxes/box/ports/7101", by: func(ctx context.Context, c *client.Client) error { return c.ClosePort(ctx, "box", 7101) }, may: []api.Code{api.CodeNotFound}},
		"dialPort":  {by: func(ctx context.Context, c *client.Client) error { return closed(c.DialPort(ctx, "box", 1)) }, may: []api.Code{api.CodeInvalid, api.CodeUnavailable, api.CodeDenied}},
	}
}

func (s *stoppedPart) endpointCalls() map[string]stoppedCall {
	const at = "/v1/sandboxes/box/endpoints"
	e := api.Endpoint{Name: "added", Target: "http://127.0.0.1:9"}
	return map[string]stoppedCall{
		"listEndpoints": {path: at, by: func(ctx context.Context, c *client.Client) error { return did(c.Endpoints(ctx, "box")) }},
		"addEndpoint": {path: at, body: `{"name":"added","target":"http://127.0.0.1:9","listen":"127.0.0.1:7001"}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.AddEndpoint(ctx, "box", e))
		}},
		"getEndpoint": {path: at + "/data", by: func(ctx context.Context, c *client.Client) error { return did(c.Endpoint(ctx, "box", "data")) }},
		"setEndpoint": {path: at + "/set", body: `{"name":"set","target":"http://127.0.0.1:9","listen":"127.0.0.1:7002"}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.SetEndpoint(ctx, "box", e))
		}},
		"removeEndpoint": {path: at + "/gone?grace_ms=0", by: func(ctx context.Context, c *client.Client) error {
			return did(c.RemoveEndpoint(ctx, "box", "gone", nil))
		}},
		"readEndpointEvents": {path: at + "/data/events?follow=false", by: func(ctx context.Context, c *client.Client) error {
			return c.Events(ctx, api.EventOptions{Sandbox: "box", Endpoint: "data", Follow: true}, func(api.Event) error { return nil })
		}},
		"serveEndpoint": {by: func(ctx context.Context, c *client.Client) error {
			return closed(c.ListenEndpoint(ctx, "box", "served"))
		}},
	}
}

func (s *stoppedPart) fileCalls() map[string]stoppedCall {
	const at = "/v1/sandboxes/box/"
	return map[string]stoppedCall{
		"readFile": {path: at + "files?path=/etc/passwd", by: func(ctx context.Context, c *client.Client) error { return did(c.ReadFile(ctx, "box", "/etc/passwd")) }},
		"writeFile": {path: at + "files?path=/workspace/new", body: "text", by: func(ctx context.Context, c *client.Client) error {
			return did(c.WriteFile(ctx, "box", "/workspace/new", []byte("text"), 0))
		}},
		"removeFile": {path: at + "files?path=/workspace/gone", by: func(ctx context.Context, c *client.Client) error {
			return c.RemoveFile(ctx, "box", "/workspace/gone", false)
		}},
		"statFile": {path: at + "files/stat?path=/workspace", by: func(ctx context.Context, c *client.Client) error { return did(c.StatFile(ctx, "box", "/workspace")) }},
		"watchFiles": {by: func(ctx context.Context, c *client.Client) error {
			begun := errors.New("the watch has begun")
			err := c.Files("box", api.FileAccess{}).Watch(ctx, "/workspace", api.WatchOptions{}, func(api.FileChange) error { return begun })
			if errors.Is(err, begun) {
				return nil
			}
			return err
		}},
		"listFiles": {path: at + "files/list?path=/workspace", by: func(ctx context.Context, c *client.Client) error {
			return did(c.ListFiles(ctx, "box", "/workspace", "", 0))
		}},
		"moveFile": {path: at + "files/move?path=/workspace/moved&to=/workspace/there", by: func(ctx context.Context, c *client.Client) error {
			return c.MoveFile(ctx, "box", "/workspace/moved", "/workspace/there")
		}},
		"makeDir": {path: at + "files/mkdir?path=/workspace/dir", by: func(ctx context.Context, c *client.Client) error { return c.MakeDir(ctx, "box", "/workspace/dir", 0) }},
		"tarOut": {path: at + "tar?path=/workspace/kept", by: func(ctx context.Context, c *client.Client) error {
			return did(c.TarOut(ctx, "box", "/workspace/kept", api.TarOutOptions{}, io.Discard))
		}},
		"tarIn": {path: at + "tar?path=/workspace/unpacked", body: "tar", by: func(ctx context.Context, c *client.Client) error {
			return did(c.TarIn(ctx, "box", "/workspace/unpacked", api.TarInOptions{}, strings.NewReader("")))
		}},
	}
}

func (s *stoppedPart) toolCalls() map[string]stoppedCall {
	const at = "/v1/sandboxes/box/tools/"
	kept := api.ToolPlace{Path: "kept"}
	return map[string]stoppedCall{
		"toolRead": {path: at + "read", body: `{"path":"kept"}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.ReadText(ctx, "box", api.ToolRead{ToolPlace: kept}))
		}},
		"toolWrite": {path: at + "write", body: `{"path":"written","content":"x"}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.WriteText(ctx, "box", api.ToolWrite{ToolPlace: kept}))
		}},
		"toolEdit": {path: at + "edit", body: `{"path":"edited","old":"text","new":"other"}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.EditText(ctx, "box", api.ToolEdit{ToolPlace: kept, Old: "text", New: "other"}))
		}},
		"toolGlob": {path: at + "glob", body: `{"pattern":"*"}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.Glob(ctx, "box", api.ToolGlob{Pattern: "*"}))
		}},
		"toolGrep": {path: at + "grep", body: `{"pattern":"text"}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.Grep(ctx, "box", api.ToolGrep{Pattern: "text"}))
		}},
	}
}

func imageCalls() map[string]stoppedCall {
	return map[string]stoppedCall{
		"listImages":   {path: "/v1/images", by: func(ctx context.Context, c *client.Client) error { return did(c.Images(ctx)) }},
		"removeImage":  {path: "/v1/images?image=gone", by: func(ctx context.Context, c *client.Client) error { return c.RemoveImage(ctx, "gone") }},
		"inspectImage": {path: "/v1/images/inspect?image=kept", by: func(ctx context.Context, c *client.Client) error { return did(c.InspectImage(ctx, "kept")) }},
		// No server listens there.
		"pullImage": {path: "/v1/images/pull", body: `{"image":"127.0.0.1:1/none:1"}`, may: []api.Code{api.CodeUnavailable, api.CodeDenied}, by: func(ctx context.Context, c *client.Client) error {
			return did(c.Pull(ctx, api.PullRequest{Image: "127.0.0.1:1/none:1"}))
		}},
		"importImage": {path: "/v1/images/import?name=imported", body: "tar", by: func(ctx context.Context, c *client.Client) error {
			return did(c.ImportImage(ctx, bytes.NewReader(rootTar()), api.ImportOptions{Name: "imported"}))
		}},
		"packImage": {path: "/v1/images/pack", body: `{"name":"packed","paths":["/bin/true"]}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.PackImage(ctx, api.ImagePackRequest{Name: "packed", Paths: []string{"/bin/true"}}))
		}},
		"buildImage": {path: "/v1/images/build", body: `{"name":"built","dockerfile":"FROM host\nENV A=b"}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.BuildImage(ctx, api.ImageBuildRequest{Name: "built", Dockerfile: "FROM host\nENV A=b"}, nil, func(api.BuildEvent) error { return nil }))
		}},
		"exportImage": {path: "/v1/images/export?image=kept", by: func(ctx context.Context, c *client.Client) error { return c.ExportImage(ctx, "kept", io.Discard) }},
		"commitImage": {path: "/v1/sandboxes/box/image", body: `{"name":"committed"}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.CommitImage(ctx, "box", api.ImageCommitRequest{Name: "committed"}))
		}},
		"pruneImages": {path: "/v1/images/prune", body: `{"dry_run":true,"max_bytes":0}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.PruneImages(ctx, api.ImagePruneRequest{DryRun: true}))
		}},
	}
}

// keptCalls are about workspaces and snapshots. The sandbox of a layered workspace must have
// ended before it can be committed.
func (s *stoppedPart) keptCalls() map[string]stoppedCall {
	once := []api.Code{api.CodeState, api.CodeConflict, api.CodeUnsupported} // the two settle one layer
	return map[string]stoppedCall{
		"createWorkspace": {path: "/v1/workspaces", body: `{"name":"made"}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.CreateWorkspace(ctx, api.WorkspaceSpec{Name: "made"}))
		}},
		"listWorkspaces":  {path: "/v1/workspaces", by: func(ctx context.Context, c *client.Client) error { return did(c.Workspaces(ctx)) }},
		"getWorkspace":    {path: "/v1/workspaces/kept", by: func(ctx context.Context, c *client.Client) error { return did(c.GetWorkspace(ctx, "", "kept")) }},
		"removeWorkspace": {path: "/v1/workspaces/gone", by: func(ctx context.Context, c *client.Client) error { return c.RemoveWorkspace(ctx, "", "gone") }},
		"diffSandbox": {path: "/v1/sandboxes/box-diff/diff", may: once, by: func(ctx context.Context, c *client.Client) error {
			return did(c.Diff(ctx, "box-diff", api.DiffOptions{}))
		}},
		"commitWorkspace":   {path: "/v1/sandboxes/box-layer/commit", may: once, by: func(ctx context.Context, c *client.Client) error { return did(c.CommitWorkspace(ctx, "box-layer")) }},
		"rollbackWorkspace": {path: "/v1/sandboxes/box-layer/rollback", may: once, by: func(ctx context.Context, c *client.Client) error { return did(c.RollbackWorkspace(ctx, "box-layer")) }},
		"createSnapshot": {path: "/v1/sandboxes/box-snapshot/snapshots", body: `{"name":"made"}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.CreateSnapshot(ctx, "box-snapshot", api.SnapshotRequest{}))
		}},
		"listSnapshots":  {path: "/v1/snapshots", by: func(ctx context.Context, c *client.Client) error { return did(c.Snapshots(ctx)) }},
		"getSnapshot":    {path: "/v1/snapshots/kept", by: func(ctx context.Context, c *client.Client) error { return did(c.GetSnapshot(ctx, "kept")) }},
		"removeSnapshot": {path: "/v1/snapshots/gone", by: func(ctx context.Context, c *client.Client) error { return c.RemoveSnapshot(ctx, "gone") }},
	}
}

func skillCalls() map[string]stoppedCall {
	return map[string]stoppedCall{
		"listSkills": {path: "/v1/skills", by: func(ctx context.Context, c *client.Client) error { return did(c.Skills(ctx, false)) }},
		"createSkill": {path: "/v1/skills", body: `{"name":"made","description":"d"}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.CreateSkill(ctx, api.SkillSpec{Name: "made"}))
		}},
		"previewSkills": {path: "/v1/skills/preview", body: "zip", by: func(ctx context.Context, c *client.Client) error {
			return did(c.PreviewSkills(ctx, bytes.NewReader(skillZip()), api.SkillArchive{}))
		}},
		"installSkills": {path: "/v1/skills/install", body: "zip", by: func(ctx context.Context, c *client.Client) error {
			return did(c.InstallSkills(ctx, bytes.NewReader(skillZip()), api.SkillArchive{}))
		}},
		"getSkill": {path: "/v1/skills/kept", by: func(ctx context.Context, c *client.Client) error { return did(c.GetSkill(ctx, "kept")) }},
		"updateSkill": {path: "/v1/skills/kept", body: `{"description":"other"}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.UpdateSkill(ctx, "kept", api.SkillChange{}))
		}},
		"removeSkill": {path: "/v1/skills/gone", by: func(ctx context.Context, c *client.Client) error { return c.RemoveSkill(ctx, "gone") }},
		"listSkillFiles": {path: "/v1/skills/kept/files", by: func(ctx context.Context, c *client.Client) error {
			return did(c.SkillFiles(ctx, "kept", client.SkillFileOptions{}))
		}},
		"readSkillFile": {path: "/v1/skills/kept/data?path=SKILL.md", by: func(ctx context.Context, c *client.Client) error {
			return closed(c.OpenSkillFile(ctx, "kept", "SKILL.md"))
		}},
		"writeSkillFile": {path: "/v1/skills/kept/data?path=new.md", body: "text", by: func(ctx context.Context, c *client.Client) error {
			return c.WriteSkillFile(ctx, "kept", "new.md", strings.NewReader("text"))
		}},
		"removeSkillFile": {path: "/v1/skills/kept/data?path=gone.md", by: func(ctx context.Context, c *client.Client) error { return c.RemoveSkillFile(ctx, "kept", "gone.md") }},
	}
}

// recordCalls are about recordings, which do not exist.
func recordCalls() map[string]stoppedCall {
	none := []api.Code{api.CodeNotFound}
	return map[string]stoppedCall{
		"listRecordings": {path: "/v1/recordings", by: func(ctx context.Context, c *client.Client) error { return did(c.Recordings(ctx)) }},
		"getRecording":   {path: "/v1/recordings/none", may: none, by: func(ctx context.Context, c *client.Client) error { return did(c.Recording(ctx, "none")) }},
		"readRecording":  {path: "/v1/recordings/none/data", may: none, by: func(ctx context.Context, c *client.Client) error { return closed(c.OpenRecording(ctx, "none")) }},
		"putRecording": {path: "/v1/recordings/put/data", body: "text", may: []api.Code{api.CodeInvalid}, by: func(ctx context.Context, c *client.Client) error {
			return did(c.PutRecording(ctx, "put", strings.NewReader("text")))
		}},
		"removeRecording": {path: "/v1/recordings/none", may: none, by: func(ctx context.Context, c *client.Client) error { return c.RemoveRecording(ctx, "none") }},
	}
}

func (s *stoppedPart) ruleCalls() map[string]stoppedCall {
	const at = "/v1/sandboxes/box/egress"
	return map[string]stoppedCall{
		"getEgress": {path: at, by: func(ctx context.Context, c *client.Client) error { return did(c.Egress(ctx, "box")) }},
		"changeEgress": {path: at, body: `{"allow":["example.net"]}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.ChangeEgress(ctx, "box", api.EgressChange{Allow: []string{"example.net"}}))
		}},
		"replaceEgress": {path: at, body: `{"network":"on","egress":{"allow":["example.org"]}}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.ReplaceEgress(ctx, "box", api.EgressPolicy{Network: api.NetworkOn}))
		}},
		"readEgressLog": {path: at + "/log", by: func(ctx context.Context, c *client.Client) error {
			return c.EgressLog(ctx, "box", api.EgressLogOptions{Follow: true}, func(api.EgressRecord) error { return nil })
		}},
		"listApprovals": {path: "/v1/approvals", by: func(ctx context.Context, c *client.Client) error {
			return did(c.Approvals(ctx, api.ApprovalOptions{}))
		}},
		"answerApproval": {path: "/v1/approvals/ap-none", body: `{"approve":false}`, may: []api.Code{api.CodeNotFound}, by: func(ctx context.Context, c *client.Client) error {
			return did(c.AnswerApproval(ctx, "ap-none", api.ApprovalAnswer{}))
		}},
		"createKey": {path: "/v1/keys", body: `{"tenant":"other"}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.CreateKey(ctx, api.KeySpec{Tenant: "other"}))
		}},
		"listKeys":    {path: "/v1/keys", by: func(ctx context.Context, c *client.Client) error { return did(c.Keys(ctx)) }},
		"revokeKey":   {path: "/v1/keys/{key}", by: func(ctx context.Context, c *client.Client) error { return did(c.RevokeKey(ctx, s.key)) }},
		"listSecrets": {path: "/v1/secrets", by: func(ctx context.Context, c *client.Client) error { return did(c.Secrets(ctx)) }},
		"explainPolicy": {path: "/v1/policy/explain", body: `{"verb":"exec","sandbox":"box","spec":{}}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.ExplainPolicy(ctx, api.PolicyQuestion{Verb: "exec", Sandbox: "box"}))
		}},
	}
}

func daemonCalls() map[string]stoppedCall {
	return map[string]stoppedCall{
		"readEvents": {path: "/v1/events?follow=false&after=0", by: func(ctx context.Context, c *client.Client) error {
			return c.Events(ctx, api.EventOptions{Follow: true}, func(api.Event) error { return nil })
		}},
		"readAudit": {path: "/v1/audit?tail=5", by: func(ctx context.Context, c *client.Client) error {
			return c.Audit(ctx, api.AuditOptions{Follow: true}, func(api.AuditRecord, []byte) error { return nil })
		}},
		"verifyAudit": {path: "/v1/audit/verify", by: func(ctx context.Context, c *client.Client) error {
			return did(c.VerifyAudit(ctx, api.AuditVerifyOptions{}))
		}},
		"auditUsage": {path: "/v1/audit/usage", by: func(ctx context.Context, c *client.Client) error {
			return did(c.AuditUsage(ctx, api.AuditUsageOptions{}))
		}},
		"getStatus":  {path: "/v1/status", by: func(ctx context.Context, c *client.Client) error { return did(c.Status(ctx)) }},
		"getDoctor":  {path: "/v1/doctor", by: func(ctx context.Context, c *client.Client) error { return did(c.Doctor(ctx)) }},
		"getMetrics": {path: "/v1/metrics"},
		"listErrors": {path: "/v1/errors", by: func(ctx context.Context, c *client.Client) error { return did(c.Errors(ctx, api.ErrorOptions{})) }},
		"getGuidance": {path: "/v1/guidance?sandbox=box", by: func(ctx context.Context, c *client.Client) error {
			return did(c.Guidance(ctx, api.GuidanceOptions{}))
		}},
		"getInfo":      {path: "/v1/info", by: func(ctx context.Context, c *client.Client) error { return did(c.Info(ctx)) }},
		"getVersion":   {path: "/v1/version", by: func(ctx context.Context, c *client.Client) error { return did(c.Version(ctx)) }},
		"getHealth":    {path: "/healthz"},
		"getReadiness": {path: "/readyz"},
		"getContract":  {path: "/v1/openapi.yaml"},
		"resolveName": {path: "/v1/names/resolve", body: `{"identity":{"launcher_type":"a","launcher_id":"b"}}`, by: func(ctx context.Context, c *client.Client) error {
			return did(c.ResolveName(ctx, api.Naming{}))
		}},
	}
}

// operation is one of the contract's.
type operation struct {
	method, path, deadline string
	// kind is the type of its body.
	kind string
}

// is reports whether a request is one of the operation.
func (o operation) is(method, path string) bool {
	path, _, _ = strings.Cut(path, "?")
	want, got := strings.Split(o.path, "/"), strings.Split(path, "/")
	if method != o.method || len(want) != len(got) {
		return false
	}
	for i := range want {
		if !strings.HasPrefix(want[i], "{") && want[i] != got[i] {
			return false
		}
	}
	return true
}

// operations are those of the contract, by their ids.
func operations(t *testing.T) map[string]operation {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(openapi.OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]operation{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			o := operation{method: method, path: path}
			o.deadline, _ = op.Extensions["x-deadline"].(string)
			if op.RequestBody != nil {
				for kind := range op.RequestBody.Value.Content {
					if o.kind == "" || kind == "application/json" { // which the bodies here are
						o.kind = kind
					}
				}
			}
			all[op.OperationID] = o
		}
	}
	return all
}

// TestStoppedCallsAreComplete: TestAttackStopped asks for every operation of the contract,
// as itself and by the Go client.
func TestStoppedCallsAreComplete(t *testing.T) {
	ops, calls := operations(t), (&stoppedPart{}).calls()
	for id, op := range ops {
		call, ok := calls[id]
		if !ok {
			t.Errorf("%s (%s %s) is asked for by no call", id, op.method, op.path)
			continue
		}
		if op.deadline == "" {
			t.Errorf("%s has no deadline", id)
		}
		if call.path != "" && !op.is(op.method, call.path) || call.path == "" && op.method != http.MethodGet {
			t.Errorf("%s is %s %s, and its call has the path %q", id, op.method, op.path, call.path)
		}
		if reason := clientLess[id]; (reason == "") != (call.by != nil) || call.path == "" && call.by == nil {
			t.Errorf("%s: by the Go client %t, and a reason for none is %q", id, call.by != nil, reason)
		}
	}
	for id := range calls {
		if _, ok := ops[id]; !ok {
			t.Errorf("%s is no operation of the contract", id)
		}
	}
}

// skillZip is a package with one skill.
func skillZip() []byte {
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	if f, err := z.Create("zipped/SKILL.md"); err == nil {
		_, _ = f.Write([]byte("---\nname: zipped\ndescription: d\n---\ntext\n"))
	}
	_ = z.Close()
	return out.Bytes()
}
