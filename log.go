package cloche

import "time"

// LogOptions choose from a sandbox's logs: the output of its processes.
type LogOptions struct {
	// ExecID chooses one process; empty is all, in the order of their start.
	ExecID string
	// Stream chooses Stdout or Stderr; empty is both.
	Stream Stream
	// Tail keeps only the last so many lines; 0 is all that is kept.
	Tail int
}

// LogEntry is one run of output bytes of one process.
type LogEntry struct {
	ExecID string `json:"exec_id"`
	Stream Stream `json:"stream"`
	// Offset of the first byte in that stream since the process began.
	Offset int64     `json:"offset"`
	Time   time.Time `json:"time"`
	Data   Bytes     `json:"data"`
	// Gap is set, with no data, where so many bytes were dropped before Offset.
	Gap int64 `json:"gap,omitempty"`
}

// Process is what is on record about one exec of a sandbox.
type Process struct {
	ExecID    string     `json:"exec_id"`
	Argv      []string   `json:"argv"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	// Running is true until the exit is known.
	Running  bool   `json:"running"`
	ExitCode *int   `json:"exit_code"`
	Signal   string `json:"signal,omitempty"`
	TimedOut bool   `json:"timed_out,omitempty"`
	OOM      bool   `json:"oom,omitempty"`
}
