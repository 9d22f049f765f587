package sandbox

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/await"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/agentconn"
	"github.com/cloche-dev/cloche/internal/sandbox/deadline"
	"github.com/cloche-dev/cloche/internal/sandbox/endpoints"
	"github.com/cloche-dev/cloche/internal/sandbox/ports"
	"github.com/cloche-dev/cloche/internal/sandbox/process"
	"github.com/cloche-dev/cloche/internal/sandbox/retry"
	"github.com/cloche-dev/cloche/internal/sandbox/template"
	"github.com/cloche-dev/cloche/internal/sandbox/usage"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// handle is a sandbox as the packages below this one see it.
type handle struct {
	m *Manager
	s *live
}

func (h handle) Use() (release func())   { return h.s.use() }
func (h handle) Explain(err error) error { return h.s.explain(err) }
func (h handle) StoppedAt() *time.Time   { return h.s.snapshot().StoppedAt }
func (h handle) Info() api.Sandbox       { return h.s.snapshot() }
func (h handle) PortConn() ports.Conn    { return h.Dialer()() }

// Wake implements ports.Sandbox.
func (h handle) Wake(ctx context.Context) error { return h.m.waker.wake(ctx, h.s) }

// Agent implements endpoints.Sandbox.
func (h handle) Agent(ctx context.Context) (*agent.Client, error) {
	return h.m.agentOf(ctx, h.s)
}

// connect gives the tables of a new record their services.
func (m *Manager) connect(s *live) {
	s.endpoints.Init(m.Service, endpoints.Names{ID: s.id, Name: s.name, Tenant: s.tenant}, handle{m, s})
	s.ports.Init(m.ctx, handle{m, s})
	s.copies.Told = m.copier.told(s)
	s.deadlines.Init(deadline.Options{
		Sandbox: s.id, Dir: s.dir, Context: m.ctx, Background: m.background, Logger: m.log, Grace: m.deadlineGrace, Look: m.deadlineLook,
		Process: func(ctx context.Context, id string) (*api.Process, error) { return m.askAbout(ctx, s, id) },
		Condemn: func(reason string, cause error) { m.condemn(s, reason, cause) },
	})
	s.procs.Init(m.Runner, process.Names{ID: s.id, Name: s.name, Tenant: s.tenant}, s.dir, handle{m, s})
}

// portsOf returns the open ports of the sandbox with an ID, or nil.
func portsOf(m *Manager, id string) *ports.Table {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.byID[id]; s != nil {
		return &s.ports
	}
	return nil
}

// SavePorts implements ports.Sandbox.
func (h handle) SavePorts() error {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.s.save()
}

// SharedDirs implements endpoints.Sandbox.
func (h handle) SharedDirs() []string {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	dirs := []string{h.s.info.Workspace.Path}
	for _, m := range h.s.info.Mounts {
		dirs = append(dirs, m.Target)
	}
	return dirs
}

// Save implements endpoints.Sandbox.
func (h handle) Save(specs []api.Endpoint) error {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.info.Endpoints = specs
	return h.s.save()
}

// Changed implements endpoints.Sandbox.
func (h handle) Changed(name string, state api.EndpointState, reason string) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if !h.s.making.Announced() {
		return // it belongs to the create
	}
	h.m.opts.Events(api.Event{
		Time: now(), Kind: api.EventKind("endpoint." + string(state)), Tenant: h.s.tenant, Sandbox: h.s.id, Name: h.s.name,
		Endpoint: name, Reason: reason,
	})
}

// Writing implements files.Sandbox.
func (h handle) Writing() (done func(error)) {
	h.s.writes.Add(1)
	return func(err error) {
		if err != nil {
			h.s.cut.Store(true)
		}
		h.s.writes.Add(-1)
	}
}

func (h handle) Over() bool                                   { return h.s.over() }
func (h handle) Removing() bool                               { return h.s.isRemoving() }
func (h handle) Ended() <-chan struct{}                       { return h.s.ended }
func (h handle) DiedWithin(err error) bool                    { return h.s.diedWithin(err) }
func (h handle) Refusals() func() []api.EgressRefusal         { return h.s.refusals() }
func (h handle) Measure()                                     { h.m.workspaces.measureAfter(h.s) }
func (h handle) SetDeadline(id string, timeout time.Duration) { h.s.deadlines.Set(id, timeout) }
func (h handle) MeetDeadline(id string)                       { h.s.deadlines.Meet(id) }
func (h handle) AskDeadline(id string, by int)                { h.s.deadlines.Ask(id, by) }

