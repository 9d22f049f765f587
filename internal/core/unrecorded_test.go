//go:build linux

package core_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/engine/fake"
)

// verbsWithoutRecord are the methods of a Service that are served while the audit log
// cannot be written, and why.
func verbsWithoutRecord() map[string]string {
	const (
		looks   = "they change nothing and bring out no content of files"
		ends    = "an end is never held up by an audit log that cannot be written"
		input   = "belong to a process or an attach that is on record"
		fixture = "no caller asks for it"
		refuse  = "it is its parts, which are here by themselves"
	)
	out := map[string]string{
		"Logs": "what a process wrote is kept by the daemon, and the process is on record with its start",
	}
	for why, names := range map[string]string{ // of which the first three are in SECURITY.md
		looks: "Admit Approvals Audit AuditUsage Authenticate CallerOfKey Doctor Egress EgressLog EngineAtLeast Endpoint Endpoints Engines Errors Events " +
			"ExplainPolicy Get GetProcess GetRecording GetSkill GetSnapshot GetWorkspace Glob Guidance Images Info InspectImage Keys List OpenPorts " +
			"ListFiles WatchFiles Contexts Metrics PreviewSkills Job Jobs Processes Recordings ResolveName ScanSkill Secrets SkillFiles ReadSkillFile Skills " +
			"Ready Snapshots StatFile Stats Status StatusMany VerifyAudit WaitProcess Workspaces FollowJob Heartbeat",
		ends:    "CancelJob ClosePort Delete DeleteKeyed DeleteMany Kill Remove RemoveContext RemoveEndpoint RemoveProcess RestartContext Resume RevokeKey SignalProcess Stop",
		input:   "ResizeProcess WriteStdin",
		fixture: "Tree Answered Asked AuthorizePublish CloseJobs Ended Exchanged Happened KeepSkills Left MaySuspend RecoverJobs RefreshEgress Refused RefusedConnection RejectRules RestoreRules TellUnreadable TidyImages Used UseRules",
		refuse:  "CreateMany RunStream Hold AnswerApproval ContinueJob",
	} {
		for name := range strings.FieldsSeq(names) {
			out[name] = why
		}
	}
	return out
}

