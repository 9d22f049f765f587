// Package langbot is the API server for LangBot: it speaks what LangBot's own box
// runtime speaks, over WebSocket and over stdio, and translates that into core's
// verbs. What LangBot calls a session is a sandbox here, and what it calls a
// workspace with its instance is a tenant.
package langbot

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

const (
	// sessionTTL is how long an idle session is kept that is not persistent, where the
	// configuration says nothing else.
	sessionTTL = 300 * time.Second
	// reapEvery is how often idle sessions are looked for.
	reapEvery = 30 * time.Second
	// maxActions bounds the actions of one connection that are under way.
	maxActions = 128
	// dropTimeout bounds the end of one session.
	dropTimeout = time.Minute
)

// Core is what this API server needs of Cloche.
type Core interface {
	Sandboxes
	Rules
	Processes
	SkillVerbs
	SkillFileVerbs
}

// Sandboxes are core's verbs on sandboxes.
type Sandboxes interface {
	Create(ctx context.Context, caller core.Caller, spec api.SandboxSpec, progress func(step string)) (api.Sandbox, error)
	Get(ctx context.Context, caller core.Caller, ref string) (api.Sandbox, error)
	Resume(ctx context.Context, caller core.Caller, ref string) (api.Sandbox, error)
	Stop(ctx context.Context, caller core.Caller, ref string, grace *time.Duration) (api.Sandbox, error)
	StartSandbox(ctx context.Context, caller core.Caller, ref string, progress func(step string)) (api.Sandbox, error)
	Remove(ctx context.Context, caller core.Caller, ref string) error
	Exec(ctx context.Context, caller core.Caller, ref string, req api.ExecRequest) (api.Result, error)
}

// Rules are core's verbs on what the machine and the operator's rules allow, and on the
// record of what was refused.
type Rules interface {
	// Engines are the reports of all engines, as fresh as a few seconds.
	Engines(ctx context.Context, caller core.Caller) ([]api.EngineReport, error)
	Status(ctx context.Context, caller core.Caller) api.Status
	// EngineAtLeast says why an engine isolates less than the operator's choice: the
	// engine own, or where that is empty what the rules say. Nil is that it does not.
	EngineAtLeast(ctx context.Context, engine, own string) error
	// ExplainPolicy says what policy would say to a create. Nothing is done.
	ExplainPolicy(ctx context.Context, caller core.Caller, q api.PolicyQuestion) (api.PolicyAnswer, error)
	Info(ctx context.Context, caller core.Caller) api.Info
	// RefusedConnection records that a connection was refused, and how many before it
	// were without a record.
	RefusedConnection(remote, reason string, notTold int64)
}

// Processes are core's verbs on managed processes.
type Processes interface {
	StartProcess(ctx context.Context, caller core.Caller, ref string, spec api.ProcessSpec) (api.Process, error)
	GetProcess(ctx context.Context, caller core.Caller, ref, id string) (api.Process, error)
	WaitProcess(ctx context.Context, caller core.Caller, ref, id string, w api.WaitRequest) (api.Process, error)
	SignalProcess(ctx context.Context, caller core.Caller, ref, id string, r api.SignalRequest) error
	RemoveProcess(ctx context.Context, caller core.Caller, ref, id string) error
	Logs(ctx context.Context, caller core.Caller, ref string, o api.LogOptions, fn func(api.LogEntry) error) error
	Attach(ctx context.Context, caller core.Caller, ref, id string, r api.AttachRequest) (Attachment, error)
}

// Attachment is the relay's place at a process. Close leaves the process.
type Attachment interface {
	Recv() (core.AttachEvent, error)
	Write(p []byte) error
	Close() error
}

// FromCore makes a Core of core's own service.
func FromCore(s *core.Service) Core { return service{s} }

type service struct{ *core.Service }

func (s service) Attach(ctx context.Context, caller core.Caller, ref, id string, r api.AttachRequest) (Attachment, error) {
	a, err := s.Service.Attach(ctx, caller, ref, id, r)
	if err != nil {
		return nil, err
	}
	return a, nil
}

