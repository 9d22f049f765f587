package api

import "time"

// ProcessSpec starts a managed process: one that outlives every client, whose
// output can be read from any offset, and whose exit record is kept. ExecID
// names it in its sandbox (see ValidName); empty lets the server choose. A start
// that repeats an id with the same spec returns the process that has it, so a
// lost answer can be asked for again.
type ProcessSpec struct {
	ExecRequest
	// Name is for people; it need not be unique.
	Name string `json:"name,omitempty"`
	// OpenStdin keeps the input open, after Stdin was written, until it is
	// closed. A terminal's always is.
	OpenStdin bool `json:"open_stdin,omitempty"`
	// Restart says what happens when it ends; nil is RestartNever.
	Restart *Restart `json:"restart,omitempty"`
	// Ready says when it counts as ready; nil is never.
	Ready *Readiness `json:"ready,omitempty"`
	// OnFull says what happens to output that isn't read from the sandbox;
	// empty is OnFullDrop.
	OnFull OnFull `json:"on_full,omitempty"`
}

// Restart is a restart policy. The process keeps its id, its log and the
// offsets in it; each run begins with the same argv and environment. A signal
// on request, remove and stop end it for good.
type Restart struct {
	Policy RestartPolicy `json:"policy"`
	// MaxRestarts in a row without having run for ten back-offs, and for ten
	// seconds at least; 0 is no bound. Such a run lets the back-off begin anew too.
	MaxRestarts int `json:"max_restarts,omitempty"`
	// BackoffMS is the wait before the first restart; it doubles up to
	// MaxBackoffMS. 0 is 500 and 30 000.
	BackoffMS    int64 `json:"backoff_ms,omitempty"`
	MaxBackoffMS int64 `json:"max_backoff_ms,omitempty"`
}

// RestartPolicy is when a process is started again.
type RestartPolicy string

// The restart policies.
const (
	RestartNever     RestartPolicy = "never"
	RestartOnFailure RestartPolicy = "on-failure"
	RestartAlways    RestartPolicy = "always"
)

// Readiness says how to see that a process is ready. Exactly one of Port, Log
// and HTTP is set. It is judged inside the sandbox.
type Readiness struct {
	// Port: something accepts TCP connections at 127.0.0.1 on it.
	Port int `json:"port,omitempty"`
	// Log: a line of its output matches this regular expression (RE2).
	Log string `json:"log,omitempty"`
	// HTTP: a GET of this path at 127.0.0.1 is answered with a status below 400.
	HTTP *HTTPProbe `json:"http,omitempty"`
	// TimeoutMS after the start it is reported as not ready, and goes on; 0 is
	// DefaultReadyTimeoutMS.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// IntervalMS is the time between two tries; 0 is 200.
	IntervalMS int64 `json:"interval_ms,omitempty"`
}

// HTTPProbe is a request that tells whether a server is ready.
type HTTPProbe struct {
	Port int    `json:"port"`
	Path string `json:"path,omitempty"`
}

// DefaultReadyTimeoutMS is five minutes.
const DefaultReadyTimeoutMS = 300_000

// OnFull is what happens when the sandbox's output buffer is full.
type OnFull string

// The ways.
const (
	// OnFullDrop drops the oldest bytes; a reader finds a gap that says how many.
	OnFullDrop OnFull = "drop"
	// OnFullBlock holds the process up until the daemon reads again.
	OnFullBlock OnFull = "block"
)

// ProcessState is where a process is in its life.
type ProcessState string

// The states.
const (
	ProcessStarting ProcessState = "starting"
	ProcessRunning  ProcessState = "running"
	ProcessReady    ProcessState = "ready"
	// ProcessBackoff: it ended and is about to be started again.
	ProcessBackoff ProcessState = "backoff"
	// ProcessExited: it ended, and Process says how.
	ProcessExited ProcessState = "exited"
	// ProcessFailed: it could not be executed, or was restarted as often as it may.
	ProcessFailed ProcessState = "failed"
	// ProcessUnknown: its sandbox died or can't be reached, so its end was not
	// observed; Reason says why.
	ProcessUnknown ProcessState = "unknown"
)

// Ended reports whether a process in this state will never run again.
func (s ProcessState) Ended() bool {
	return s == ProcessExited || s == ProcessFailed || s == ProcessUnknown
}

