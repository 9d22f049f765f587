package api

import "time"

// Phases of a job, in their order. Endpoint.Phases can name only setup, post_setup and run:
// channels and score have the environment of run, and handlers have none of it.
const (
	PhaseCreate    = "create"
	PhaseFiles     = "files"
	PhaseSetup     = "setup"
	PhaseNetwork   = "network"
	PhasePostSetup = "post_setup"
	PhaseHandlers  = "handlers"
	PhaseState     = "state"
	PhaseChannels  = "channels"
	PhaseRun       = "run"
	PhaseScore     = "score"
	PhaseOutputs   = "outputs"
)

// Phases returns all phases in their order.
func Phases() []string {
	return []string{
		PhaseCreate, PhaseFiles, PhaseSetup, PhaseNetwork, PhasePostSetup, PhaseHandlers, PhaseState, PhaseChannels, PhaseRun,
		PhaseScore, PhaseOutputs,
	}
}

// ExecPhases returns the phases that processes can belong to.
func ExecPhases() []string {
	return []string{PhaseSetup, PhasePostSetup, PhaseHandlers, PhaseChannels, PhaseRun, PhaseScore}
}

const (
	// DefaultSetupTimeoutMS limits each command of every phase except run, which is limited only
	// by the sandbox's lifetime.
	DefaultSetupTimeoutMS = 300_000
	// DefaultHandlerTimeoutMS is how long a job waits for a handler of the caller.
	DefaultHandlerTimeoutMS = 300_000
	// DefaultJobOutput limits each output stream of a job's commands, and each output
	// file without a size limit in the request.
	DefaultJobOutput = 256 << 10
)

// JobSpec describes a job in a sandbox: what to install, what to check, what to run and how
// to score it. The phases have a fixed order: files and directories, setup, post_setup, handlers,
// state, channels, run, score. State files are only written after setup is done. Exactly one of
// Spec and Sandbox is set.
type JobSpec struct {
	// IdempotencyKey makes a repeated request safe: with the same content it returns the same
	// job, and with different content it is refused. See ValidIdempotencyKey.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// Name is for people. It does not have to be unique.
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	// Spec is the sandbox to create for the job and to remove afterwards. Its network and
	// egress take effect after setup.
	Spec *SandboxSpec `json:"spec,omitempty"`
	// Sandbox is the ID or name of an existing sandbox. It is not removed. Several jobs can
	// run in it at once; only their setup phases wait for each other.
	Sandbox string `json:"sandbox,omitempty"`
	// Keep keeps the sandbox that was created for the job.
	Keep bool `json:"keep,omitempty"`
	// InspectFailedMS keeps the sandbox for this time if a phase before run failed.
	InspectFailedMS int64 `json:"inspect_failed_ms,omitempty"`
	// CancelWithCaller cancels the job when the call that waits for it ends first. Otherwise
	// the job continues.
	CancelWithCaller bool `json:"cancel_with_caller,omitempty"`
	// Files and Dirs are the job's own. They are written before any command runs.
	Files []File   `json:"files,omitempty"`
	Dirs  []JobDir `json:"dirs,omitempty"`
	// Env is for the commands of all phases. A phase's own Env takes precedence.
	Env map[string]string `json:"env,omitempty"`
	// Cwd and User are for all commands that do not set them. Empty is the sandbox's.
	Cwd  string `json:"cwd,omitempty"`
	User string `json:"user,omitempty"`
	// Setup installs what the job needs. Only this phase can have its own network.
	Setup *JobPhase `json:"setup,omitempty"`
	// PostSetup checks the result of setup, under the network rules of the run.
	PostSetup *JobPhase `json:"post_setup,omitempty"`
	// Handlers are the caller's own steps, in their order.
	Handlers []JobHandler `json:"handlers,omitempty"`
	// State is written after all handlers.
	State []File `json:"state,omitempty"`
	// Channels are processes that the run uses. They are started in order. The next phase begins
	// when those with a readiness check are ready.
	Channels []ProcessSpec `json:"channels,omitempty"`
	Run      JobPhase      `json:"run"`
	// Score judges the result of run. It is not run if an earlier phase failed, except after a
	// failure of run with ScoreAlways.
	Score       *JobPhase `json:"score,omitempty"`
	ScoreAlways bool      `json:"score_always,omitempty"`
	// ScoreFile is a file that score writes. It is part of the score, in addition to the output.
	ScoreFile string `json:"score_file,omitempty"`
	// Outputs are files that are read at the end, also after a failure.
	Outputs []JobOutputSpec `json:"outputs,omitempty"`
}

// JobDir is a directory of a job.
type JobDir struct {
	// Path is its path inside the sandbox. It is created.
	Path string `json:"path"`
	// Archive is a tar of its content, optionally compressed with gzip.
	Archive Bytes `json:"archive"`
}