// Options are what a Server works with. Core, Dir and WorkDir are required.
type Options struct {
	Core Core
	// Dir keeps what has to outlive this process: which sandbox is which session.
	Dir string
	// SkillsDir is where core keeps skills, where the configuration says nothing else.
	SkillsDir string
	// WorkDir is where relative paths of the configuration begin.
	WorkDir string
	// Token is what a connection shows; where it is empty, Peer decides.
	Token string
	// Peer says why the other end of a connection from remote to local may not come in
	// without a token; nil refuses everyone.
	Peer func(local, remote string) error
	// Instance is the one instance that is served; empty is the first that comes.
	Instance string
	// Config is the box section of the configuration, as JSON; it may be empty.
	Config string
	// Environ has BOX_BACKEND and BOX__*, as os.Environ has them.
	Environ []string
	// FileDir is where uploads lie until they are used; empty is below Dir.
	FileDir string
	// UnsafeStorage has the checks of storage pass that nothing here enforces.
	UnsafeStorage bool
	// Deadlines are how long actions are served; zero is the defaults.
	Deadlines Deadlines
	// Redact takes the values of secrets out of errors; nil knows none.
	Redact func(string) string
	// Logger is never given a token or an environment; nil discards.
	Logger *slog.Logger
}

// Server is the runtime: its sessions, and its listeners. It is safe for
// concurrent use.
type Server struct {
	o     Options
	core  Core
	log   *slog.Logger
	pin   *pin
	fence *fence
	store *store
	ops   keyed
	grant *grants
	// deadlines are those of the options, or their defaults.
	deadlines Deadlines

	refusals refusals
	// localOnce: it was told once what the backend local stands for.
	localOnce sync.Once

	// live ends when the server does.
	live context.Context
	end  context.CancelFunc
	wg   sync.WaitGroup

	// operator are the settings that the operator started the server with: what a client
	// says later narrows them.
	operator *settings

	mu  sync.Mutex
	cfg *settings
	// sessions are by their physical id; those that are being made or ended are
	// counted beside them.
	sessions          map[string]*session
	creating, closing int
	// quiet, if a caller waits for it, is closed when no session is being made.
	quiet chan struct{}
	// shutting: box_shutdown is under way.
	shutting bool
	// starting counts processes that are being started.
	starting int
	// control are the connections of this moment, to be closed at the end.
	control map[*wsConn]struct{}
	done    bool
}

// ValidToken says what is wrong with a token.
func ValidToken(token string) error {
	if token == "" {
		return nil
	}
	if t := strings.TrimSpace(token); len(t) < 32 || strings.ContainsAny(t, " \t\r\n") {
		return api.Invalid("token", "the control token has %d characters, or white space in it", len(t)).
			WithHint("use at least 32, such as the output of `openssl rand -hex 32`")
	}
	return nil
}

// New makes a Server and finds the sessions of the one before.
func New(ctx context.Context, o Options) (*Server, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Token = strings.TrimSpace(o.Token)
	if err := ValidToken(o.Token); err != nil {
		return nil, err
	}
	p, err := newPin(o.Token, o.Instance)
	if err != nil {
		return nil, err
	}
	st, err := openStore(o.Dir)
	if err != nil {
		return nil, err
	}
	s := &Server{
		o: o, core: o.Core, log: o.Logger, pin: p, store: st, sessions: map[string]*session{}, control: map[*wsConn]struct{}{},
		grant: newGrants(), deadlines: o.Deadlines.filled(),
	}
	given := []byte("{}")
	if o.Config != "" {
		if json.Valid([]byte(o.Config)) {
			given = []byte(o.Config)
		} else {
			s.log.Warn("the configuration is no JSON and is left out", "variable", fromStart)
		}
	}
	if s.cfg, err = o.configure(nil, given, said{source: fromStart, before: fromNobody}); err != nil {
		return nil, errors.Join(startError(err), st.close())
	}
	s.operator = s.cfg
	s.fence = newFence(s.cfg.limits.Records)
	s.live, s.end = context.WithCancel(context.WithoutCancel(ctx))
	s.recover(ctx)
	c := s.choice(ctx)
	s.log.Info("box backend", "choice", s.cfg.backend, "source", s.cfg.source, "name", c.name, "available", c.available, "reason", c.reason)
	s.wg.Go(s.reap)
	return s, nil
}

