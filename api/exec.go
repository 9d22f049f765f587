package api

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// ExecRequest runs one program in a sandbox. Exactly one of Argv, Shell and
// Python is set.
type ExecRequest struct {
	// Naming chooses the sandbox by who asks, where it is called RefByNaming.
	Naming
	// ExecID names the process; empty lets the server choose. An exec that
	// repeats a caller's id with the same request does not run again: it waits for
	// the first one and returns its result, as long as that is kept.
	ExecID string `json:"exec_id,omitempty"`
	// Argv is executed as it is, by no shell. A name without slash is searched
	// in the PATH of Env.
	Argv []string `json:"argv,omitempty"`
	// Shell is a script for /bin/sh -c (bash where the image has it is the
	// caller's to ask for by Argv).
	Shell string `json:"shell,omitempty"`
	// Python is a program for python3 -c.
	Python string `json:"python,omitempty"`
	// Env is added over the sandbox's.
	Env map[string]string `json:"env,omitempty"`
	// Cwd is absolute; empty is the sandbox's.
	Cwd string `json:"cwd,omitempty"`
	// User overrides the sandbox's.
	User string `json:"user,omitempty"`
	// WaitEndpoints are names of endpoints that must be ready before the program is
	// started. One that is not after 30 seconds, or never will be, is an error.
	WaitEndpoints []string `json:"wait_endpoints,omitempty"`
	// Phase is the one of a program that it belongs to, which settles what endpoints
	// give to its environment; empty is PhaseRun. See Phases.
	Phase string `json:"phase,omitempty"`
	// Stdin is the whole input of a collected exec.
	Stdin Bytes `json:"stdin,omitempty"`
	// TimeoutMS kills the whole process tree after that long; nil is the
	// sandbox's limit, 0 is unlimited where the profile allows it.
	TimeoutMS *int64 `json:"timeout_ms,omitempty"`
	// CancelWithCaller kills the whole process tree when the call that waits for the exec
	// ends before it, whatever ended the call: the caller's death, its cancellation, a
	// connection that broke, or a daemon that was stopped. Without it the exec goes on.
	// Only for execs: a managed process outlives the call that starts it.
	CancelWithCaller bool `json:"cancel_with_caller,omitempty"`
	// MaxOutputBytes of each stream are kept, head and tail; 0 is the sandbox's.
	MaxOutputBytes int64 `json:"max_output_bytes,omitempty"`
	// MaxOutputChars cuts what was kept of each stream to so many Unicode characters,
	// with TruncateText, for a result that a model is to read; nil cuts nothing. Only
	// for collected execs. See Result.LimitText.
	MaxOutputChars *int64 `json:"max_output_chars,omitempty"`
	// Combined gives the program one pipe for stdout and stderr: the exact
	// order, reported as stdout.
	Combined bool `json:"combined,omitempty"`
	// TTY gives the program a terminal of Rows × Cols; it implies Combined.
	// Only for streamed execs.
	TTY  bool   `json:"tty,omitempty"`
	Rows uint16 `json:"rows,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
}

// Result is what became of an exec. A command's failure is a result, not an
// error.
type Result struct {
	// ExitCode is null until it is known, and when a signal ended the program.
	ExitCode *int `json:"exit_code"`
	// Signal is the name of the signal that ended it, such as "KILL".
	Signal string `json:"signal,omitempty"`
	// TimedOut: the timeout killed it. Output so far is in Stdout and Stderr.
	TimedOut bool `json:"timed_out,omitempty"`
	// OOM: the sandbox's memory limit killed it.
	OOM bool `json:"oom,omitempty"`
	// SandboxLost: the sandbox died with it.
	SandboxLost bool `json:"sandbox_lost,omitempty"`
	// TerminalReason is why the sandbox ended, where that ended the program.
	TerminalReason TerminalReason `json:"terminal_reason,omitempty"`
	// Reason explains an outcome that has neither exit code nor signal.
	Reason string `json:"reason,omitempty"`
	// Stdout and Stderr are what was kept of each stream, head and tail. Between
	// the two of a truncated stream stands a line that says how many bytes are
	// missing; that line is not counted in StdoutInfo and StderrInfo.
	Stdout Bytes `json:"stdout"`
	Stderr Bytes `json:"stderr"`
	// StdoutB64 and StderrB64 are the same bytes once more, in base64, in an answer
	// whose Stdout or Stderr is not UTF-8: for readers of JSON that know no Bytes. They
	// are made when a Result is encoded, and nothing reads them.
	StdoutB64 []byte `json:"stdout_b64,omitempty"`
	StderrB64 []byte `json:"stderr_b64,omitempty"`
	// Chunks gives the order in which the kept output arrived at the agent.
	Chunks []Chunk `json:"chunks,omitempty"`
	// Truncated is set when anything was dropped from either stream, StdoutTruncated
	// and StderrTruncated when it was from that one, by bytes or by characters.
	Truncated       bool `json:"truncated"`
	StdoutTruncated bool `json:"stdout_truncated,omitempty"`
	StderrTruncated bool `json:"stderr_truncated,omitempty"`
	// StdoutInfo and StderrInfo count what came from the program, whatever
	// MaxOutputChars left of it.
	StdoutInfo StreamCounts `json:"stdout_bytes"`
	StderrInfo StreamCounts `json:"stderr_bytes"`
	DurationMS int64        `json:"duration_ms"`
	// ExecID names the process in the sandbox's logs.
	ExecID string `json:"exec_id,omitempty"`
	// Adjusted lists values of the request that policy changed.
	Adjusted []Adjustment `json:"adjusted,omitempty"`
	// Refusals are what was not let out of the sandbox while the program ran, by
	// whichever process of it; at most the first 100.
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

// LimitText makes text of both streams and cuts each to so many characters, with
// TruncateText. Bytes that are not UTF-8 become U+FFFD, one for each run of them. Of a
// result of which something was cut the order of arrival is not known any more.
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

// StreamCounts says what became of the bytes of one stream.
type StreamCounts struct {
	Kept    int64 `json:"kept"`
	Dropped int64 `json:"dropped"`
}

// Chunk is a run of bytes of one stream, in order of arrival.
type Chunk struct {
	Stream Stream `json:"stream"`
	Len    int64  `json:"len"`
}

// Stream is one of a process's streams.
type Stream string

// The streams.
const (
	Stdin  Stream = "stdin"
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// OK is true only for a known exit code 0.
func (r *Result) OK() bool { return r != nil && r.ExitCode != nil && *r.ExitCode == 0 }

// Output is the kept text of both streams in the order in which it arrived.
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

// ExitStatus is the status with which a shell would report the result: the exit
// code, 128+n for signal n, 124 for a timeout, 125 when the outcome is unknown.
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

// RunRequest is one server call that makes a sandbox, runs one program in it
// and removes it, whatever becomes of the caller.
type RunRequest struct {
	Spec SandboxSpec `json:"spec"`
	// Exec may have none of Argv, Shell and Python: then the image's own command
	// runs, its entrypoint and its default arguments.
	Exec ExecRequest `json:"exec"`
	// Keep leaves the sandbox running afterwards.
	Keep bool `json:"keep,omitempty"`
}

// RunResult is the answer to a RunRequest.
type RunResult struct {
	Sandbox Sandbox `json:"sandbox"`
	Result  Result  `json:"result"`
}
