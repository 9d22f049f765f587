package process

import (
	"context"
	"log/slog"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/retention"
)

// callTimeout bounds a call to an agent.
const callTimeout = 30 * time.Second

// Options are what [Runner] are made of.
type Options struct {
	// Context ends when no more processes are managed.
	Context context.Context //nolint:containedctx // the service lives as long
	// Background runs a function that the owner of the service waits for. It reports false, and
	// runs nothing, when the owner closes.
	Background func(func()) (runs bool)
	Logger     *slog.Logger
	// Owner names the daemon in messages about files.
	Owner string
	// Retention bounds what is kept of ended processes.
	Retention retention.Rule
	// Wake makes the owner call Reap soon.
	Wake func()
	// Events is called for each event, in order for each sandbox. It must not block.
	Events func(api.Event)
	// Redacted removes the values of secrets from a record.
	Redacted func(api.Process) api.Process
	// Authorize checks whether a caller may use a verb on the sandbox of that name.
	Authorize func(caller policy.Caller, verb policy.Verb, ref string) error
	// Find returns the processes of the sandbox of that name, to a caller that may use the verb. It resumes a suspended
	// sandbox that is to be resumed by its use.
	Find func(ctx context.Context, caller policy.Caller, verb policy.Verb, ref string) (*Table, error)
}

// Runner runs programs in sandboxes and manages their processes. It is safe for concurrent use.
type Runner struct {
	o Options
	// maxLiving and maxEnded bound the processes of one sandbox; tests make them small.
	maxLiving, maxEnded int
}

// New returns a service without sandboxes.
func New(o Options) *Runner {
	return &Runner{o: o, maxLiving: maxLiving, maxEnded: maxEnded}
}

// SetBounds changes how many processes of one sandbox may live, and how many ended ones are kept. It is
// called before the service is used.
func (m *Runner) SetBounds(living, ended int) { m.maxLiving, m.maxEnded = living, ended }

// Names are the names of a sandbox.
type Names struct{ ID, Name, Tenant string }

// Sandbox is what a [Table] needs of its sandbox. Its methods are safe for concurrent use.
type Sandbox interface {
	Agent
	State
	Programs
	Deadlines
}

// Agent is how a sandbox's agent is reached.
type Agent interface {
	// Agent returns a client of the sandbox's agent, or says why it cannot.
	Agent(ctx context.Context) (*agent.Client, error)
	// Attended returns a context for a call that waits for what an agent reports on its own. The
	// context ends, with the reason as its cause, when the agent does not answer any more. The caller
	// calls done.
	Attended(ctx context.Context) (_ context.Context, done func())
	// Reached reports whether this daemon has the instance of the sandbox.
	Reached() bool
	// Dialer returns a function that makes connections of their own to the agent of that instance.
	Dialer() func() Conn
}

// Conn is a connection to an agent. It is dialed when first needed and again after it broke.
type Conn interface {
	Get(ctx context.Context) (*agent.Client, error)
	Close()
}

// State is what became of a sandbox.
type State interface {
	Info() api.Sandbox
	// Use counts as use of the sandbox until release is called.
	Use() (release func())
	// Over reports whether the instance has ended, Removing whether its files are being removed.
	Over() bool
	Removing() bool
	// Ended is closed when the instance has ended.
	Ended() <-chan struct{}
	// DiedWithin reports whether the instance died during the call that failed with err.
	DiedWithin(err error) bool
	// Explain says of an error of the agent what became of the sandbox.
	Explain(err error) error
	// Ending says how the instance ended.
	Ending() Ending
}

// Ending is how an instance ended.
type Ending struct {
	OOM            bool
	Reason         string
	TerminalReason api.TerminalReason
}

// Programs is what the programs of a sandbox are given, and what they do.
type Programs interface {
	// Defaults are what a program of a phase of a job gets if its request does not say.
	Defaults(phase string) Defaults
	// SecretEnv are the variables with secrets.
	SecretEnv(ctx context.Context) (map[string]string, error)
	// WaitEndpoints waits until endpoints are ready.
	WaitEndpoints(ctx context.Context, names []string) error
	// Refusals begins to collect refused connections, which the function returns.
	Refusals() func() []api.EgressRefusal
	// OOMKills reads the kernel's count of kills for memory, OOMSeen is the count as last read.
	OOMKills(ctx context.Context) int64
	OOMSeen() int64
	// SyncFiles synchronizes copies of directories of the host, before a program starts or after it
	// ended.
	SyncFiles(ctx context.Context, after bool) error
	// Measure measures the workspace in the background, after a process has ended.
	Measure()
}

// Defaults are what a program gets if its request does not say.
type Defaults struct {
	// Image is the environment of the image, Exports are the variables of the endpoints.
	Image, Exports map[string]string
	Cwd, User      string
	// MissingHint belongs to the error about a program that does not exist.
	MissingHint string
}

// Deadlines end programs whose time is over, also when a daemon restarts.
type Deadlines interface {
	// SetDeadline gives a program its time, MeetDeadline says that it has ended.
	SetDeadline(id string, timeout time.Duration)
	MeetDeadline(id string)
	// AskDeadline counts the calls that wait for a program: by is 1 or -1.
	AskDeadline(id string, by int)
}