// startError is a configuration's failure for who starts the program.
func startError(err error) error {
	var f *failure
	if errors.As(err, &f) {
		return api.Invalid("config", "%s", f.text).WithHint("fix the box section of the configuration")
	}
	return err
}

// Handler serves the control connection, relays and probes.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /rpc/ws", s.serveControl)
	mux.HandleFunc("GET /v1/sessions/{session}/managed-process/{process}/ws", relays{s}.serveRelay)
	mux.HandleFunc("GET /v1/sessions/{session}/managed-process/ws", relays{s}.serveRelay)
	mux.HandleFunc("GET /healthz", probes{s}.serveHealth)
	mux.HandleFunc("GET /readyz", probes{s}.serveReady)
	return mux
}

// Close closes every connection, ends sessions that are not persistent, and waits.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.done = true
	open := make([]*wsConn, 0, len(s.control))
	for c := range s.control {
		open = append(open, c)
	}
	s.mu.Unlock()
	var told sync.WaitGroup
	for _, c := range open { // one that does not answer blocks only itself
		told.Go(c.goAway)
	}
	told.Wait()
	s.end()
	s.wg.Wait()
	s.dropAll(ctx, func(x *session) bool { return !x.spec.Persistent })
	return s.store.close()
}

// settings are those in force.
func (s *Server) settings() *settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg
}

// caller is whom core sees. LangBot is the operator's own server: who holds the token
// speaks for all of its workspaces, and each of them is a tenant.
func (p placement) caller() core.Caller {
	c := core.TCPCaller()
	c.Tenant, c.Operator, c.UID = p.durable(), true, os.Getuid()
	return c
}

// daemon is the caller for what no workspace asks.
func fixture() core.Caller { return core.InProcessCaller(os.Getuid()) }

// choice asks which engine a session would get now, and whether it would get the limits
// that LangBot always sends.
func (s *Server) choice(ctx context.Context) choice {
	c := s.engine(ctx)
	if !c.available || bool(s.operator.box.Compat.AllowUnenforced) {
		return c
	}
	usual := api.SandboxSpec{
		Engine: c.engine, Network: api.NetworkNone, ReadOnlyRoot: new(true),
		Limits: api.Limits{CPUs: usualCPUs, MemoryBytes: usualMemoryMB << 20, Pids: usualPids},
	}
	answer, err := s.core.ExplainPolicy(ctx, fixture(), api.PolicyQuestion{Verb: "create", Spec: usual})
	if err != nil {
		return c // a create has the last word
	}
	if r := answer.Refusal; r != nil && unheldLimit(r) {
		c.available = false
		c.reason = r.Message + "; LangBot sends limits with every session: fix that, or set BOX__COMPAT__ALLOW_UNENFORCED_LIMITS=true to run sessions without the limits that cannot be enforced"
	}
	return c
}

// unheldLimit reports whether an error is about a limit that the engine cannot enforce.
func unheldLimit(e *api.Error) bool {
	return e.Code == api.CodeUnsupported && strings.HasPrefix(e.Field, "limits.")
}

// engine is choice without the limits.
func (s *Server) engine(ctx context.Context) choice {
	cfg := s.settings()
	status := s.core.Status(ctx, fixture())
	if !status.Enabled {
		return choice{reason: "the operator's rules switch sandboxes off"}
	}
	reports, err := s.core.Engines(ctx, fixture())
	if err != nil {
		return choice{reason: err.Error()}
	}
	own := choose(s.operator.backend, reports, status.Engine)
	if names, known := candidates(cfg.backend); known && names == nil {
		return own
	}
	if cfg.source != fromInit {
		return choose(cfg.backend, reports, status.Engine)
	}
	// LangBot sends local by default: that is the operator's choice.
	if cfg.backend == backendLocal {
		return own
	}
	c := choose(cfg.backend, reports, status.Engine)
	if !c.available {
		return c
	}
	floor := ""
	if s.operator.backend != "" {
		floor = own.name
	}
	if err := s.core.EngineAtLeast(ctx, c.name, floor); err != nil {
		return choice{engine: c.engine, name: c.name, reason: err.Error()}
	}
	return c
}
