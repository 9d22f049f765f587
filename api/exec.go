package api

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// ExecRequest runs one program in a sandbox. Exactly one of Argv, Shell and
// Python is set.
type ExecRequest struct {
	// Naming selects the sandbox by the caller's identity, when the sandbox is given as
	// RefByNaming.
	Naming
	// ExecID is the ID of the process. If it is empty, the server chooses one. An exec that
	// repeats an ID with the same request does not run again: it waits for the first one and
	// returns its result, for as long as the result is kept.
	ExecID string `json:"exec_id,omitempty"`
	// Argv is executed directly, without a shell. A name without a slash is searched for in the
	// PATH of Env.
	Argv []string `json:"argv,omitempty"`
	// Shell is a script for /bin/sh -c. To use bash, if the image has it, set Argv.
	Shell string `json:"shell,omitempty"`
	// Python is a program for python3 -c.
	Python string `json:"python,omitempty"`
	// Env is added to the sandbox's environment and takes precedence.
	Env map[string]string `json:"env,omitempty"`
	// Cwd is an absolute path. Empty is the sandbox's working directory.
	Cwd string `json:"cwd,omitempty"`
	// User overrides the sandbox's user.
	User string `json:"user,omitempty"`
	// WaitEndpoints are names of endpoints that must be ready before the program starts. The exec
	// fails if one is not ready after 30 seconds or never will be.
	WaitEndpoints []string `json:"wait_endpoints,omitempty"`
	// Phase is the job phase that the exec belongs to. It decides which variables of
	// endpoints the process gets. Empty is PhaseRun. See Phases.
	Phase string `json:"phase,omitempty"`
	// Stdin is the complete input of a collected exec.
	Stdin Bytes `json:"stdin,omitempty"`
	// TimeoutMS is the time after which the whole process tree is killed. Nil is the sandbox's
	// limit. 0 is unlimited, if the profile allows it.
	TimeoutMS *int64 `json:"timeout_ms,omitempty"`
	// CancelWithCaller kills the whole process tree when the call that waits for the exec ends
	// first: because the caller ended or canceled it, because the connection broke, or because
	// the daemon stopped. Without it the exec continues. It is only for execs: a managed process
	// always continues after the call that starts it.
	CancelWithCaller bool `json:"cancel_with_caller,omitempty"`
	// MaxOutputBytes is how many bytes of each stream are kept, from its start and its end; 0 is
	// the sandbox's limit.
	MaxOutputBytes int64 `json:"max_output_bytes,omitempty"`
	// MaxOutputChars truncates what is kept of each stream to this many Unicode characters with
	// TruncateText, for results that a model reads. Nil does not truncate. It is only for
	// collected execs. See Result.LimitText.
	MaxOutputChars *int64 `json:"max_output_chars,omitempty"`
	// Combined gives the program one pipe for stdout and stderr. The exact order is kept, and all
	// output is reported as stdout.
	Combined bool `json:"combined,omitempty"`
	// TTY gives the program a terminal of Rows × Cols. It implies Combined and is only for
	// streamed execs.
	TTY  bool   `json:"tty,omitempty"`
	Rows uint16 `json:"rows,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
}

// Result is the outcome of an exec. A command that fails has a Result; it is not an error.
type Result struct {
	// ExitCode is nil until it is known, and if a signal ended the program.
	ExitCode *int `json:"exit_code"`
	// Signal is the name of the signal that ended the program, such as "KILL".
	Signal string `json:"signal,omitempty"`
	// TimedOut is set when the timeout killed the program. Stdout and Stderr hold the output
	// until then.
	TimedOut bool `json:"timed_out,omitempty"`
	// OOM is set when the sandbox's memory limit killed the program.
	OOM bool `json:"oom,omitempty"`
	// SandboxLost is set when the sandbox died while the program ran.
	SandboxLost bool `json:"sandbox_lost,omitempty"`
	// TerminalReason says why the sandbox ended, if its end also ended the program.
	TerminalReason TerminalReason `json:"terminal_reason,omitempty"`
	// Reason explains an outcome that has neither exit code nor signal.
	Reason string `json:"reason,omitempty"`
	// Stdout and Stderr are what was kept of each stream, from its start and its end. If a stream
	// was truncated, a line between the two parts says how many bytes are missing. StdoutInfo and
	// StderrInfo do not count that line.
	Stdout Bytes `json:"stdout"`
	Stderr Bytes `json:"stderr"`
	// StdoutB64 and StderrB64 are the same bytes in base64. They are set when Stdout or Stderr is
	// not UTF-8, for JSON readers that do not know the Bytes format. They are set when a Result
	// is encoded, and ignored when it is decoded.
	StdoutB64 []byte `json:"stdout_b64,omitempty"`
	StderrB64 []byte `json:"stderr_b64,omitempty"`
	// Chunks is the order in which the agent read the kept output.
	Chunks []Chunk `json:"chunks,omitempty"`
	// Truncated is set when output of either stream was dropped. StdoutTruncated and
	// StderrTruncated say which stream, whether bytes or characters were limited.
	Truncated       bool `json:"truncated"`
	StdoutTruncated bool `json:"stdout_truncated,omitempty"`
	StderrTruncated bool `json:"stderr_truncated,omitempty"`
	// StdoutInfo and StderrInfo count the program's output, independent of MaxOutputChars.
	StdoutInfo StreamCounts `json:"stdout_bytes"`
	StderrInfo StreamCounts `json:"stderr_bytes"`
	DurationMS int64        `json:"duration_ms"`
	// ExecID is the ID of the process in the sandbox's logs.
	ExecID string `json:"exec_id,omitempty"`
	// Adjusted lists values of the request that policy changed.
	Adjusted []Adjustment `json:"adjusted,omitempty"`
	// Refusals lists egress of any process of the sandbox that was refused while the program ran,
	// at most the first 100.
	Refusals []EgressRefusal `json:"refusals,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (r Result) MarshalJSON() ([]byte, error) {
	type plain Result
	r.StdoutB64, r.StderrB64 = nil, nil
	r.StdoutTruncated = r.StdoutTruncated || r.StdoutInfo.Dropped > 0
	r.StderrTruncated = r.StderrTruncated || r.StderrInfo.Dropped > 0
	if !utf8.Valid(r.Stdout) {
		r.StdoutB64 = r.Stdout
	}
	if !utf8.Valid(r.Stderr) {
		r.StderrB64 = r.Stderr
	}
	return json.Marshal(plain(r))
}

