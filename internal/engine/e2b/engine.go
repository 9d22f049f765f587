package e2b

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// Name is what requests call this engine.
const Name = "e2b"

// Dir is where the agent is put inside. Another Cloche that serves the sandbox has its own agent at the
// usual path.
const Dir = "/opt/cloche"

// Lifetimes of sandboxes at the service, which the engine extends again and again. They bound how long
// a sandbox outlives the daemon, because the service removes it then.
const (
	DefaultLifetime = time.Hour
	parentLifetime  = 30 * time.Second
)

// Deadlines of what the engine waits for. None is a promise: each only bounds how long a service that
// hangs can hold a caller.
const (
	probeTimeout  = 10 * time.Second
	callTimeout   = 30 * time.Second
	createTimeout = 2 * time.Minute
)

// Options configure an Engine.
type Options struct {
	// APIKey is sent to the service. Without one the engine is not usable.
	APIKey string
	// APIURL is the service's API: a URL, or a domain whose host "api" has it. Empty is E2B's own.
	APIURL string
	// SandboxURL is where the data plane of every sandbox is. Empty is the domain that the service
	// names, and the API's host if it names none.
	SandboxURL string
	// Template is the template of sandboxes whose image is the default one. Empty is "base".
	Template string
	// Lifetime is how long a sandbox exists without this engine. 0 is DefaultLifetime.
	Lifetime time.Duration
	// AssumeNoNetwork accepts a service that does not confirm that a sandbox has no internet access.
	AssumeNoNetwork bool
	// HostMounts has the service mount directories of this machine, as CubeSandbox does. It must run on
	// this machine.
	HostMounts bool
	// Inner returns the program that plays package inner's roles. Required.
	Inner func() ([]byte, error)
	// Logger receives what cannot be returned. Nil discards it.
	Logger *slog.Logger
}

// Engine is an e2b engine.
type Engine struct {
	opts    Options
	log     *slog.Logger
	service *service
	problem *api.Problem // of the options; may be nil
	inner   func() ([]byte, error)

	// life ends with Close, and with it the watch over each instance.
	life context.Context
	end  context.CancelFunc
	wg   sync.WaitGroup

	uploads uploads
	making  sync.Map // of struct{}, by owner and ID
}

var (
	_ engine.Engine = (*Engine)(nil)
	_ engine.Able   = (*Engine)(nil)
	_ engine.Remote = (*Engine)(nil)

	_ engine.VolumeKeeper = (*Engine)(nil)
)

// New makes an engine. It sends nothing to the service yet.
func New(o Options) (*Engine, error) {
	if o.Inner == nil {
		return nil, api.Errorf(api.CodeInternal, "e2b engine: no program for the inside")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Template == "" {
		o.Template = "base"
	}
	if o.Lifetime == 0 {
		o.Lifetime = DefaultLifetime
	}
	e := &Engine{opts: o, log: o.Logger.With("engine", Name), inner: sync.OnceValues(o.Inner)}
	e.service, e.problem = newService(o)
	e.life, e.end = context.WithCancel(context.Background())
	return e, nil
}

// Name implements engine.Engine.
func (e *Engine) Name() string { return Name }

// Abilities implements engine.Able.
func (e *Engine) Abilities() engine.Abilities { return engine.Abilities{Tier: api.TierRemote} }

// RemoteTerms implements engine.Remote.
func (e *Engine) RemoteTerms() engine.RemoteTerms {
	return engine.RemoteTerms{AgentDir: Dir, HostMounts: e.opts.HostMounts}
}

// RemoveVolume implements engine.VolumeKeeper. No volume outlives its sandbox: one with a name is refused.
func (e *Engine) RemoveVolume(context.Context, string) error { return nil }

// Close ends the engine's own goroutines. The sandboxes stay at the service until their lifetime ends.
func (e *Engine) Close() error {
	e.end()
	e.wg.Wait()
	e.service.http.CloseIdleConnections()
	return nil
}
