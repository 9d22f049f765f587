package api

import "time"

// ProcessSpec starts a managed process. A managed process keeps running when its clients
// disconnect, its output can be read from any offset, and its exit record is kept. ExecID is its ID
// in the sandbox (see ValidName); if it is empty, the server chooses one. A start that repeats an
// ID with the same spec returns the existing process, so a client that lost the answer can retry.
type ProcessSpec struct {
	ExecRequest
	// Name is for people. It does not have to be unique.
	Name string `json:"name,omitempty"`
	// OpenStdin keeps the input open after Stdin was written, until it is closed. The input of a
	// terminal is always open.
	OpenStdin bool `json:"open_stdin,omitempty"`
	// Restart is the restart policy. Nil is RestartNever.
	Restart *Restart `json:"restart,omitempty"`
	// Ready is the readiness check; nil means no check.
	Ready *Readiness `json:"ready,omitempty"`
	// OnFull says what happens to output that the daemon does not read out of the sandbox. Empty
	// is OnFullDrop.
	OnFull OnFull `json:"on_full,omitempty"`
	// RestoreSignal is the name of a signal, such as "USR1", that the process gets each time it continues
	// from saved memory: after a resume, in a fork and in a sandbox that starts from a snapshot with memory.
	// A process that does not handle it may end by it. Empty means no signal.
	RestoreSignal string `json:"restore_signal,omitempty"`
}

// Restart is a restart policy. The process keeps its ID, its log and the log's offsets. Each run
// starts with the same argv and environment. A signal request that ends the process, a remove and a
// stop end the policy too.
type Restart struct {
	Policy RestartPolicy `json:"policy"`
	// MaxRestarts is the maximum number of consecutive restarts; 0 is no limit. A run that lasts
	// ten back-offs, and at least ten seconds, resets the count and the back-off.
	MaxRestarts int `json:"max_restarts,omitempty"`
	// BackoffMS is the wait before the first restart. It doubles up to MaxBackoffMS. The defaults
	// for 0 are 500 and 30 000.
	BackoffMS    int64 `json:"backoff_ms,omitempty"`
	MaxBackoffMS int64 `json:"max_backoff_ms,omitempty"`
}

// RestartPolicy says when a process is restarted.
type RestartPolicy string

// Restart policies.
const (
	RestartNever     RestartPolicy = "never"
	RestartOnFailure RestartPolicy = "on-failure"
	RestartAlways    RestartPolicy = "always"
)

// Readiness says how to detect that a process is ready. Exactly one of Port, Log and HTTP is set.
// The check runs inside the sandbox.
type Readiness struct {
	// Port is ready when something accepts TCP connections at 127.0.0.1 or ::1 on this port.
	Port int `json:"port,omitempty"`
	// Log is a regular expression (RE2). The process is ready when a line of its output matches.
	Log string `json:"log,omitempty"`
	// HTTP is ready when a GET of this path at 127.0.0.1 or ::1 returns a status below 400.
	HTTP *HTTPProbe `json:"http,omitempty"`
	// TimeoutMS is how long after the start the process is reported as not ready. The process
	// keeps running. 0 is DefaultReadyTimeoutMS.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// IntervalMS is the time between two checks; 0 is 200.
	IntervalMS int64 `json:"interval_ms,omitempty"`
}

// HTTPProbe is a request that checks whether a server is ready.
type HTTPProbe struct {
	Port int    `json:"port"`
	Path string `json:"path,omitempty"`
}

// DefaultReadyTimeoutMS is five minutes.
const DefaultReadyTimeoutMS = 300_000

// OnFull says what happens when the sandbox holds the maximum of output and the daemon does not
// read it.
type OnFull string

// Values of OnFull.
const (
	// OnFullDrop drops the oldest bytes. A reader gets a gap with their number.
	OnFullDrop OnFull = "drop"
	// OnFullBlock blocks the process until the daemon reads again.
	OnFullBlock OnFull = "block"
)

// ProcessState is the state of a process.
type ProcessState string

