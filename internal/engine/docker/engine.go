package docker

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// What requests call these engines. They differ in where the daemon is looked for.
const (
	Docker = "docker"
	Podman = "podman"
)

// Deadlines of what the engine waits for. None is a promise; each only bounds how
// long a daemon that hangs can hold a caller.
const (
	probeTimeout = 10 * time.Second
	callTimeout  = 30 * time.Second
	closeTimeout = time.Minute
	fillTimeout  = 10 * time.Minute // an image goes to the daemon
)

// Options configure an Engine.
type Options struct {
	// Name is Docker or Podman. Required.
	Name string
	// Hosts are where the daemon may be, such as "unix:///var/run/docker.sock"; the
	// first that answers is used. See Hosts.
	Hosts []string
	// CertDir has ca.pem, cert.pem and key.pem for a daemon behind TCP; empty is no
	// TLS, which is for this machine alone.
	CertDir string
	// Runtime is the daemon's name of an OCI runtime; empty is the daemon's choice.
	Runtime string
	// RuntimeTier is what the operator says of the Runtime; empty is namespace.
	RuntimeTier api.Tier
	// SharesHostFS is what the operator says of the daemon's files; empty is ShareAuto.
	SharesHostFS Sharing
	// Inner returns the program that plays package inner's roles: static, and one that
	// does so when it is started as inner.Argv0. Required.
	Inner func() ([]byte, error)
	// ExePath is the executable that plays the watcher's role (see Dispatch); empty is
	// the running one.
	ExePath string
	// Logger receives what cannot be returned; nil discards it.
	Logger *slog.Logger
}

// Engine is a docker engine.
type Engine struct {
	opts Options
	log  *slog.Logger
	// life ends with Close, and with it the watch over each instance.
	life context.Context
	end  context.CancelFunc
	wg   sync.WaitGroup

	inner func() (program, error) // found once

	mu      sync.Mutex
	daemons map[string]*daemon // by host
	stores  sync.Map           // of *store, by host
}

// program is the program of package inner.
type program struct {
	data []byte
	hash string
}

// daemon is one that is talked to.
type daemon struct {
	*client.Client
	host string
	// shared reports whether it shares the host's files; nil if that is not known yet.
	shared atomic.Pointer[bool]
}

var (
	_ engine.Engine = (*Engine)(nil)
	_ engine.Able   = (*Engine)(nil)
	_ engine.Host   = (*Engine)(nil)

	_ engine.VolumeKeeper = (*Engine)(nil)
)

// New makes an engine. It connects to no daemon yet.
func New(o Options) (*Engine, error) {
	if o.Name != Docker && o.Name != Podman {
		return nil, api.Errorf(api.CodeInternal, "engine %q is neither docker nor podman", o.Name)
	}
	if o.Inner == nil {
		return nil, api.Errorf(api.CodeInternal, "%s engine: no program for the inside", o.Name)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.RuntimeTier == "" {
		o.RuntimeTier = api.TierNamespace
	}
	life, end := context.WithCancel(context.Background())
	return &Engine{
		opts: o, log: o.Logger.With("engine", o.Name), life: life, end: end, daemons: map[string]*daemon{},
		inner: sync.OnceValues(func() (program, error) {
			data, err := o.Inner()
			return program{data, hash(string(data))}, err
		}),
	}, nil
}

// Abilities implements engine.Able.
func (e *Engine) Abilities() engine.Abilities {
	return engine.Abilities{Tier: api.TierNamespace, Link: true, Pause: true}
}

// Name implements engine.Engine.
func (e *Engine) Name() string { return e.opts.Name }

// Terms implements engine.Host. The daemon's cgroup limits the number of processes,
// and what is inside may not mount a hierarchy.
func (e *Engine) Terms() engine.Terms {
	return engine.Terms{LimitsPids: true, NoGroups: true, CountsAgent: true, KeepsOwners: true, CoversSockets: true}
}

// Close ends the engine's own goroutines. Instances that were created with
// DieWithParent die with this process; the others live on.
func (e *Engine) Close() error {
	e.end()
	e.wg.Wait()
	return nil
}