// JobPhase is a list of commands. They run one after the other until one fails.
type JobPhase struct {
	Commands []JobCommand `json:"commands"`
	// Env takes precedence over the job's.
	Env map[string]string `json:"env,omitempty"`
	// TimeoutMS limits each command that does not set its own timeout. 0 is the phase's default:
	// DefaultSetupTimeoutMS, and no limit for run.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// MaxOutputBytes is how many bytes of each output stream of a command are kept; 0 is
	// DefaultJobOutput.
	MaxOutputBytes int64 `json:"max_output_bytes,omitempty"`
	// Network and Egress are the network rules during setup. Other phases cannot set them. If
	// neither is set, the sandbox's own rules apply.
	Network string  `json:"network,omitempty"`
	Egress  *Egress `json:"egress,omitempty"`
	// Snapshot is the name of a snapshot of files that is made after setup or post_setup. A
	// job whose Spec begins with that snapshot does not need the phase.
	Snapshot string `json:"snapshot,omitempty"`
}

// JobCommand is one command. Exactly one of Argv, Shell and Python is set, as in
// ExecRequest.
type JobCommand struct {
	Argv   []string `json:"argv,omitempty"`
	Shell  string   `json:"shell,omitempty"`
	Python string   `json:"python,omitempty"`
	Stdin  Bytes    `json:"stdin,omitempty"`
	// TimeoutMS is the command's timeout; 0 is the phase's.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
}

// JobHandler is a step of the caller: commands inside the sandbox, or a pause during which the
// caller works with the sandbox from outside until it continues the job. The commands do not
// get the environment of endpoints.
type JobHandler struct {
	// Name is unique in the job; see ValidName.
	Name     string       `json:"name"`
	Commands []JobCommand `json:"commands,omitempty"`
	// Wait pauses the job for at most TimeoutMS; 0 is DefaultHandlerTimeoutMS. TimeoutMS also
	// limits each command.
	Wait      bool  `json:"wait,omitempty"`
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
}

// JobContinue ends the pause of a handler.
type JobContinue struct {
	// Handler is the handler's name.
	Handler string `json:"handler"`
	// Failed says why the job must not continue. Empty continues it.
	Failed string `json:"failed,omitempty"`
}

// JobOutputSpec is a file to read at the end.
type JobOutputSpec struct {
	Path string `json:"path"`
	// MaxBytes is how many bytes to read; 0 is DefaultJobOutput.
	MaxBytes int64 `json:"max_bytes,omitempty"`
}

// JobState is the state of a job.
type JobState string

// States of a job.
const (
	JobRunning JobState = "running"
	// JobWaiting means that a handler waits for the caller.
	JobWaiting   JobState = "waiting"
	JobSucceeded JobState = "succeeded"
	JobFailed    JobState = "failed"
	JobCanceled  JobState = "canceled"
)

// Ended reports whether the job has ended.
func (s JobState) Ended() bool {
	return s == JobSucceeded || s == JobFailed || s == JobCanceled
}

