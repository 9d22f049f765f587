package httpapi

import (
	"context"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// Core is the part of package core that this API server needs. If a context ends during a Run or a
// Create, core removes what it created, without help from the caller.
type Core interface {
	// Authenticate returns the caller of an API key. live ends when the key does, and its cause
	// is the error that says so.
	Authenticate(token string) (caller core.Caller, live context.Context, err error)
	// Admit is called once for each request, before anything else.
	Admit(ctx context.Context, caller core.Caller, verb core.Verb) error
	CreateKey(ctx context.Context, caller core.Caller, spec api.KeySpec) (api.NewKey, error)
	Keys(ctx context.Context, caller core.Caller) (api.KeyList, error)
	RevokeKey(ctx context.Context, caller core.Caller, id string) (api.Key, error)
	Secrets(ctx context.Context, caller core.Caller) (api.SecretList, error)
	ExplainPolicy(ctx context.Context, caller core.Caller, q api.PolicyQuestion) (api.PolicyAnswer, error)

	Create(ctx context.Context, caller core.Caller, spec api.SandboxSpec, progress func(step string)) (api.Sandbox, error)
	Get(ctx context.Context, caller core.Caller, ref string) (api.Sandbox, error)
	Stats(ctx context.Context, caller core.Caller, ref string) (api.SandboxStats, error)
	List(ctx context.Context, caller core.Caller, o api.ListOptions) (api.SandboxList, error)
	Delete(ctx context.Context, caller core.Caller, ref string) (api.Sandbox, error)
	DeleteKeyed(ctx context.Context, caller core.Caller, key string) (api.Sandbox, error)
	CreateMany(ctx context.Context, caller core.Caller, b api.BatchCreate) (api.BatchResult, error)
	StatusMany(ctx context.Context, caller core.Caller, sel api.BatchSelect) (api.BatchResult, error)
	DeleteMany(ctx context.Context, caller core.Caller, sel api.BatchSelect) (api.BatchResult, error)
	Stop(ctx context.Context, caller core.Caller, ref string, grace *time.Duration) (api.Sandbox, error)
	Kill(ctx context.Context, caller core.Caller, ref string) (api.Sandbox, error)
	StartSandbox(ctx context.Context, caller core.Caller, ref string, progress func(step string)) (api.Sandbox, error)
	Heartbeat(ctx context.Context, caller core.Caller, ref string) (api.Sandbox, error)
	Extend(ctx context.Context, caller core.Caller, ref string, x api.Extension) (api.Sandbox, error)
	Pause(ctx context.Context, caller core.Caller, ref string) (api.Sandbox, error)
	Suspend(ctx context.Context, caller core.Caller, ref string) (api.Sandbox, error)
	Fork(ctx context.Context, caller core.Caller, ref string, req api.ForkRequest) (api.ForkResult, error)
	Resume(ctx context.Context, caller core.Caller, ref string) (api.Sandbox, error)
	// Hold makes a transient sandbox that is removed when release is called.
	Hold(ctx context.Context, caller core.Caller, spec api.SandboxSpec, progress func(step string)) (sb api.Sandbox, release func(), err error)
	Events(ctx context.Context, caller core.Caller, o api.EventOptions, fn func(api.Event) error) error

	Exec(ctx context.Context, caller core.Caller, ref string, req api.ExecRequest) (api.Result, error)
	ExecStream(ctx context.Context, caller core.Caller, ref string, req api.ExecRequest) (Stream, error)
	Run(ctx context.Context, caller core.Caller, req api.RunRequest) (api.RunResult, error)
	RunStream(ctx context.Context, caller core.Caller, req api.RunRequest, progress func(step string)) (api.Sandbox, Stream, error)
	Logs(ctx context.Context, caller core.Caller, ref string, o api.LogOptions, fn func(api.LogEntry) error) error

	// StartJob starts a job, which continues after the call.
	StartJob(ctx context.Context, caller core.Caller, spec api.JobSpec) (api.Job, error)
	FollowJob(ctx context.Context, caller core.Caller, id string, fn func(api.JobStep) error) (api.Job, error)
	Job(ctx context.Context, caller core.Caller, id string) (api.Job, error)
	Jobs(ctx context.Context, caller core.Caller, limit int) (api.JobList, error)
	CancelJob(ctx context.Context, caller core.Caller, id string) (api.Job, error)
	ContinueJob(ctx context.Context, caller core.Caller, id string, c api.JobContinue) (api.Job, error)

	StartProcess(ctx context.Context, caller core.Caller, ref string, spec api.ProcessSpec) (api.Process, error)
	Processes(ctx context.Context, caller core.Caller, ref string) ([]api.Process, error)
	GetProcess(ctx context.Context, caller core.Caller, ref, id string) (api.Process, error)
	WaitProcess(ctx context.Context, caller core.Caller, ref, id string, w api.WaitRequest) (api.Process, error)
	SignalProcess(ctx context.Context, caller core.Caller, ref, id string, r api.SignalRequest) error
	ResizeProcess(ctx context.Context, caller core.Caller, ref, id string, size api.Size) error
	WriteStdin(ctx context.Context, caller core.Caller, ref, id string, offset *int64, r io.Reader, end bool) (api.StdinAck, error)
	RemoveProcess(ctx context.Context, caller core.Caller, ref, id string) error
	Attach(ctx context.Context, caller core.Caller, ref, id string, r api.AttachRequest) (Attachment, error)

	CreateContext(ctx context.Context, caller core.Caller, ref string, spec api.CodeContextSpec) (api.CodeContext, error)
	Contexts(ctx context.Context, caller core.Caller, ref string) (api.CodeContextList, error)
	RestartContext(ctx context.Context, caller core.Caller, ref, id string) error
	RemoveContext(ctx context.Context, caller core.Caller, ref, id string) error
	RunCode(ctx context.Context, caller core.Caller, ref string, r api.CodeRequest, fn func(api.CodeEvent) error) error

	DialPort(ctx context.Context, caller core.Caller, ref string, port int) (net.Conn, error)
	OpenPort(ctx context.Context, caller core.Caller, ref string, spec api.PortSpec) (api.OpenedPort, error)
	OpenPorts(ctx context.Context, caller core.Caller, ref string) (api.PortList, error)
	ClosePort(ctx context.Context, caller core.Caller, ref string, port int) error

	Endpoints(ctx context.Context, caller core.Caller, ref string) (api.EndpointList, error)
	Endpoint(ctx context.Context, caller core.Caller, ref, name string) (api.EndpointStatus, error)
	AddEndpoint(ctx context.Context, caller core.Caller, ref string, e api.Endpoint, replace bool) (api.EndpointStatus, error)
	RemoveEndpoint(ctx context.Context, caller core.Caller, ref, name string, grace *time.Duration) (api.EndpointRemoval, error)
	// ServeEndpoint lets a client serve an endpoint until detach is called.
	ServeEndpoint(ctx context.Context, caller core.Caller, ref, name string, o core.Opener) (detach func(), err error)

	ReadText(ctx context.Context, caller core.Caller, ref string, r api.ToolRead) (api.ToolText, error)
	WriteText(ctx context.Context, caller core.Caller, ref string, w api.ToolWrite) (api.ToolWritten, error)
	EditText(ctx context.Context, caller core.Caller, ref string, e api.ToolEdit) (api.ToolWritten, error)
	Glob(ctx context.Context, caller core.Caller, ref string, g api.ToolGlob) (api.ToolFiles, error)
	Grep(ctx context.Context, caller core.Caller, ref string, g api.ToolGrep) (api.ToolLines, error)

	Errors(ctx context.Context, caller core.Caller, o api.ErrorOptions) (api.ErrorList, error)
	Guidance(ctx context.Context, caller core.Caller, o api.GuidanceOptions) (api.Guidance, error)

	Skills(ctx context.Context, caller core.Caller, texts bool) (api.SkillList, error)
	GetSkill(ctx context.Context, caller core.Caller, name string) (api.Skill, error)
	CreateSkill(ctx context.Context, caller core.Caller, spec api.SkillSpec, src *core.SkillSource) (api.Skill, error)
	UpdateSkill(ctx context.Context, caller core.Caller, name string, c api.SkillChange) (api.Skill, error)
	RemoveSkill(ctx context.Context, caller core.Caller, name string) error
	SkillFiles(ctx context.Context, caller core.Caller, name string, o core.SkillFileOptions) (api.SkillFileList, error)
	ReadSkillFile(ctx context.Context, caller core.Caller, name, file string) ([]byte, error)
	WriteSkillFile(ctx context.Context, caller core.Caller, name, file string, content []byte) error
	RemoveSkillFile(ctx context.Context, caller core.Caller, name, file string) error
	PreviewSkills(ctx context.Context, caller core.Caller, archive io.Reader, o api.SkillArchive) (api.SkillPreviewList, error)
	InstallSkills(ctx context.Context, caller core.Caller, archive io.Reader, o api.SkillArchive) (api.SkillList, error)

	Recordings(ctx context.Context, caller core.Caller) (api.RecordingList, error)
	GetRecording(ctx context.Context, caller core.Caller, name string) (api.RecordingInfo, error)
	ReadRecording(ctx context.Context, caller core.Caller, name string, w io.Writer) error
	PutRecording(ctx context.Context, caller core.Caller, name string, r io.Reader) (api.RecordingInfo, error)
	RemoveRecording(ctx context.Context, caller core.Caller, name string) error

	StatFile(ctx context.Context, caller core.Caller, ref string, at api.FilePlace, follow bool) (api.FileInfo, error)
	WatchFiles(ctx context.Context, caller core.Caller, ref string, at api.FilePlace, o api.WatchOptions, fn func(api.FileChange) error) error
	ListFiles(ctx context.Context, caller core.Caller, ref string, at api.FilePlace, cursor string, limit int) (api.FileList, error)
	ReadFile(ctx context.Context, caller core.Caller, ref string, at api.FilePlace, offset, length int64) (io.ReadCloser, api.FileInfo, error)
	WriteFile(ctx context.Context, caller core.Caller, ref string, at api.FilePlace, mode uint32, r io.Reader) (api.FileInfo, error)
	MakeDir(ctx context.Context, caller core.Caller, ref string, at api.FilePlace, o api.MakeDirOptions) error
	MoveFile(ctx context.Context, caller core.Caller, ref string, from api.FilePlace, to string) error
	RemoveFile(ctx context.Context, caller core.Caller, ref string, at api.FilePlace, o api.RemoveFileOptions) error
	TarOut(ctx context.Context, caller core.Caller, ref, path string, o api.TarOutOptions, w io.Writer) (api.TarReport, error)
	TarIn(ctx context.Context, caller core.Caller, ref, path string, o api.TarInOptions, r io.Reader) (api.TarReport, error)

	// Slow operations report their progress to core.PullProgress of their context.
	Images(ctx context.Context, caller core.Caller) (api.ImageList, error)
	InspectImage(ctx context.Context, caller core.Caller, ref string) (api.Image, error)
	PullImage(ctx context.Context, caller core.Caller, req api.PullRequest) (api.Image, error)
	ImportImage(ctx context.Context, caller core.Caller, o api.ImportOptions, r io.Reader) (api.Image, error)
	PackImage(ctx context.Context, caller core.Caller, req api.ImagePackRequest) (api.Image, error)
	// BuildImage reads files before its first event.
	BuildImage(ctx context.Context, caller core.Caller, req api.ImageBuildRequest, files io.Reader, tell func(api.BuildEvent)) (api.Image, error)
	CommitImage(ctx context.Context, caller core.Caller, ref string, req api.ImageCommitRequest) (api.Image, error)
	ExportImage(ctx context.Context, caller core.Caller, ref string, w io.Writer) error
	RemoveImage(ctx context.Context, caller core.Caller, ref string) error
	PruneImages(ctx context.Context, caller core.Caller, req api.ImagePruneRequest) (api.ImagePruneResult, error)
	CreateWorkspace(ctx context.Context, caller core.Caller, spec api.WorkspaceSpec) (api.WorkspaceInfo, error)
	Workspaces(ctx context.Context, caller core.Caller) (api.WorkspaceList, error)
	GetWorkspace(ctx context.Context, caller core.Caller, tenant, name string) (api.WorkspaceInfo, error)
	RemoveWorkspace(ctx context.Context, caller core.Caller, tenant, name string) error

	Diff(ctx context.Context, caller core.Caller, ref string, o api.DiffOptions) (api.Diff, error)
	CommitWorkspace(ctx context.Context, caller core.Caller, ref string) (api.Diff, error)
	RollbackWorkspace(ctx context.Context, caller core.Caller, ref string) (api.Diff, error)
	CreateSnapshot(ctx context.Context, caller core.Caller, ref string, req api.SnapshotRequest) (api.Snapshot, error)
	Snapshots(ctx context.Context, caller core.Caller) (api.SnapshotList, error)
	GetSnapshot(ctx context.Context, caller core.Caller, ref string) (api.Snapshot, error)
	RemoveSnapshot(ctx context.Context, caller core.Caller, ref string) error

	Egress(ctx context.Context, caller core.Caller, ref string) (api.EgressRules, error)
	ChangeEgress(ctx context.Context, caller core.Caller, ref string, c api.EgressChange) (api.EgressRules, error)
	ReplaceEgress(ctx context.Context, caller core.Caller, ref string, p api.EgressPolicy) (api.EgressRules, error)
	EgressLog(ctx context.Context, caller core.Caller, ref string, o api.EgressLogOptions, fn func(api.EgressRecord) error) error
	Approvals(ctx context.Context, caller core.Caller, o api.ApprovalOptions) (api.ApprovalList, error)
	AnswerApproval(ctx context.Context, caller core.Caller, id string, answer api.ApprovalAnswer) (api.Approval, error)

	// Audit passes lines that are valid only during the call of fn.
	Audit(ctx context.Context, caller core.Caller, o api.AuditOptions, fn func(line []byte) error) error
	VerifyAudit(ctx context.Context, caller core.Caller, o api.AuditVerifyOptions) (api.AuditReport, error)
	AuditUsage(ctx context.Context, caller core.Caller, o api.AuditUsageOptions) (api.AuditUsage, error)

	Info(ctx context.Context, caller core.Caller) api.Info
	ResolveName(ctx context.Context, caller core.Caller, asked api.Naming) (api.ResolvedName, error)
	Status(ctx context.Context, caller core.Caller) api.Status
	// Ready says why the daemon cannot take work. Empty means that it can. It needs no caller.
	Ready(ctx context.Context) core.Unready
	Doctor(ctx context.Context, caller core.Caller) (api.Doctor, error)
	// Metrics serves the metrics in the formats of Prometheus.
	Metrics(ctx context.Context, caller core.Caller) (http.Handler, error)
}

// Stream is a running exec. Close makes a Recv or Write in progress return. For an exec it leaves
// the program running. For a run it ends the program and removes the sandbox.
type Stream interface {
	ExecID() string
	Recv() (core.Event, error)
	Write(p []byte) (int, error)
	CloseWrite() error
	Resize(rows, cols uint16) error
	Signal(name string) error
	Close() error
}

// Attachment is a client's attachment to a process. Close detaches, and makes a Recv or Write in
// progress return. Write returns when the input is queued. Recv reports when the process has
// received it.
type Attachment interface {
	Started() api.Started
	Recv() (core.AttachEvent, error)
	Write(p []byte) error
	CloseWrite() error
	Resize(rows, cols uint16) error
	Signal(name string) error
	Close() error
}

// FromCore returns core's own service as a Core.
func FromCore(s *core.Service) Core { return service{s} }

// service converts core's concrete streams to the interfaces. A nil stream must not become an
// interface that is not nil.
type service struct{ *core.Service }

func (s service) ExecStream(ctx context.Context, caller core.Caller, ref string, req api.ExecRequest) (Stream, error) {
	st, err := s.Service.ExecStream(ctx, caller, ref, req)
	if err != nil {
		return nil, err
	}
	return st, nil
}

func (s service) RunStream(ctx context.Context, caller core.Caller, req api.RunRequest, progress func(string)) (api.Sandbox, Stream, error) {
	sb, st, err := s.Service.RunStream(ctx, caller, req, progress)
	if err != nil {
		return sb, nil, err
	}
	return sb, st, nil
}

func (s service) Attach(ctx context.Context, caller core.Caller, ref, id string, r api.AttachRequest) (Attachment, error) {
	a, err := s.Service.Attach(ctx, caller, ref, id, r)
	if err != nil {
		return nil, err
	}
	return a, nil
}