// Every method of a Service either is refused while the audit log cannot be written, and
// nothing is done, or is in the list of those that are served. A method that is in
// neither fails the test.
func TestNothingWithoutARecord(t *testing.T) {
	h := newFixture(t)
	ctx := t.Context()
	sb, err := h.Create(ctx, operator, api.SandboxSpec{Name: "box", Egress: &api.Egress{Allow: []string{"a.example"}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	port, err := h.OpenPort(ctx, operator, "box", api.PortSpec{Port: 80})
	if err != nil {
		t.Fatal(err)
	}
	// What runs in the sandbox of this engine has the host's files.
	file := filepath.Join(t.TempDir(), "file")
	at := func(path string) api.FilePlace { return api.FilePlace{Path: path} }
	if _, err := h.WriteFile(ctx, operator, "box", at(file), 0o600, strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	if _, err := h.CreateSkill(ctx, operator, api.SkillSpec{Name: "skill", Description: "d", Instructions: "i"}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := h.CreateWorkspace(ctx, operator, api.WorkspaceSpec{Name: "space"}); err != nil {
		t.Fatal(err)
	}
	snap, err := h.CreateSnapshot(ctx, operator, "box", api.SnapshotRequest{Name: "snap", Scope: api.SnapshotWorkspace})
	if err != nil {
		t.Fatal(err)
	}
	p, err := h.StartProcess(ctx, operator, "box", api.ProcessSpec{ExecRequest: api.ExecRequest{Shell: "sleep 1000", Cwd: "/"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Create(ctx, operator, api.SandboxSpec{Name: "ended"}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Stop(ctx, operator, "ended", nil); err != nil {
		t.Fatal(err)
	}
	if err := h.log.Close(); err != nil {
		t.Fatal(err)
	}
	tool := api.ToolPlace{Path: file}
	var out bytes.Buffer
	refused := map[string]func() error{
		"AddEndpoint": func() error {
			_, err := h.AddEndpoint(ctx, operator, "box", api.Endpoint{Name: "e", Target: "http://127.0.0.1:9"}, false)
			return err
		},
		"Attach": func() error { _, err := h.Attach(ctx, operator, "box", p.ExecID, api.AttachRequest{}); return err },
		"ChangeEgress": func() error {
			_, err := h.ChangeEgress(ctx, operator, "box", api.EgressChange{Allow: []string{"b.example"}})
			return err
		},
		"StartSandbox": func() error { _, err := h.StartSandbox(ctx, operator, "ended", nil); return err },
		"Create":       func() error { _, err := h.Create(ctx, operator, api.SandboxSpec{Name: "other"}, nil); return err },
		"CreateContext": func() error {
			_, err := h.CreateContext(ctx, operator, "box", api.CodeContextSpec{Cwd: "/"})
			return err
		},
		"RunCode": func() error {
			return h.RunCode(ctx, operator, "box", api.CodeRequest{Code: "1"}, func(api.CodeEvent) error { return nil })
		},
		"CreateKey": func() error { _, err := h.CreateKey(ctx, operator, api.KeySpec{Tenant: "acme"}); return err },
		"CreateSkill": func() error {
			_, err := h.CreateSkill(ctx, operator, api.SkillSpec{Name: "two", Description: "d", Instructions: "i"}, nil)
			return err
		},
		"CreateSnapshot": func() error {
			_, err := h.CreateSnapshot(ctx, operator, "box", api.SnapshotRequest{Scope: api.SnapshotWorkspace})
			return err
		},
		"CreateWorkspace": func() error {
			_, err := h.CreateWorkspace(ctx, operator, api.WorkspaceSpec{Name: "more"})
			return err
		},
		"OpenPort": func() error { _, err := h.OpenPort(ctx, operator, "box", api.PortSpec{Port: 81}); return err },
		"UsePort": func() error {
			_, err := h.UsePort(ctx, core.PortRequest{Sandbox: sb.ID, Port: 80, Exchange: true, Tokens: []string{port.Token}, Local: loopback})
			return err
		},
		"DialPort": func() error { _, err := h.DialPort(ctx, operator, "box", 80); return err },
		"Diff": func() error {
			_, err := h.Diff(ctx, operator, "box", api.DiffOptions{Scope: api.DiffRoot})
			return err
		},
		"EditText": func() error {
			_, err := h.EditText(ctx, operator, "box", api.ToolEdit{ToolPlace: tool, Old: "content", New: "else"})
			return err
		},
		"Exec": func() error {
			_, err := h.Exec(ctx, operator, "box", api.ExecRequest{Shell: "true", Cwd: "/"})
			return err
		},
		"ExecStream": func() error {
			_, err := h.ExecStream(ctx, operator, "box", api.ExecRequest{Shell: "true", Cwd: "/"})
			return err
		},
		"Extend": func() error {
			_, err := h.Extend(ctx, operator, "box", api.Extension{LifetimeMS: 60_000})
			return err
		},
		"Grep": func() error {
			_, err := h.Grep(ctx, operator, "box", api.ToolGrep{ToolPlace: tool, Pattern: "c"})
			return err
		},
		"ImportImage": func() error {
			_, err := h.ImportImage(ctx, operator, api.ImportOptions{Ref: "x:1"}, strings.NewReader(""))
			return err
		},
		"MakeDir": func() error {
			return h.MakeDir(ctx, operator, "box", at(file+"-dir"), api.MakeDirOptions{})
		},
		"MoveFile": func() error {
			return h.MoveFile(ctx, operator, "box", at(file), file+"-2")
		},
		"Pause":   func() error { _, err := h.Pause(ctx, operator, "box"); return err },
		"Fork":    func() error { _, err := h.Fork(ctx, operator, "box", api.ForkRequest{Count: 1}); return err },
		"Suspend": func() error { _, err := h.Suspend(ctx, operator, "box"); return err },
		"PruneImages": func() error {
			_, err := h.PruneImages(ctx, operator, api.ImagePruneRequest{MaxBytes: new(int64(0))})
			return err
		},
		"PullImage": func() error {
			_, err := h.PullImage(ctx, operator, api.PullRequest{Image: "127.0.0.1:1/x:1"})
			return err
		},
		"ReadFile": func() error {
			r, _, err := h.ReadFile(ctx, operator, "box", at(file), 0, -1)
			if r != nil {
				r.Close()
			}
			return err
		},
		"ReadText": func() error { _, err := h.ReadText(ctx, operator, "box", api.ToolRead{ToolPlace: tool}); return err },
		"RemoveFile": func() error {
			return h.RemoveFile(ctx, operator, "box", at(file), api.RemoveFileOptions{})
		},
		"RemoveSkill":     func() error { return h.RemoveSkill(ctx, operator, "skill") },
		"RemoveSkillFile": func() error { return h.RemoveSkillFile(ctx, operator, "skill", "SKILL.md") },
		"RemoveSnapshot":  func() error { return h.RemoveSnapshot(ctx, operator, snap.Name) },
		"RemoveWorkspace": func() error { return h.RemoveWorkspace(ctx, operator, "", "space") },
		"ReplaceEgress": func() error {
			_, err := h.ReplaceEgress(ctx, operator, "box", api.EgressPolicy{Network: api.NetworkOn, Egress: &api.Egress{Allow: []string{"c.example"}}})
			return err
		},
		"Run": func() error {
			_, err := h.Run(ctx, operator, api.RunRequest{Exec: api.ExecRequest{Shell: "true", Cwd: "/"}})
			return err
		},
		"StartProcess": func() error {
			_, err := h.StartProcess(ctx, operator, "box", api.ProcessSpec{ExecRequest: api.ExecRequest{Shell: "true", Cwd: "/"}})
			return err
		},
		"TarIn": func() error {
			_, err := h.TarIn(ctx, operator, "box", "/tmp", api.TarInOptions{}, strings.NewReader(""))
			return err
		},
		"TarOut": func() error {
			_, err := h.TarOut(ctx, operator, "box", file, api.TarOutOptions{}, &out)
			return err
		},
		"UpdateSkill": func() error {
			_, err := h.UpdateSkill(ctx, operator, "skill", api.SkillChange{Description: new("e")})
			return err
		},
		"WriteFile": func() error {
			_, err := h.WriteFile(ctx, operator, "box", at(file), 0o600, strings.NewReader("else"))
			return err
		},
		"WriteSkillFile": func() error { return h.WriteSkillFile(ctx, operator, "skill", "f", []byte("x")) },
		"WriteText": func() error {
			_, err := h.WriteText(ctx, operator, "box", api.ToolWrite{ToolPlace: tool, Content: "else"})
			return err
		},
	}
	for name, do := range refused {
		if err := do(); api.CodeOf(err) != api.CodeUnavailable || !strings.Contains(err.Error(), "audit") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if out.Len() > 0 {
		t.Errorf("%d bytes came out", out.Len())
	}
	// They need more than this fixture has, and have their own tests or take the same steps.
	elsewhere := map[string]string{
		"BuildImage": "image", "PackImage": "image", "CommitImage": "image", "ExportImage": "image", "RemoveImage": "image", "PackOnly": "image", "BuildPlan": "image", "TagImage": "image", "CommitWorkspace": "workspace", "RollbackWorkspace": "workspace", "InstallSkills": "skill",
		"PutRecording": "recording", "ReadRecording": "recording", "RemoveRecording": "recording", "ServeEndpoint": "endpoint", "StartJob": "job",
	}
	served := verbsWithoutRecord()
	page, err := os.ReadFile("../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(page)), " ")
	for _, name := range []string{"List", "Stop", "WriteStdin"} {
		if !strings.Contains(text, served[name]) {
			t.Errorf("SECURITY.md does not say why %s has no record before: %s", name, served[name])
		}
	}
	for m := range reflect.TypeFor[*core.Service]().Methods() {
		n := 0
		for _, known := range []bool{refused[m.Name] != nil, served[m.Name] != "", elsewhere[m.Name] != ""} {
			if known {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s is in %d lists: say whether it needs a record", m.Name, n)
		}
	}
	// Looks and ends go on, and what was refused was not done.
	if list, err := h.ListFiles(ctx, operator, "box", at(filepath.Dir(file)), "", 0); err != nil {
		t.Errorf("list: %v", err)
	} else {
		for _, f := range list.Files {
			if strings.Contains(f.Name, "file-") {
				t.Errorf("%s was made", f.Name)
			}
		}
	}
	if info, err := h.StatFile(ctx, operator, "box", at(file), false); err != nil || info.Size != int64(len("content")) {
		t.Errorf("the file is %+v, %v", info, err)
	}
	if got, err := h.Get(ctx, operator, sb.ID); err != nil || got.State != api.StateRunning {
		t.Errorf("the sandbox is %s, %v", got.State, err)
	}
	if err := h.SignalProcess(ctx, operator, "box", p.ExecID, api.SignalRequest{Signal: "KILL"}); err != nil {
		t.Errorf("signal: %v", err)
	}
	if _, err := h.Delete(ctx, operator, "box"); err != nil {
		t.Errorf("delete: %v", err)
	}
}

// A disk without room is told as that, not as an internal error, whichever verb meets it.
func TestFullDiskIsTold(t *testing.T) {
	h := newFixture(t)
	if _, err := h.Create(t.Context(), operator, api.SandboxSpec{Name: "box"}, nil); err != nil {
		t.Fatal(err)
	}
	for _, step := range []fake.Step{fake.StepPause, fake.StepResume} {
		h.machine.SetFaults(fake.Faults{})
		if step == fake.StepResume {
			if _, err := h.Pause(t.Context(), operator, "box"); err != nil {
				t.Fatal(err)
			}
		}
		h.machine.SetFaults(fake.Faults{Fail: map[fake.Step]error{step: fmt.Errorf("write: %w", syscall.ENOSPC)}})
		do := h.Pause
		if step == fake.StepResume {
			do = h.Resume
		}
		_, err := do(t.Context(), operator, "box")
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Code != api.CodeNoCapacity || !e.Retryable || e.Hint == "" {
			t.Errorf("at %s: %v", step, err)
		}
	}
}