// States of a process.
const (
	ProcessStarting ProcessState = "starting"
	ProcessRunning  ProcessState = "running"
	ProcessReady    ProcessState = "ready"
	// ProcessBackoff means that it ended and will be restarted.
	ProcessBackoff ProcessState = "backoff"
	// ProcessExited means that it ended. Process says how.
	ProcessExited ProcessState = "exited"
	// ProcessFailed means that it could not be executed, or reached its maximum number of
	// restarts.
	ProcessFailed ProcessState = "failed"
	// ProcessUnknown means that its sandbox died or is unreachable and its exit was not observed.
	// Reason says why.
	ProcessUnknown ProcessState = "unknown"
)

// Ended reports whether a process in this state will never run again.
func (s ProcessState) Ended() bool {
	return s == ProcessExited || s == ProcessFailed || s == ProcessUnknown
}

// Process is the record of one process of a sandbox: of an exec or a managed process.
type Process struct {
	ExecID string       `json:"exec_id"`
	Name   string       `json:"name,omitempty"`
	Argv   []string     `json:"argv"`
	State  ProcessState `json:"state"`
	// Managed is set for a process that was started by a ProcessSpec.
	Managed bool `json:"managed,omitempty"`
	// PID is its process ID inside the sandbox while it runs.
	PID int  `json:"pid,omitempty"`
	TTY bool `json:"tty,omitempty"`
	// StartedAt is when the present or last run began.
	StartedAt time.Time  `json:"started_at"`
	ReadyAt   *time.Time `json:"ready_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	// Running is true until the exit is known.
	Running bool `json:"running"`
	// ExitCode is nil until it is known, and if a signal ended the process.
	ExitCode *int   `json:"exit_code"`
	Signal   string `json:"signal,omitempty"`
	TimedOut bool   `json:"timed_out,omitempty"`
	OOM      bool   `json:"oom,omitempty"`
	// Reason explains why the process failed, is unknown or is not ready, if no other field does.
	Reason string `json:"reason,omitempty"`
	// Restarts counts the runs after the first.
	Restarts int `json:"restarts,omitempty"`
	// LastStderr is the last line of stderr, truncated to 256 bytes. With a terminal, it is the
	// last line of the output.
	LastStderr string `json:"last_stderr,omitempty"`
	// Position is the number of output bytes that it has written to both streams together.
	Position int64 `json:"position"`
	// StdinOffset is the number of input bytes that it has been given.
	StdinOffset int64 `json:"stdin_offset,omitempty"`
	StdinOpen   bool  `json:"stdin_open,omitempty"`
	// ObservedAt is when this record was last known to be current. It is only set in lists. It is
	// older than the list if the sandbox's agent does not answer.
	ObservedAt time.Time `json:"observed_at,omitzero"`
	// Readers and Writer say how many attached clients read, and whether one writes.
	Readers int  `json:"readers,omitempty"`
	Writer  bool `json:"writer,omitempty"`
}

// ProcessList lists the processes of one sandbox in the order of their start.
type ProcessList struct {
	Processes []Process `json:"processes"`
}

// WaitRequest waits for a process. The answer is sent when the process has ended, when it is ready
// (if Ready is set) or when the time is up. The record says which.
type WaitRequest struct {
	// Ready also waits for readiness.
	Ready bool `json:"ready,omitempty"`
	// TimeoutMS is the maximum wait; 0 is the server's maximum, one minute.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
}

// SignalRequest sends a signal. A signal that ends a process also ends its restart policy.
type SignalRequest struct {
	// Signal is the signal's name, such as "TERM".
	Signal string `json:"signal"`
	// Scope says which processes get it. Empty is ScopeTree.
	Scope SignalScope `json:"scope,omitempty"`
	// Forestall is for a caller that gave up on a start and did not get its answer. If no process
	// has the ID, a KILL also refuses the start of a managed process with that ID during
	// KilledMemory. An exec is refused without Forestall too.
	Forestall bool `json:"forestall,omitempty"`
}

// KilledMemory is how long a sandbox remembers a KILL for an ID that no process has. An exec with
// that ID is not started during that time. The answer to the signal is still CodeNotFound. A
// sandbox remembers the last 1024 such IDs.
const KilledMemory = 2 * time.Minute

// SignalScope says which processes get a signal.
type SignalScope string

// Scopes of a signal.
const (
	// ScopeTree is the process and every process that it started, detached ones included.
	ScopeTree SignalScope = "tree"
	// ScopeGroup is its process group. For a terminal it is the foreground group.
	ScopeGroup SignalScope = "group"
	// ScopeProcess is the process only.
	ScopeProcess SignalScope = "process"
)

// StdinAck says how much input a process has been given since its start.
type StdinAck struct {
	Offset int64 `json:"offset"`
}

// AttachRequest attaches to a process. The output begins at Since and continues as it is written.
// An attach that is slow or breaks neither blocks nor ends the process.
type AttachRequest struct {
	// Since is the position to begin at. A negative value counts from the end, and nil is the
	// end.
	Since *int64 `json:"since,omitempty"`
	// Write lets the attach write the process's input. Only one attach at a time can do that.
	Write bool `json:"write,omitempty"`
	// Exclusive refuses other attaches that write or are exclusive, and all other writes of
	// input, for as long as this attach lasts. Use it for protocols over stdio. It implies Write.
	Exclusive bool `json:"exclusive,omitempty"`
	// StdinOffset is the offset of the first input byte that the caller will send. Nil is the
	// present end. Bytes that the process already has are ignored.
	StdinOffset *int64 `json:"stdin_offset,omitempty"`
	// Rows and Cols resize the terminal first, if both are set.
	Rows uint16 `json:"rows,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
}

