package api

import "time"

// The phases of a program, in their order. Of an endpoint's Phases only setup,
// post_setup and run can be named: channels and score have the environment of run, and
// handlers have none of it.
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

// Phases lists all phases in their order.
func Phases() []string {
	return []string{
		PhaseCreate, PhaseFiles, PhaseSetup, PhaseNetwork, PhasePostSetup, PhaseHandlers, PhaseState, PhaseChannels, PhaseRun,
		PhaseScore, PhaseOutputs,
	}
}

// ExecPhases lists the phases that processes can belong to.
func ExecPhases() []string {
	return []string{PhaseSetup, PhasePostSetup, PhaseHandlers, PhaseChannels, PhaseRun, PhaseScore}
}

const (
	// DefaultSetupTimeoutMS bounds each command of every phase but run, which has no
	// bound of its own: the sandbox's lifetime is.
	DefaultSetupTimeoutMS = 300_000
	// DefaultHandlerTimeoutMS is how long a program waits for a handler of the caller's.
	DefaultHandlerTimeoutMS = 300_000
	// DefaultProgramOutput bounds each stream of a command of a program, and each output
	// file, whose size the request does not say.
	DefaultProgramOutput = 256 << 10
)

// ProgramSpec is a program in a sandbox: what is installed, what is checked, what is
// run and how it is scored, in phases with a fixed order: files and directories, setup,
// post_setup, handlers, state, channels, run, score. Before setup is done no state is in
// the sandbox. Exactly one of Spec and Sandbox is set.
type ProgramSpec struct {
	// IdempotencyKey makes a request that is sent again the same program: with the same
	// content it is that program, with another it is refused. See ValidIdempotencyKey.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// Name is for people; it need not be unique.
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	// Spec is the sandbox that is made for the program, and removed afterwards. Its
	// network and egress are in force from the end of setup on.
	Spec *SandboxSpec `json:"spec,omitempty"`
	// Sandbox is one that exists, by id or name. It stays, and several programs may run
	// in it at once: only their setups wait for each other.
	Sandbox string `json:"sandbox,omitempty"`
	// Keep leaves the sandbox that was made for the program.
	Keep bool `json:"keep,omitempty"`
	// InspectFailedMS leaves it for so long when a phase before run failed.
	InspectFailedMS int64 `json:"inspect_failed_ms,omitempty"`
	// CancelWithCaller cancels the program when the call that waits for it ends before.
	// Otherwise the program goes on.
	CancelWithCaller bool `json:"cancel_with_caller,omitempty"`
	// Files and Dirs are the program's own, and are there before anything runs.
	Files []File       `json:"files,omitempty"`
	Dirs  []ProgramDir `json:"dirs,omitempty"`
	// Env is for the commands of all phases; a phase's own overrides it.
	Env map[string]string `json:"env,omitempty"`
	// Cwd and User are those of all commands that name none; empty is the sandbox's.
	Cwd  string `json:"cwd,omitempty"`
	User string `json:"user,omitempty"`
	// Setup installs. It alone may have a network of its own.
	Setup *ProgramPhase `json:"setup,omitempty"`
	// PostSetup sees what setup made, under the rules of the run.
	PostSetup *ProgramPhase `json:"post_setup,omitempty"`
	// Handlers are the caller's own, in their order.
	Handlers []ProgramHandler `json:"handlers,omitempty"`
	// State is written after all of them.
	State []File `json:"state,omitempty"`
	// Channels are processes that the run uses. They are started in their order; the
	// next phase begins when those with a readiness are ready.
	Channels []ProcessSpec `json:"channels,omitempty"`
	Run      ProgramPhase  `json:"run"`
	// Score judges what run left. It is not run when a phase before it failed, except
	// for a failure of run with ScoreAlways.
	Score       *ProgramPhase `json:"score,omitempty"`
	ScoreAlways bool          `json:"score_always,omitempty"`
	// ScoreFile is a file that score writes and that is the result beside its output.
	ScoreFile string `json:"score_file,omitempty"`
	// Outputs are files that are read at the end, also after a failure.
	Outputs []ProgramOutputSpec `json:"outputs,omitempty"`
}

// ProgramDir is a directory of a program.
type ProgramDir struct {
	// Path is where it is inside; it is made.
	Path string `json:"path"`
	// Archive is a tar of what is in it, compressed by gzip or not.
	Archive Bytes `json:"archive"`
}