// Job is the record of a job.
type Job struct {
	ID      string   `json:"id"`
	Name    string   `json:"name,omitempty"`
	Tenant  string   `json:"tenant"`
	Profile string   `json:"profile,omitempty"`
	State   JobState `json:"state"`
	// Phase is the present or last phase.
	Phase string `json:"phase,omitempty"`
	// Handler is the handler that waits for the caller.
	Handler string            `json:"handler,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	// Spec is the request as it was sent. Lists omit it.
	Spec *JobSpec `json:"spec,omitempty"`
	// Sandbox is the last known record of the sandbox, nil until there is one. Made is set when
	// the job created it.
	Sandbox *Sandbox `json:"sandbox,omitempty"`
	Made    bool     `json:"made,omitempty"`
	// Phases are the phases that were started, in their order.
	Phases []JobPhaseRecord `json:"phases"`
	// ReadyAt is when all phases before run had succeeded. It is unset if they did not.
	ReadyAt *time.Time `json:"ready_at,omitempty"`
	// Failure says why the job failed or was cancelled.
	Failure *JobFailure `json:"failure,omitempty"`
	// Score is the result of score, nil if score was not completed.
	Score   *JobScore   `json:"score,omitempty"`
	Outputs []JobOutput `json:"outputs,omitempty"`
	// Cleanup is an error of the sandbox's removal. It does not make a successful job fail,
	// and the removal is retried.
	Cleanup *Error `json:"cleanup,omitempty"`
	// InspectUntil is when a sandbox that was kept after a failure is removed.
	InspectUntil *time.Time `json:"inspect_until,omitempty"`
	CreatedAt    time.Time  `json:"created_at"`
	EndedAt      *time.Time `json:"ended_at,omitempty"`
}

// JobPhaseRecord is the record of a phase.
type JobPhaseRecord struct {
	Phase string `json:"phase"`
	// State is "running", "succeeded" or "failed".
	State      string    `json:"state"`
	StartedAt  time.Time `json:"started_at"`
	DurationMS int64     `json:"duration_ms"`
	// Commands are the commands that were started.
	Commands []JobCommandRecord `json:"commands,omitempty"`
	// Egress is the set of rules that was applied and confirmed in the phase network.
	Egress *EgressRules `json:"egress,omitempty"`
	// Snapshot is the ID of the snapshot that was made after the phase.
	Snapshot string `json:"snapshot,omitempty"`
}

// JobCommandRecord is the record of a command.
type JobCommandRecord struct {
	// Handler is the handler that the command belongs to. Channel is the process that it is.
	Handler string `json:"handler,omitempty"`
	Channel string `json:"channel,omitempty"`
	// Command is the command line or the script, truncated.
	Command   string    `json:"command"`
	StartedAt time.Time `json:"started_at"`
	// Result is nil if it is not known.
	Result *Result `json:"result,omitempty"`
}

// JobScore is the result of score.
type JobScore struct {
	// ExitCode and Output are those of the last command. Output is its standard output.
	ExitCode *int  `json:"exit_code"`
	Output   Bytes `json:"output"`
	// File is the content of ScoreFile.
	File *JobOutput `json:"file,omitempty"`
}

// JobOutput is a file that was read at the end.
type JobOutput struct {
	Path    string `json:"path"`
	Content Bytes  `json:"content"`
	// Size is the file's size. Truncated means that Content is only its beginning.
	Size      int64 `json:"size"`
	Truncated bool  `json:"truncated,omitempty"`
	// Error says why the file could not be read.
	Error *Error `json:"error,omitempty"`
}

// JobFailure says why a job did not succeed.
type JobFailure struct {
	Kind  FailureKind `json:"kind"`
	Phase string      `json:"phase"`
	Class Class       `json:"class"`
	// Retryable is true when the same job may succeed later.
	Retryable bool `json:"retryable"`
	// Command is the number of the failed command in its phase, from 0. It is nil if no command
	// failed.
	Command *int   `json:"command,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	// Code and Rule are those of the error that caused the failure.
	Code Code   `json:"code,omitempty"`
	Rule string `json:"rule,omitempty"`
}

// FailureKind is the kind of a failure.
type FailureKind string

// Kinds of failures.
const (
	// FailureExit means that a command ended with a status other than 0, or by a signal.
	FailureExit    FailureKind = "exit"
	FailureTimeout FailureKind = "timeout"
	FailureOOM     FailureKind = "oom"
	// FailureLost means that the sandbox died.
	FailureLost FailureKind = "lost"
	// FailureExpired means that the sandbox's lifetime was over.
	FailureExpired FailureKind = "expired"
	// FailureEnded means that a caller stopped or removed the sandbox.
	FailureEnded FailureKind = "ended"
	// FailurePolicy means that policy refused a request.
	FailurePolicy FailureKind = "policy"
	// FailureRequest means that the request cannot be carried out, for example because the image
	// does not have the program.
	FailureRequest FailureKind = "request"
	// FailureHandler means that the caller reported a failure of its handler.
	FailureHandler  FailureKind = "handler"
	FailureCanceled FailureKind = "canceled"
	// FailureInterrupted means that the daemon ended during the job.
	FailureInterrupted FailureKind = "interrupted"
	// FailureCapacity means that the machine or the tenant had no free capacity.
	FailureCapacity FailureKind = "capacity"
	FailureInternal FailureKind = "internal"
)

// FailureKinds returns every kind.
func FailureKinds() []FailureKind {
	return []FailureKind{
		FailureExit, FailureTimeout, FailureOOM, FailureLost, FailureExpired, FailureEnded, FailurePolicy, FailureRequest,
		FailureHandler, FailureCanceled, FailureInterrupted, FailureCapacity, FailureInternal,
	}
}

// JobStep is one step of a job, for callers that follow it.
type JobStep struct {
	// Seq counts the steps from 1.
	Seq   int64     `json:"seq"`
	Time  time.Time `json:"time"`
	Phase string    `json:"phase"`
	// State is the state of the phase, or "waiting" if a handler waits.
	State string `json:"state"`
	// Command is the number of the command that begins, from 0. It is nil for the phase itself.
	Command *int   `json:"command,omitempty"`
	Text    string `json:"text,omitempty"`
	// Sandbox is the ID of the sandbox, if there is one yet.
	Sandbox string `json:"sandbox,omitempty"`
}

// JobMessage is one line of a followed job: a step or, at the end, the job or the
// error.
type JobMessage struct {
	Step  *JobStep `json:"step,omitempty"`
	Job   *Job     `json:"job,omitempty"`
	Error *Error   `json:"error,omitempty"`
}

// JobList lists jobs, newest first.
type JobList struct {
	Jobs []Job `json:"jobs"`
}