// Dirs implements files.Sandbox.
func (h handle) Dirs() []workspace.Attached {
	if _, hears := h.m.engineNamed(h.s.snapshot().Engine).(engine.Host); hears {
		return nil
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.s.dirs
}

// Attended implements process.Agent.
func (h handle) Attended(ctx context.Context) (context.Context, func()) {
	return h.m.attended(ctx, h.s)
}

// Dialer implements process.Agent.
func (h handle) Dialer() func() process.Conn {
	h.s.mu.Lock()
	token, ended := h.s.token, h.s.inst == nil && h.s.info.State != api.StateSuspended
	h.s.mu.Unlock()
	return func() process.Conn {
		o := agentconn.Options{Dialer: present{h.s}, Token: token}
		if ended {
			o.Dialer = nil
		}
		c := agentconn.New(o)
		if h.m.dialed != nil {
			h.m.dialed(h.s.id, c)
		}
		return c
	}
}

// Reached implements process.Agent.
func (h handle) Reached() bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.s.inst != nil
}

// Ending implements process.State.
func (h handle) Ending() process.Ending {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return process.Ending{OOM: h.s.end.oom, Reason: h.s.end.reason, TerminalReason: cmp.Or(h.s.info.TerminalReason, h.s.end.cause())}
}

// Defaults implements process.Programs.
func (h handle) Defaults(phase string) process.Defaults {
	exports := h.s.endpoints.Exports(phase)
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return process.Defaults{Image: h.s.image.Env, Exports: exports, Cwd: h.s.info.Cwd, User: h.s.info.User, MissingHint: h.s.image.MissingHint}
}

// SecretEnv implements process.Programs.
func (h handle) SecretEnv(ctx context.Context) (map[string]string, error) { return h.m.given(ctx, h.s) }

// WaitEndpoints implements process.Programs.
func (h handle) WaitEndpoints(ctx context.Context, names []string) error {
	return h.s.endpoints.Wait(ctx, names)
}

// OOMKills implements process.Programs.
func (h handle) OOMKills(ctx context.Context) int64 {
	h.s.mu.Lock()
	inst := h.s.inst
	h.s.mu.Unlock()
	if inst == nil {
		return 0
	}
	st, _ := usage.Stat(ctx, inst)
	h.m.sawKills(h.s, st.OOMKills)
	return st.OOMKills
}

// OOMSeen implements process.Programs.
func (h handle) OOMSeen() int64 {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.s.oomSeen
}

// removeCutWrites removes partial files of interrupted writes from the workspace of a sandbox
// without running processes. The writes were cut off by its end, or by an end that this daemon did
// not observe. A private workspace can be read after a stop.
func (m *Manager) removeCutWrites(ctx context.Context, s *live) {
	ws := s.snapshot().Workspace
	if !s.cut.Load() && s.writes.Load() == 0 || ws.Dir != "" || ws.Volume || ws.ReadOnly || ws.Layered || s.isRemoving() && ws.Name == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	dir, err := m.workspaces.open(s)
	if err == nil {
		err = errors.Join(dir.RemoveCutWrites(ctx), dir.Close())
	}
	if err != nil {
		m.log.Warn("remove what writes left that were cut off", "sandbox", s.id, "error", err)
	}
	s.cut.Store(false)
}

// assign makes the types that do a part of the work each.
func (m *Manager) assign() {
	m.keys = newKeys(m)
	m.layers, m.networks, m.pauser, m.recovery, m.refused = layers{m}, networks{m}, pauser{m, new(sync.Mutex)}, recovery{m}, refusalReader{m}
	m.reaper = reaper{m: m, wake: make(chan struct{}, 1)}
	m.retrier = retrier{m: m, pace: retry.Teardown()}
	m.workspaces = workspaces{m: m}
	m.copier, m.waker, m.Starter, m.Forker = copier{m}, waker{m}, Starter{m, make(chan struct{}, 4)}, Forker{m, &template.Checked{}}
}

// byEngine notes that a call waits for the engine of an instance, until done is called.
func byEngine(ctx context.Context, inst any) (done func()) {
	return await.Of(ctx, agentconn.Named(inst, "the sandbox's engine"))
}

// lockOps locks s.ops for a call.
func (s *live) lockOps(ctx context.Context) {
	defer await.For(ctx, "another operation on the sandbox")()
	s.ops.Lock()
}

// finder returns a function that finds a part of a sandbox, for a caller that may use the verb.
func finder[T any](m *Manager, part func(*live) T) func(policy.Caller, policy.Verb, string) (T, error) {
	return func(caller policy.Caller, verb policy.Verb, ref string) (found T, err error) {
		s, err := m.find(caller, verb, ref)
		if err != nil {
			return found, err
		}
		return part(s), nil
	}
}

// user is finder for a use of the sandbox, see [waker.find].
func user[T any](m *Manager, part func(*live) T) func(context.Context, policy.Caller, policy.Verb, string) (T, error) {
	return func(ctx context.Context, caller policy.Caller, verb policy.Verb, ref string) (found T, err error) {
		s, err := m.waker.find(ctx, caller, verb, ref)
		if err != nil {
			return found, err
		}
		return part(s), nil
	}
}