// ProgramPhase is what a phase does: commands, one after the other, until one fails.
type ProgramPhase struct {
	Commands []ProgramCommand `json:"commands"`
	// Env goes over the program's.
	Env map[string]string `json:"env,omitempty"`
	// TimeoutMS bounds each command that has none of its own; 0 is the phase's default:
	// DefaultSetupTimeoutMS, and none for run.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// MaxOutputBytes of each stream of a command are kept; 0 is DefaultProgramOutput.
	MaxOutputBytes int64 `json:"max_output_bytes,omitempty"`
	// Network and Egress are what may leave during setup, and are no other phase's to
	// say. Without both it is what the sandbox's own say.
	Network string  `json:"network,omitempty"`
	Egress  *Egress `json:"egress,omitempty"`
	// Snapshot is the name of a snapshot of files that is made after setup or
	// post_setup: a program whose Spec begins with it needs no such phase.
	Snapshot string `json:"snapshot,omitempty"`
}

// ProgramCommand is one command. Exactly one of Argv, Shell and Python is set, as in
// ExecRequest.
type ProgramCommand struct {
	Argv   []string `json:"argv,omitempty"`
	Shell  string   `json:"shell,omitempty"`
	Python string   `json:"python,omitempty"`
	Stdin  Bytes    `json:"stdin,omitempty"`
	// TimeoutMS is its own; 0 is the phase's.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
}

// ProgramHandler is a step of the caller's: commands inside, or a pause in which the
// caller does what it likes with the sandbox, from outside, until it continues the
// program. No endpoint gives anything to the environment of its commands.
type ProgramHandler struct {
	// Name is unique in the program; see ValidName.
	Name     string           `json:"name"`
	Commands []ProgramCommand `json:"commands,omitempty"`
	// Wait is the pause, for at most TimeoutMS; 0 is DefaultHandlerTimeoutMS. TimeoutMS
	// bounds each command too.
	Wait      bool  `json:"wait,omitempty"`
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
}

// ProgramContinue ends the pause of a handler.
type ProgramContinue struct {
	// Handler is its name.
	Handler string `json:"handler"`
	// Failed says why the program must not go on; empty lets it.
	Failed string `json:"failed,omitempty"`
}

// ProgramOutputSpec is a file to be read back.
type ProgramOutputSpec struct {
	Path string `json:"path"`
	// MaxBytes are read of it; 0 is DefaultProgramOutput.
	MaxBytes int64 `json:"max_bytes,omitempty"`
}

// ProgramState is what became of a program.
type ProgramState string

// The states.
const (
	ProgramRunning ProgramState = "running"
	// ProgramWaiting: a handler waits for the caller.
	ProgramWaiting   ProgramState = "waiting"
	ProgramSucceeded ProgramState = "succeeded"
	ProgramFailed    ProgramState = "failed"
	ProgramCanceled  ProgramState = "canceled"
)

// Ended reports whether nothing more will happen.
func (s ProgramState) Ended() bool {
	return s == ProgramSucceeded || s == ProgramFailed || s == ProgramCanceled
}

