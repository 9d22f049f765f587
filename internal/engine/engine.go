// Package engine is the contract between the house and what isolates a
// sandbox. An engine does one thing: it makes an isolated place from a Plan,
// starts the agent in it and hands back a stream to it. All else is done by the
// agent, so it is the same on every engine.
package engine

import (
	"context"
	"net"
	"time"

	"github.com/cloche-dev/cloche"
)

// Engine isolates sandboxes. Implementations are safe for concurrent use. Every
// sentence of these comments is proved by package enginetest.
type Engine interface {
	// Name is what requests call it.
	Name() string
	// Probe says what this engine can do on this machine now. It changes nothing
	// and leaves nothing behind.
	Probe(ctx context.Context) Report
	// Create makes the place, starts the agent as its first process and returns
	// when the agent listens. On error nothing is left behind.
	Create(ctx context.Context, p Plan) (Instance, error)
	// Recover finds an instance again from its State, in this process or a later
	// one. A dead instance is cloche.CodeNotFound, after what was left of it is
	// gone.
	Recover(ctx context.Context, state []byte) (Instance, error)
	// Sweep removes every instance of owner whose id is not in keep, with all
	// that belongs to it, and nothing of any other owner.
	Sweep(ctx context.Context, owner string, keep []string) error
}

// Instance is one isolated place.
type Instance interface {
	// State is what Recover needs. It is opaque, holds no secret, and does not
	// change over the instance's life.
	State() []byte
	// Dial opens a new stream to the agent. It authenticates nothing: the caller
	// does, with the token it put in the agent's configuration.
	Dial(ctx context.Context) (net.Conn, error)
	// Done is closed when the instance has died, by whatever cause.
	Done() <-chan struct{}
	// Close kills every process and removes all that Create made. It is
	// idempotent and needs no help from inside. Close of a dead instance cleans up.
	Close(ctx context.Context) error
}

// Statter is an Instance that can say what it uses.
type Statter interface {
	Stat(ctx context.Context) (Stat, error)
}

// Stat is what an instance uses now.
type Stat struct {
	// MemoryBytes is what the kernel charges the whole instance.
	MemoryBytes int64
	// CPU is processor time used since Create.
	CPU time.Duration
	// OOMKills counts kills for memory since Create; it never falls.
	OOMKills int64
}

// Report is what Probe finds: the same that a doctor shows.
type Report = cloche.EngineReport

// Plan is all that an engine needs: host paths and numbers, nothing left to
// decide. Whoever made it owns the paths: those of Mounts are valid until Create
// returns, the others until Close.
type Plan struct {
	// ID is unique under Owner and safe as a file name.
	ID string
	// Owner names the daemon (or in-process run) that the instance belongs to;
	// it is safe as a file name.
	Owner string
	// Dir is an empty 0700 directory for the engine's own files. The caller
	// removes it after Close.
	Dir string
	// Hostname is what the sandbox calls itself.
	Hostname string
	// Root is the root filesystem.
	Root Root
	// Mounts are directories (or files) of the host, in order of mounting.
	Mounts []Mount
	// Tmpfs are memory filesystems, each with a size.
	Tmpfs []Tmpfs
	// Limits are to be enforced; zero is none. What an engine's Report says it
	// cannot enforce is never in a Plan.
	Limits Limits
	// Agent is the first process.
	Agent Agent
	// DieWithParent makes the kernel kill the instance when the calling process
	// dies. Otherwise it lives on.
	DieWithParent bool
}

// Root is a root filesystem.
type Root struct {
	// Image is a host path of an EROFS image without inline data.
	Image string
	// ReadOnly gives it no writable layer.
	ReadOnly bool
}

// Mount is a host directory or file, seen inside, always nosuid and nodev.
type Mount struct {
	// Source is a path nobody but the caller can change.
	Source   string
	Target   string
	ReadOnly bool
	// Static promises that nobody changes what is mounted while the instance
	// lives, so that the engine may keep what it has seen: the machine's own tools
	// are, a user's files are not. Only for read-only mounts.
	Static bool
}

// Tmpfs is a memory filesystem.
type Tmpfs struct {
	Target    string
	SizeBytes int64
	Mode      uint32
}

// Limits are enforced on the instance as a whole.
type Limits struct {
	CPUs        float64
	MemoryBytes int64
	// Pids is for the processes that the agent starts; the agent and the engine's
	// own processes are not counted. It is enforced by the agent, which is given
	// it in its configuration; the engine provides what the agent needs for that.
	Pids int64
	// DiskBytes bounds the writable layer of the root.
	DiskBytes int64
}

// Agent is how to start the agent.
//
// It is started with Argv, an environment that is empty or HOME=/, descriptor 3 open for reading
// on Config followed by end of file, and descriptor 4 open for writing. It
// writes one byte to descriptor 4 when it listens on TCP 127.0.0.1:Port inside,
// or a line of text that says why it cannot. Descriptor 5 may be a stream socket:
// a connection that the engine has made already and gives to the first Dial; the
// agent serves it as one that it accepted. Descriptors 0 to 2 are /dev/null.
type Agent struct {
	// Image is a host path of a read-only EROFS image that holds the program.
	Image string
	// Target is where the engine mounts Image.
	Target string
	// Argv[0] is the program's path inside.
	Argv []string
	// UID is the uid and the gid that it is started as inside, with every
	// capability whatever they are; 0 is root.
	UID    uint32
	Config []byte
	Port   int
}
