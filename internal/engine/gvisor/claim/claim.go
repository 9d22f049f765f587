// Package claim is how an engine tells a sentry that waits what it is going to be.
package claim

import "github.com/cloche-dev/cloche/internal/engine/gvisor/early"

const (
	// Socket and Crash are its descriptors when it starts.
	Socket = early.Executable + 1
	Crash  = early.Executable + 2
	// FirstFile is the number of the first descriptor that it is given with its
	// command line: above all that it has opened until then, and far enough below
	// those that gVisor wants for itself, which begin at 253.
	FirstFile = 48
	MaxFiles  = 253 - FirstFile
	// TableSize makes the kernel give it a table of descriptors that holds all these
	// from the start. Later, when it has threads, each enlargement waits until every
	// processor has been through its scheduler: ten milliseconds and more.
	TableSize = 253
	// MaxBytes bounds the message that ends the waiting.
	MaxBytes = 128 << 10
	// TitleRoom is how long that may be, in bytes.
	TitleRoom = 2048
)

// Claim says what a parked sentry is going to be.
type Claim struct {
	// Args is the command line.
	Args []string `json:"args"`
	// Title is the command line that others are shown from then on.
	Title []string `json:"title"`
	// Attached: it dies with the thread that forked it.
	Attached bool `json:"attached,omitempty"`
}
