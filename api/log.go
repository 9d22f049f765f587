package api

import "time"

// LogOptions choose from a sandbox's logs: the output of its processes.
type LogOptions struct {
	// ExecID chooses one process; empty is all, in the order of their start.
	ExecID string
	// Stream chooses Stdout or Stderr; empty is both.
	Stream Stream
	// Tail keeps only the last so many lines; 0 is all that is kept.
	Tail int
	// Since begins at a byte: of the chosen stream, or, when none is chosen, of
	// both together, as LogEntry.Position counts. It needs ExecID. Negative counts
	// from the end.
	Since *int64
	// SinceTime leaves out what was written before; zero is no bound.
	SinceTime time.Time
	// Follow goes on with what is written next, until the chosen process, or the
	// sandbox, has ended. The last entry says why in End.
	Follow bool
	// WaitMS waits so long for a first entry if there is no entry yet, at most a
	// minute: a long poll.
	WaitMS int64
}

// LogEntry is one run of output bytes of one process.
type LogEntry struct {
	ExecID string `json:"exec_id"`
	Stream Stream `json:"stream"`
	// Offset of the first byte in that stream since the process began.
	Offset int64 `json:"offset"`
	// Position of the first byte in both streams together, in the order in which
	// the agent read them.
	Position int64     `json:"position"`
	Time     time.Time `json:"time"`
	Data     Bytes     `json:"data"`
	// Gap is set, with no data, where so many bytes were dropped before Offset:
	// of the chosen stream, or of both together when none is chosen.
	Gap int64 `json:"gap,omitempty"`
	// End is set, with no data, on the last entry of a log that is followed: why
	// there is no more, such as "exited".
	End string `json:"end,omitempty"`
}
