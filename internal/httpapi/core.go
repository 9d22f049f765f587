package httpapi

import (
	"context"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/core"
)

// Core is what this door needs of the house: core's verbs. A context that ends
// while a Run or a Create is under way makes core undo what it made; core needs
// no caller for that.
type Core interface {
	// Authenticate names the caller who showed an API key; live ends when the key
	// does, with the error that says so as its cause.
	Authenticate(token string) (caller core.Caller, live context.Context, err error)
	// Admit is asked once for each request, before anything else.
	Admit(ctx context.Context, caller core.Caller, verb core.Verb) error
	CreateKey(ctx context.Context, caller core.Caller, spec cloche.KeySpec) (cloche.NewKey, error)
	Keys(ctx context.Context, caller core.Caller) (cloche.KeyList, error)
	RevokeKey(ctx context.Context, caller core.Caller, id string) (cloche.Key, error)
	Secrets(ctx context.Context, caller core.Caller) (cloche.SecretList, error)
	ExplainPolicy(ctx context.Context, caller core.Caller, q cloche.PolicyQuestion) (cloche.PolicyAnswer, error)

	Create(ctx context.Context, caller core.Caller, spec cloche.SandboxSpec, progress func(step string)) (cloche.Sandbox, error)
	Get(ctx context.Context, caller core.Caller, ref string) (cloche.Sandbox, error)
	Stats(ctx context.Context, caller core.Caller, ref string) (cloche.SandboxStats, error)
	List(ctx context.Context, caller core.Caller, o cloche.ListOptions) (cloche.SandboxList, error)
	Delete(ctx context.Context, caller core.Caller, ref string) (cloche.Sandbox, error)
	DeleteKeyed(ctx context.Context, caller core.Caller, key string) (cloche.Sandbox, error)
	CreateMany(ctx context.Context, caller core.Caller, b cloche.BatchCreate) (cloche.BatchResult, error)
	StatusMany(ctx context.Context, caller core.Caller, sel cloche.BatchSelect) (cloche.BatchResult, error)
	DeleteMany(ctx context.Context, caller core.Caller, sel cloche.BatchSelect) (cloche.BatchResult, error)
	Stop(ctx context.Context, caller core.Caller, ref string, grace *time.Duration) (cloche.Sandbox, error)
	Kill(ctx context.Context, caller core.Caller, ref string) (cloche.Sandbox, error)
	Heartbeat(ctx context.Context, caller core.Caller, ref string) (cloche.Sandbox, error)
	Extend(ctx context.Context, caller core.Caller, ref string, x cloche.Extension) (cloche.Sandbox, error)
	Pause(ctx context.Context, caller core.Caller, ref string) (cloche.Sandbox, error)
	Resume(ctx context.Context, caller core.Caller, ref string) (cloche.Sandbox, error)
	// Hold makes a transient sandbox that is removed when release is called.
	Hold(ctx context.Context, caller core.Caller, spec cloche.SandboxSpec, progress func(step string)) (sb cloche.Sandbox, release func(), err error)
	Events(ctx context.Context, caller core.Caller, o cloche.EventOptions, fn func(cloche.Event) error) error

	Exec(ctx context.Context, caller core.Caller, ref string, req cloche.ExecRequest) (cloche.Result, error)
	ExecStream(ctx context.Context, caller core.Caller, ref string, req cloche.ExecRequest) (Stream, error)
	Run(ctx context.Context, caller core.Caller, req cloche.RunRequest) (cloche.RunResult, error)
	RunStream(ctx context.Context, caller core.Caller, req cloche.RunRequest, progress func(step string)) (cloche.Sandbox, Stream, error)
	Logs(ctx context.Context, caller core.Caller, ref string, o cloche.LogOptions, fn func(cloche.LogEntry) error) error

	// StartProgram begins a program, which goes on behind the call.
	StartProgram(ctx context.Context, caller core.Caller, spec cloche.ProgramSpec) (cloche.Program, error)
	FollowProgram(ctx context.Context, caller core.Caller, id string, fn func(cloche.ProgramStep) error) (cloche.Program, error)
	Program(ctx context.Context, caller core.Caller, id string) (cloche.Program, error)
	Programs(ctx context.Context, caller core.Caller, limit int) (cloche.ProgramList, error)
	CancelProgram(ctx context.Context, caller core.Caller, id string) (cloche.Program, error)
	ContinueProgram(ctx context.Context, caller core.Caller, id string, c cloche.ProgramContinue) (cloche.Program, error)

	StartProcess(ctx context.Context, caller core.Caller, ref string, spec cloche.ProcessSpec) (cloche.Process, error)
	Processes(ctx context.Context, caller core.Caller, ref string) ([]cloche.Process, error)
	GetProcess(ctx context.Context, caller core.Caller, ref, id string) (cloche.Process, error)
	WaitProcess(ctx context.Context, caller core.Caller, ref, id string, w cloche.WaitRequest) (cloche.Process, error)
	SignalProcess(ctx context.Context, caller core.Caller, ref, id string, r cloche.SignalRequest) error
	ResizeProcess(ctx context.Context, caller core.Caller, ref, id string, size cloche.Size) error
	WriteStdin(ctx context.Context, caller core.Caller, ref, id string, offset *int64, r io.Reader, end bool) (cloche.StdinAck, error)
	RemoveProcess(ctx context.Context, caller core.Caller, ref, id string) error
	Attach(ctx context.Context, caller core.Caller, ref, id string, r cloche.AttachRequest) (Attachment, error)
	DialPort(ctx context.Context, caller core.Caller, ref string, port int) (net.Conn, error)

	Endpoints(ctx context.Context, caller core.Caller, ref string) (cloche.EndpointList, error)
	Endpoint(ctx context.Context, caller core.Caller, ref, name string) (cloche.EndpointStatus, error)
	AddEndpoint(ctx context.Context, caller core.Caller, ref string, e cloche.Endpoint, replace bool) (cloche.EndpointStatus, error)
	RemoveEndpoint(ctx context.Context, caller core.Caller, ref, name string, grace *time.Duration) (cloche.EndpointRemoval, error)
	// ServeEndpoint has a client serve an endpoint until detach is called.
	ServeEndpoint(ctx context.Context, caller core.Caller, ref, name string, o core.Opener) (detach func(), err error)

	ReadText(ctx context.Context, caller core.Caller, ref string, r cloche.ToolRead) (cloche.ToolText, error)
	WriteText(ctx context.Context, caller core.Caller, ref string, w cloche.ToolWrite) (cloche.ToolWritten, error)
	EditText(ctx context.Context, caller core.Caller, ref string, e cloche.ToolEdit) (cloche.ToolWritten, error)
	Glob(ctx context.Context, caller core.Caller, ref string, g cloche.ToolGlob) (cloche.ToolFiles, error)
	Grep(ctx context.Context, caller core.Caller, ref string, g cloche.ToolGrep) (cloche.ToolLines, error)

	Errors(ctx context.Context, caller core.Caller, o cloche.ErrorOptions) (cloche.ErrorList, error)
	Guidance(ctx context.Context, caller core.Caller, o cloche.GuidanceOptions) (cloche.Guidance, error)

	Skills(ctx context.Context, caller core.Caller, texts bool) (cloche.SkillList, error)
	GetSkill(ctx context.Context, caller core.Caller, name string) (cloche.Skill, error)
	CreateSkill(ctx context.Context, caller core.Caller, spec cloche.SkillSpec, src *core.SkillSource) (cloche.Skill, error)
	UpdateSkill(ctx context.Context, caller core.Caller, name string, c cloche.SkillChange) (cloche.Skill, error)
	RemoveSkill(ctx context.Context, caller core.Caller, name string) error
	SkillFiles(ctx context.Context, caller core.Caller, name string, o core.SkillFileOptions) (cloche.SkillFileList, error)
	ReadSkillFile(ctx context.Context, caller core.Caller, name, file string) ([]byte, error)
	WriteSkillFile(ctx context.Context, caller core.Caller, name, file string, content []byte) error
	RemoveSkillFile(ctx context.Context, caller core.Caller, name, file string) error
	PreviewSkills(ctx context.Context, caller core.Caller, archive io.Reader, o cloche.SkillArchive) (cloche.SkillPreviewList, error)
	InstallSkills(ctx context.Context, caller core.Caller, archive io.Reader, o cloche.SkillArchive) (cloche.SkillList, error)

	Recordings(ctx context.Context, caller core.Caller) (cloche.RecordingList, error)
	GetRecording(ctx context.Context, caller core.Caller, name string) (cloche.RecordingInfo, error)
	ReadRecording(ctx context.Context, caller core.Caller, name string, w io.Writer) error
	PutRecording(ctx context.Context, caller core.Caller, name string, r io.Reader) (cloche.RecordingInfo, error)
	RemoveRecording(ctx context.Context, caller core.Caller, name string) error

	StatFile(ctx context.Context, caller core.Caller, ref string, at cloche.FilePlace, follow bool) (cloche.FileInfo, error)
	ListFiles(ctx context.Context, caller core.Caller, ref string, at cloche.FilePlace, cursor string, limit int) (cloche.FileList, error)
	ReadFile(ctx context.Context, caller core.Caller, ref string, at cloche.FilePlace, offset, length int64) (io.ReadCloser, cloche.FileInfo, error)
	WriteFile(ctx context.Context, caller core.Caller, ref string, at cloche.FilePlace, mode uint32, r io.Reader) (cloche.FileInfo, error)
	MakeDir(ctx context.Context, caller core.Caller, ref string, at cloche.FilePlace, o cloche.MakeDirOptions) error
	MoveFile(ctx context.Context, caller core.Caller, ref string, from cloche.FilePlace, to string) error
	RemoveFile(ctx context.Context, caller core.Caller, ref string, at cloche.FilePlace, o cloche.RemoveFileOptions) error
	TarOut(ctx context.Context, caller core.Caller, ref, path string, o cloche.TarOutOptions, w io.Writer) (cloche.TarReport, error)
	TarIn(ctx context.Context, caller core.Caller, ref, path string, o cloche.TarInOptions, r io.Reader) (cloche.TarReport, error)

	// What takes a while tells core.PullProgress of its context how far it is.
	Images(ctx context.Context, caller core.Caller) (cloche.ImageList, error)
	InspectImage(ctx context.Context, caller core.Caller, ref string) (cloche.Image, error)
	PullImage(ctx context.Context, caller core.Caller, req cloche.PullRequest) (cloche.Image, error)
	ImportImage(ctx context.Context, caller core.Caller, o cloche.ImportOptions, r io.Reader) (cloche.Image, error)
	BuildImage(ctx context.Context, caller core.Caller, req cloche.ImageBuildRequest) (cloche.Image, error)
	RemoveImage(ctx context.Context, caller core.Caller, ref string) error
	PruneImages(ctx context.Context, caller core.Caller, req cloche.ImagePruneRequest) (cloche.ImagePruneResult, error)
	CreateWorkspace(ctx context.Context, caller core.Caller, spec cloche.WorkspaceSpec) (cloche.WorkspaceInfo, error)
	Workspaces(ctx context.Context, caller core.Caller) (cloche.WorkspaceList, error)
	GetWorkspace(ctx context.Context, caller core.Caller, tenant, name string) (cloche.WorkspaceInfo, error)
	RemoveWorkspace(ctx context.Context, caller core.Caller, tenant, name string) error

	Diff(ctx context.Context, caller core.Caller, ref string, o cloche.DiffOptions) (cloche.Diff, error)
	CommitWorkspace(ctx context.Context, caller core.Caller, ref string) (cloche.Diff, error)
	RollbackWorkspace(ctx context.Context, caller core.Caller, ref string) (cloche.Diff, error)
	CreateSnapshot(ctx context.Context, caller core.Caller, ref string, req cloche.SnapshotRequest) (cloche.Snapshot, error)
	Snapshots(ctx context.Context, caller core.Caller) (cloche.SnapshotList, error)
	GetSnapshot(ctx context.Context, caller core.Caller, ref string) (cloche.Snapshot, error)
	RemoveSnapshot(ctx context.Context, caller core.Caller, ref string) error

	Egress(ctx context.Context, caller core.Caller, ref string) (cloche.EgressRules, error)
	ChangeEgress(ctx context.Context, caller core.Caller, ref string, c cloche.EgressChange) (cloche.EgressRules, error)
	ReplaceEgress(ctx context.Context, caller core.Caller, ref string, p cloche.EgressPolicy) (cloche.EgressRules, error)
	EgressLog(ctx context.Context, caller core.Caller, ref string, o cloche.EgressLogOptions, fn func(cloche.EgressRecord) error) error
	Approvals(ctx context.Context, caller core.Caller, o cloche.ApprovalOptions) (cloche.ApprovalList, error)
	AnswerApproval(ctx context.Context, caller core.Caller, id string, answer cloche.ApprovalAnswer) (cloche.Approval, error)

	// Audit gives lines that are valid during the call of fn only.
	Audit(ctx context.Context, caller core.Caller, o cloche.AuditOptions, fn func(line []byte) error) error
	VerifyAudit(ctx context.Context, caller core.Caller, o cloche.AuditVerifyOptions) (cloche.AuditReport, error)
	AuditUsage(ctx context.Context, caller core.Caller, o cloche.AuditUsageOptions) (cloche.AuditUsage, error)

	Info(ctx context.Context, caller core.Caller) cloche.Info
	ResolveName(ctx context.Context, caller core.Caller, asked cloche.Naming) (cloche.ResolvedName, error)
	Status(ctx context.Context, caller core.Caller) cloche.Status
	// Ready says why no work can be taken; empty is that it can. It needs no caller.
	Ready(ctx context.Context) core.Unready
	Doctor(ctx context.Context, caller core.Caller) (cloche.Doctor, error)
	// Metrics serves them in the formats of Prometheus.
	Metrics(ctx context.Context, caller core.Caller) (http.Handler, error)
}