// Program is what is on record about a program.
type Program struct {
	ID      string       `json:"id"`
	Name    string       `json:"name,omitempty"`
	Tenant  string       `json:"tenant"`
	Profile string       `json:"profile,omitempty"`
	State   ProgramState `json:"state"`
	// Phase is the present or last one.
	Phase string `json:"phase,omitempty"`
	// Handler is the one that waits for the caller.
	Handler string            `json:"handler,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	// Spec is the request as it came; lists leave it out.
	Spec *ProgramSpec `json:"spec,omitempty"`
	// Sandbox is the sandbox as it was last seen, null until there is one. Made: the
	// program made it.
	Sandbox *Sandbox `json:"sandbox,omitempty"`
	Made    bool     `json:"made,omitempty"`
	// Phases are those that were begun, in their order.
	Phases []ProgramPhaseRecord `json:"phases"`
	// ReadyAt is when all before run had succeeded; never set where it did not.
	ReadyAt *time.Time `json:"ready_at,omitempty"`
	// Failure is why it failed or was cancelled.
	Failure *ProgramFailure `json:"failure,omitempty"`
	// Score is what score said; null where it was not run to its end.
	Score   *ProgramScore   `json:"score,omitempty"`
	Outputs []ProgramOutput `json:"outputs,omitempty"`
	// Cleanup is what went wrong when the sandbox was taken away. It makes no failure of
	// a success, and is being retried.
	Cleanup *Error `json:"cleanup,omitempty"`
	// InspectUntil is when a sandbox is removed that was left after a failure.
	InspectUntil *time.Time `json:"inspect_until,omitempty"`
	CreatedAt    time.Time  `json:"created_at"`
	EndedAt      *time.Time `json:"ended_at,omitempty"`
}

// ProgramPhaseRecord is what became of a phase.
type ProgramPhaseRecord struct {
	Phase string `json:"phase"`
	// State is "running", "succeeded" or "failed".
	State      string    `json:"state"`
	StartedAt  time.Time `json:"started_at"`
	DurationMS int64     `json:"duration_ms"`
	// Commands are those that were begun.
	Commands []ProgramCommandRecord `json:"commands,omitempty"`
	// Egress is what was put in force, and confirmed, in the phase network.
	Egress *EgressRules `json:"egress,omitempty"`
	// Snapshot is the id of the one that was made after the phase.
	Snapshot string `json:"snapshot,omitempty"`
}

// ProgramCommandRecord is what became of a command.
type ProgramCommandRecord struct {
	// Handler is the one that it belongs to, Channel the process that it is.
	Handler string `json:"handler,omitempty"`
	Channel string `json:"channel,omitempty"`
	// Command is what was run, cut; a script is its text.
	Command   string    `json:"command"`
	StartedAt time.Time `json:"started_at"`
	// Result is null where it is not known.
	Result *Result `json:"result,omitempty"`
}

// ProgramScore is what score said.
type ProgramScore struct {
	// ExitCode and Output are of its last command; Output is its standard output.
	ExitCode *int  `json:"exit_code"`
	Output   Bytes `json:"output"`
	// File is what ScoreFile holds.
	File *ProgramOutput `json:"file,omitempty"`
}

// ProgramOutput is a file that was read back.
type ProgramOutput struct {
	Path    string `json:"path"`
	Content Bytes  `json:"content"`
	// Size is the file's; Truncated that Content is its beginning.
	Size      int64 `json:"size"`
	Truncated bool  `json:"truncated,omitempty"`
	// Error is why it could not be read.
	Error *Error `json:"error,omitempty"`
}

// ProgramFailure is why a program did not succeed.
type ProgramFailure struct {
	Kind  FailureKind `json:"kind"`
	Phase string      `json:"phase"`
	Class Class       `json:"class"`
	// Retryable is true when the same program may succeed later unchanged.
	Retryable bool `json:"retryable"`
	// Command is the number of the phase's command, from 0; null is no command.
	Command *int   `json:"command,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	// Code and Rule are those of the error that it came of.
	Code Code   `json:"code,omitempty"`
	Rule string `json:"rule,omitempty"`
}

// FailureKind is what went wrong.
type FailureKind string

// The kinds.
const (
	// FailureExit: a command ended with another status than 0, or by a signal.
	FailureExit    FailureKind = "exit"
	FailureTimeout FailureKind = "timeout"
	FailureOOM     FailureKind = "oom"
	// FailureLost: the sandbox died.
	FailureLost FailureKind = "lost"
	// FailureExpired: its lifetime was over.
	FailureExpired FailureKind = "expired"
	// FailureEnded: a caller stopped or removed it.
	FailureEnded FailureKind = "ended"
	// FailurePolicy: policy refused.
	FailurePolicy FailureKind = "policy"
	// FailureRequest: what was asked for cannot be done, such as a program that the
	// image does not have.
	FailureRequest FailureKind = "request"
	// FailureHandler: the caller said that its handler failed.
	FailureHandler  FailureKind = "handler"
	FailureCanceled FailureKind = "canceled"
	// FailureInterrupted: the daemon ended meanwhile.
	FailureInterrupted FailureKind = "interrupted"
	// FailureCapacity: the machine or the tenant had no capacity.
	FailureCapacity FailureKind = "capacity"
	FailureInternal FailureKind = "internal"
)

// FailureKinds lists every kind.
func FailureKinds() []FailureKind {
	return []FailureKind{
		FailureExit, FailureTimeout, FailureOOM, FailureLost, FailureExpired, FailureEnded, FailurePolicy, FailureRequest,
		FailureHandler, FailureCanceled, FailureInterrupted, FailureCapacity, FailureInternal,
	}
}

// ProgramStep is one thing that happened in a program, for who follows it.
type ProgramStep struct {
	// Seq counts the steps from 1.
	Seq   int64     `json:"seq"`
	Time  time.Time `json:"time"`
	Phase string    `json:"phase"`
	// State is the phase's state, or "waiting" where a handler waits.
	State string `json:"state"`
	// Command is the number of the command that begins, from 0; null for the phase.
	Command *int   `json:"command,omitempty"`
	Text    string `json:"text,omitempty"`
	// Sandbox is the id of the sandbox, once there is one.
	Sandbox string `json:"sandbox,omitempty"`
}

// ProgramMessage is one line of a followed program: a step, or last the program or the
// error.
type ProgramMessage struct {
	Step    *ProgramStep `json:"step,omitempty"`
	Program *Program     `json:"program,omitempty"`
	Error   *Error       `json:"error,omitempty"`
}

// ProgramList is programs, newest first.
type ProgramList struct {
	Programs []Program `json:"programs"`
}
