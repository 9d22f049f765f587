package api

import "time"

// LogOptions selects from a sandbox's logs, which hold the output of its processes.
type LogOptions struct {
	// ExecID selects one process. Empty selects all, in the order of their start.
	ExecID string
	// Stream selects Stdout or Stderr. Empty selects both.
	Stream Stream
	// Tail selects only the last Tail lines; 0 selects all that are kept.
	Tail int
	// Since is the byte position to begin at: in the selected stream or, if none is selected, in
	// both together, as LogEntry.Position counts. It requires ExecID. A negative value counts
	// from the end.
	Since *int64
	// SinceTime skips output that was written earlier. Zero is no limit.
	SinceTime time.Time
	// Follow continues with new output until the selected process, or the sandbox, ends. End of
	// the last entry says why.
	Follow bool
	// WaitMS is how long to wait for the first entry if no entry is kept, at most one minute (a long
	// poll).
	WaitMS int64
}

// LogEntry is one run of output bytes of one process.
type LogEntry struct {
	ExecID string `json:"exec_id"`
	Stream Stream `json:"stream"`
	// Offset is the position of the first byte in its stream since the process began.
	Offset int64 `json:"offset"`
	// Position is the position of the first byte in both streams together, in the order in which
	// the agent read them.
	Position int64     `json:"position"`
	Time     time.Time `json:"time"`
	Data     Bytes     `json:"data"`
	// Gap is set, without data, if this many bytes before Offset were dropped: of the selected
	// stream, or of both together if none is selected.
	Gap int64 `json:"gap,omitempty"`
	// End is set, without data, on the last entry of a followed log. It says why the log ended,
	// such as "exited".
	End string `json:"end,omitempty"`
}