// MaxOpenPorts is the maximum number of open ports of a sandbox.
const MaxOpenPorts = 32

// PortSpec opens a TCP port of a sandbox as a URL.
type PortSpec struct {
	// Port is the port inside the sandbox, 1 to 65535.
	Port int `json:"port"`
	// Public lets every client that can connect to the daemon's listener for ports use the URL.
	// Otherwise requests need the token that the answer has.
	Public bool `json:"public,omitempty"`
	// TTLMS closes the port after this time. 0 closes it with the sandbox, or after the policy's
	// maximum if there is one.
	TTLMS int64 `json:"ttl_ms,omitempty"`
	// KeepHost passes the Host and Origin of requests on to the program. Otherwise the program
	// gets localhost:PORT, as if the browser ran beside it.
	KeepHost bool `json:"keep_host,omitempty"`
}

// OpenPort is an open port of a sandbox.
type OpenPort struct {
	Port     int  `json:"port"`
	Public   bool `json:"public"`
	KeepHost bool `json:"keep_host,omitempty"`
	// URL is the origin of the port, without a token: "http://8000-ID.localhost:PORT/".
	URL       string    `json:"url"`
	CreatedAt time.Time `json:"created_at"`
	// ExpiresAt is nil if the port stays open until it is closed or the sandbox ends.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// OpenedPort is the answer to the opening of a port. No other answer has the token.
type OpenedPort struct {
	OpenPort
	// Token is empty for a public port. Programs send it in the header PortTokenHeader.
	Token string `json:"token,omitempty"`
	// AccessURL is URL with the token in the query parameter PortTokenParameter, for a browser.
	AccessURL string `json:"access_url"`
}

// PortList is the open ports of a sandbox, sorted by number.
type PortList struct {
	Ports []OpenPort `json:"ports"`
}

// Where requests to an open port have its token. Neither reaches the sandbox.
const (
	PortTokenHeader    = "X-Cloche-Port-Token"
	PortTokenParameter = "cloche_token"
)

// The numbers are those of Linux on every architecture that Cloche supports. The sandbox runs
// Linux, whatever the client runs.
var signalNumbers = map[string]int{
	"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8,
	"KILL": 9, "USR1": 10, "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15,
	"STKFLT": 16, "CHLD": 17, "CONT": 18, "STOP": 19, "TSTP": 20, "TTIN": 21, "TTOU": 22,
	"URG": 23, "XCPU": 24, "XFSZ": 25, "VTALRM": 26, "PROF": 27, "WINCH": 28, "IO": 29,
	"PWR": 30, "SYS": 31,
}

// SignalNumber returns the number of a signal named as in Result.Signal, or 0.
func SignalNumber(name string) int { return signalNumbers[name] }

// SignalName returns the name of a signal, such as "KILL" for 9, or "" for a
// number that has none.
func SignalName(n int) string {
	for name, m := range signalNumbers {
		if m == n {
			return name
		}
	}
	return ""
}
