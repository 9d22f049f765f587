package wire

import (
	"slices"

	"github.com/cloche-dev/cloche"
)

// Version is the protocol that this build speaks, and the one before it where
// there was one.
const (
	Version    = 1
	MinVersion = 1
)

// Hello opens a connection.
type Hello struct {
	// Versions are those that the host speaks.
	Versions []int  `json:"versions"`
	Token    []byte `json:"token"`
}

// Welcome answers a Hello whose token was right.
type Welcome struct {
	// Version is the one to speak; 0 when there is none in common.
	Version int `json:"version"`
	// Versions are those that the agent speaks.
	Versions []int `json:"versions"`
}

// Versions lists what this build speaks.
func Versions() []int {
	var vs []int
	for v := Version; v >= MinVersion; v-- {
		vs = append(vs, v)
	}
	return vs
}

// Choose returns the newest version that both sides speak, or 0.
func Choose(theirs []int) int {
	for _, v := range Versions() {
		if slices.Contains(theirs, v) {
			return v
		}
	}
	return 0
}

// Op is what a stream is for.
type Op string

// The operations.
const (
	OpExec      Op = "exec"   // collected: input follows, then output, then Exit
	OpStream    Op = "stream" // Started, then output and input, then Exit
	OpProcesses Op = "processes"
	OpLogs      Op = "logs"
	OpSignal    Op = "signal"
	OpTerminate Op = "terminate"
	OpStat      Op = "stat"
	OpList      Op = "list"
	OpRead      Op = "read"
	OpWrite     Op = "write"
	OpMakeDir   Op = "mkdir"
	OpMove      Op = "move"
	OpRemove    Op = "remove"
	OpTarOut    Op = "tar_out"
	OpTarIn     Op = "tar_in"
)

// Request is the first frame of a stream. Which fields count depends on Op.
type Request struct {
	Op   Op           `json:"op"`
	Exec *Exec        `json:"exec,omitempty"`
	Logs *Logs        `json:"logs,omitempty"`
	Path cloche.Bytes `json:"path,omitempty"`
	To   cloche.Bytes `json:"to,omitempty"`
	User string       `json:"user,omitempty"`
	Mode uint32       `json:"mode,omitempty"`
	// Cursor and Limit page a list.
	Cursor cloche.Bytes `json:"cursor,omitempty"`
	Limit  int          `json:"limit,omitempty"`
	// Offset and Length are the part of a file to read; a negative Length is the
	// rest of it.
	Offset    int64  `json:"offset,omitempty"`
	Length    int64  `json:"length,omitempty"`
	Parents   bool   `json:"parents,omitempty"`
	Recursive bool   `json:"recursive,omitempty"`
	ExecID    string `json:"exec_id,omitempty"`
	Signal    int    `json:"signal,omitempty"`
	GraceMS   int64  `json:"grace_ms,omitempty"`
}

// Exec is a program to run.
type Exec struct {
	ID        string         `json:"id"`
	Argv      []cloche.Bytes `json:"argv"`
	Env       []cloche.Bytes `json:"env,omitempty"`
	Cwd       cloche.Bytes   `json:"cwd,omitempty"`
	User      string         `json:"user,omitempty"`
	TimeoutMS int64          `json:"timeout_ms,omitempty"`
	MaxOutput int64          `json:"max_output,omitempty"`
	Combined  bool           `json:"combined,omitempty"`
	TTY       bool           `json:"tty,omitempty"`
	Rows      uint16         `json:"rows,omitempty"`
	Cols      uint16         `json:"cols,omitempty"`
	// Input: KindInput frames follow, closed by KindEnd.
	Input bool `json:"input,omitempty"`
}

// Logs choose from the rings.
type Logs struct {
	ExecID string        `json:"exec_id,omitempty"`
	Stream cloche.Stream `json:"stream,omitempty"`
	Tail   int           `json:"tail,omitempty"`
}

// Signal is sent to the process group of a stream's program.
type Signal struct {
	Number int `json:"number"`
}

// FileReply answers what concerns one file.
type FileReply struct {
	Info cloche.FileInfo `json:"info"`
}

// Empty is an answer that says nothing but that it was done.
type Empty struct{}