// Process is what is on record about one process of a sandbox: of an exec, or a
// managed one.
type Process struct {
	ExecID string       `json:"exec_id"`
	Name   string       `json:"name,omitempty"`
	Argv   []string     `json:"argv"`
	State  ProcessState `json:"state"`
	// Managed: it was started by a ProcessSpec.
	Managed bool `json:"managed,omitempty"`
	// PID is its number inside the sandbox while it runs.
	PID int  `json:"pid,omitempty"`
	TTY bool `json:"tty,omitempty"`
	// StartedAt is when its present or last run began.
	StartedAt time.Time  `json:"started_at"`
	ReadyAt   *time.Time `json:"ready_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	// Running is true until the exit is known.
	Running bool `json:"running"`
	// ExitCode is null until it is known, and when a signal ended the process.
	ExitCode *int   `json:"exit_code"`
	Signal   string `json:"signal,omitempty"`
	TimedOut bool   `json:"timed_out,omitempty"`
	OOM      bool   `json:"oom,omitempty"`
	// Reason explains a state that nothing else does: why it failed, is unknown or
	// is not ready.
	Reason string `json:"reason,omitempty"`
	// Restarts counts the runs after the first.
	Restarts int `json:"restarts,omitempty"`
	// LastStderr is the last line of its error output, cut to 256 bytes; of its
	// output where it has a terminal.
	LastStderr string `json:"last_stderr,omitempty"`
	// Position is how many bytes of output it has written, both streams together.
	Position int64 `json:"position"`
	// StdinOffset is how many bytes of input it has been given.
	StdinOffset int64 `json:"stdin_offset,omitempty"`
	StdinOpen   bool  `json:"stdin_open,omitempty"`
	// ObservedAt is when this was last known to be so; only in a list. It is older than
	// the list where the sandbox's agent does not answer.
	ObservedAt time.Time `json:"observed_at,omitzero"`
	// Readers and Writer say who is attached.
	Readers int  `json:"readers,omitempty"`
	Writer  bool `json:"writer,omitempty"`
}

// ProcessList is the processes of one sandbox in the order of their start.
type ProcessList struct {
	Processes []Process `json:"processes"`
}

// WaitRequest waits for a process. An answer comes when it has ended, or is
// ready where that was asked for, or when the time is up, whichever is first:
// the record tells which.
type WaitRequest struct {
	// Ready waits for readiness too.
	Ready bool `json:"ready,omitempty"`
	// TimeoutMS is how long; 0 is as long as the server lets a request wait, a
	// minute.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
}

// SignalRequest sends a signal, and ends any restart policy when the signal is
// one that ends a process.
type SignalRequest struct {
	// Signal is its name, such as "TERM".
	Signal string `json:"signal"`
	// Scope says who gets it; empty is ScopeTree.
	Scope SignalScope `json:"scope,omitempty"`
	// Forestall is for a caller that gave up a start whose answer it does not have: where
	// no process has the id, a KILL also refuses the start of a managed process under that
	// id during KilledMemory. An exec is refused without it.
	Forestall bool `json:"forestall,omitempty"`
}

// KilledMemory is for how long a sandbox remembers a KILL for an id that no process has.
// An exec that comes with that id meanwhile is not started. The answer to the signal is
// still CodeNotFound. A sandbox remembers the last 1024 such ids.
const KilledMemory = 2 * time.Minute

// SignalScope is who gets a signal.
type SignalScope string

// The scopes.
const (
	// ScopeTree: every process that it started, however they detached themselves.
	ScopeTree SignalScope = "tree"
	// ScopeGroup: its process group; of a terminal, the foreground group.
	ScopeGroup SignalScope = "group"
	// ScopeProcess: itself alone.
	ScopeProcess SignalScope = "process"
)

// StdinAck says how much input a process has been given since its start.
type StdinAck struct {
	Offset int64 `json:"offset"`
}

// AttachRequest joins a process. Its output comes from Since on and then as it
// is written; the process is neither held up nor ended by what becomes of the
// attach.
type AttachRequest struct {
	// Since is the position to begin at; negative counts from the end, and nil is
	// the end.
	Since *int64 `json:"since,omitempty"`
	// Write takes the process's input. Only one attach at a time has it.
	Write bool `json:"write,omitempty"`
	// Exclusive refuses every other attach that is exclusive or writes, and every
	// other write of input, while it lasts: a peer that speaks a protocol over
	// stdio needs that. It implies Write.
	Exclusive bool `json:"exclusive,omitempty"`
	// StdinOffset is the offset of the first byte of input that the caller will
	// send; nil is the present end. Bytes that were given already are ignored.
	StdinOffset *int64 `json:"stdin_offset,omitempty"`
	// Rows and Cols resize the terminal first, where both are set.
	Rows uint16 `json:"rows,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
}