// LimitText converts both streams to text and truncates each to this many characters with
// TruncateText. Each run of bytes that are not UTF-8 becomes one U+FFFD. If something was
// truncated, the order of arrival of the two streams is no longer known.
func (r *Result) LimitText(chars int) {
	for _, s := range []struct {
		text *Bytes
		cut  *bool
		lost int64
	}{{&r.Stdout, &r.StdoutTruncated, r.StdoutInfo.Dropped}, {&r.Stderr, &r.StderrTruncated, r.StderrInfo.Dropped}} {
		before := strings.ToValidUTF8(string(*s.text), "\uFFFD")
		text, cut := TruncateText(before, chars)
		if len(text) != len(*s.text) {
			r.Chunks = nil
		}
		*s.text = Bytes(text)
		*s.cut = *s.cut || cut || s.lost > 0
		r.Truncated = r.Truncated || *s.cut
	}
}

// StreamCounts counts the bytes of one stream.
type StreamCounts struct {
	Kept    int64 `json:"kept"`
	Dropped int64 `json:"dropped"`
}

// Chunk is a run of bytes of one stream, in the order of arrival.
type Chunk struct {
	Stream Stream `json:"stream"`
	Len    int64  `json:"len"`
}

// Stream is one output stream of a process.
type Stream string

// The streams.
const (
	Stdin  Stream = "stdin"
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// OK reports whether the exit code is known and 0.
func (r *Result) OK() bool { return r != nil && r.ExitCode != nil && *r.ExitCode == 0 }

// Output returns the kept text of both streams in the order in which it arrived.
func (r *Result) Output() string {
	out := make([]byte, 0, len(r.Stdout)+len(r.Stderr))
	so, se := r.Stdout, r.Stderr
	take := func(b *Bytes, n int64) {
		n = min(max(n, 0), int64(len(*b)))
		out = append(out, (*b)[:n]...)
		*b = (*b)[n:]
	}
	for _, c := range r.Chunks {
		if c.Stream == Stderr {
			take(&se, c.Len)
		} else {
			take(&so, c.Len)
		}
	}
	out = append(out, so...)
	return string(append(out, se...))
}

// ExitStatus returns the status that a shell would report for the result: the exit code, 128+n for
// signal n, 124 for a timeout, and 125 when the outcome is unknown.
func (r *Result) ExitStatus() int {
	switch {
	case r.TimedOut:
		return 124
	case r.ExitCode != nil:
		return *r.ExitCode
	case r.Signal != "":
		if n := SignalNumber(r.Signal); n > 0 {
			return 128 + n
		}
	}
	return 125
}

// RunRequest creates a sandbox, runs one program in it and removes it, in one server call. The
// sandbox is removed even if the caller disconnects.
type RunRequest struct {
	Spec SandboxSpec `json:"spec"`
	// Exec can have none of Argv, Shell and Python. In that case the image's own command runs:
	// its entrypoint and its default arguments.
	Exec ExecRequest `json:"exec"`
	// Keep leaves the sandbox running after the program ends.
	Keep bool `json:"keep,omitempty"`
}

// RunResult is the answer to a RunRequest.
type RunResult struct {
	Sandbox Sandbox `json:"sandbox"`
	Result  Result  `json:"result"`
}