// Stream is a live exec. Close makes a Recv or Write in progress return; for an
// exec it leaves the program running, for a run it ends it and removes the
// sandbox.
type Stream interface {
	ExecID() string
	Recv() (core.Event, error)
	Write(p []byte) (int, error)
	CloseWrite() error
	Resize(rows, cols uint16) error
	Signal(name string) error
	Close() error
}

// Attachment is a client's place at a process. Close leaves the process, and
// makes a Recv or Write in progress return. Write returns when the input is
// queued; that it was given to the process comes by Recv.
type Attachment interface {
	Started() cloche.Started
	Recv() (core.AttachEvent, error)
	Write(p []byte) error
	CloseWrite() error
	Resize(rows, cols uint16) error
	Signal(name string) error
	Close() error
}

// FromCore makes a Core of core's own service.
func FromCore(s *core.Service) Core { return service{s} }

// service only turns core's concrete streams into the interface; a nil one must
// not become an interface that is not nil.
type service struct{ *core.Service }

func (s service) ExecStream(ctx context.Context, caller core.Caller, ref string, req cloche.ExecRequest) (Stream, error) {
	st, err := s.Service.ExecStream(ctx, caller, ref, req)
	if err != nil {
		return nil, err
	}
	return st, nil
}

func (s service) RunStream(ctx context.Context, caller core.Caller, req cloche.RunRequest, progress func(string)) (cloche.Sandbox, Stream, error) {
	sb, st, err := s.Service.RunStream(ctx, caller, req, progress)
	if err != nil {
		return sb, nil, err
	}
	return sb, st, nil
}

func (s service) Attach(ctx context.Context, caller core.Caller, ref, id string, r cloche.AttachRequest) (Attachment, error) {
	a, err := s.Service.Attach(ctx, caller, ref, id, r)
	if err != nil {
		return nil, err
	}
	return a, nil
}
