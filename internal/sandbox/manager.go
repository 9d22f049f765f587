// Package sandbox owns live sandboxes: it assembles one from a Permit, keeps
// its state, talks to its agent, and takes it apart again. It owns every
// goroutine that a sandbox needs.
package sandbox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// Options are what a Manager works with. All fields but Ended are required.
type Options struct {
	// Dir is the owner's directory: 0700, and locked by the caller for as long as
	// the Manager lives.
	Dir string
	// Owner names the daemon or in-process run; engines keep owners apart by it.
	Owner string
	// Ephemeral sandboxes die with this process.
	Ephemeral bool

	Engines    []engine.Engine
	Images     *image.Store
	Workspaces *workspace.Store
	// AgentImage returns the EROFS image that holds the agent.
	AgentImage func(context.Context) (string, error)
	Logger     *slog.Logger
	// Ended is told of every sandbox that ended without being asked to. It must
	// not block.
	Ended func(cloche.Sandbox)
}

// Manager holds the sandboxes of one owner. It is safe for concurrent use.
type Manager struct {
	opts Options
	log  *slog.Logger

	// ctx ends when the Manager closes; background work hangs on it.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	byID   map[string]*live
	byName map[nameKey]*live
	closed bool
}

// nameKey is a name in its tenant.
type nameKey struct{ tenant, name string }

// live is one sandbox that the Manager knows. Records of ended ones are live
// too until they are removed.
type live struct {
	id, tenant, name string
	dir              string

	// ops serialises what changes the sandbox as a whole: stop, kill, remove.
	ops sync.Mutex

	mu    sync.Mutex // guards what follows
	info  cloche.Sandbox
	inst  engine.Instance
	token []byte
	undo  undoStack
	agent *agentConn
	execs int
	// image is what its image brings to every process.
	image imageFacts
	// oomSeen is the highest count of kills for memory that was read.
	oomSeen int64
	// end says how the instance ended; it is set before ended is closed.
	end ending
	// ended is closed when the instance is no more.
	ended chan struct{}
}

// imageFacts are what an image says of the processes that run in it.
type imageFacts struct {
	Env map[string]string
	// MissingHint belongs to the error about a program that is not there.
	MissingHint string
}

// ending is how an instance ended.
type ending struct {
	oom    bool
	reason string
}

// New makes a Manager. Recover must be called before anything is created.
func New(opts Options) *Manager {
	ctx, cancel := context.WithCancel(context.Background())
	if opts.Ended == nil {
		opts.Ended = func(cloche.Sandbox) {}
	}
	return &Manager{
		opts: opts, log: opts.Logger, ctx: ctx, cancel: cancel,
		byID: map[string]*live{}, byName: map[nameKey]*live{},
	}
}

// sandboxesDir is where each sandbox has its directory.
func (m *Manager) sandboxesDir() string { return filepath.Join(m.opts.Dir, "sandboxes") }

// engineNamed returns an engine, or nil.
func (m *Manager) engineNamed(name string) engine.Engine {
	i := slices.IndexFunc(m.opts.Engines, func(e engine.Engine) bool { return e.Name() == name })
	if i < 0 {
		return nil
	}
	return m.opts.Engines[i]
}

// find returns the sandbox that caller calls ref, which is an id or one of the
// caller's own names, if caller may use verb on it.
func (m *Manager) find(caller policy.Caller, verb policy.Verb, ref string) (*live, error) {
	m.mu.Lock()
	s := m.byID[ref]
	if s == nil {
		s = m.byName[nameKey{caller.Tenant, ref}]
	}
	m.mu.Unlock()
	if s == nil {
		return nil, policy.NoSandbox(ref)
	}
	if err := policy.Authorize(caller, verb, ref, s.tenant, s.info.Profile); err != nil {
		return nil, err
	}
	return s, nil
}

// snapshot copies what is on record.
func (s *live) snapshot() cloche.Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

// Get returns what is on record about a sandbox.
func (m *Manager) Get(caller policy.Caller, ref string) (cloche.Sandbox, error) {
	s, err := m.find(caller, policy.VerbGet, ref)
	if err != nil {
		return cloche.Sandbox{}, err
	}
	return s.snapshot(), nil
}

// List returns one page of the sandboxes that caller sees, newest first.
func (m *Manager) List(caller policy.Caller, o cloche.ListOptions) cloche.SandboxList {
	m.mu.Lock()
	all := make([]*live, 0, len(m.byID))
	for _, s := range m.byID {
		all = append(all, s)
	}
	m.mu.Unlock()

	var infos []cloche.Sandbox
	for _, s := range all {
		if info := s.snapshot(); policy.Sees(caller, info.Tenant) && chosen(info, o) {
			infos = append(infos, info)
		}
	}
	slices.SortFunc(infos, func(a, b cloche.Sandbox) int { return cmp.Compare(cursorOf(b), cursorOf(a)) })
	if o.Cursor != "" {
		infos = slices.DeleteFunc(infos, func(s cloche.Sandbox) bool { return cursorOf(s) >= o.Cursor })
	}
	page := cloche.SandboxList{Sandboxes: infos}
	if limit := cmp.Or(o.Limit, 100); len(infos) > limit {
		page.Sandboxes = infos[:limit]
		page.Next = cursorOf(infos[limit-1])
	}
	if page.Sandboxes == nil {
		page.Sandboxes = []cloche.Sandbox{}
	}
	return page
}

// cursorOf orders sandboxes by age, and by id within one instant.
func cursorOf(s cloche.Sandbox) string {
	return s.CreatedAt.UTC().Format("20060102T150405.000000000") + "." + s.ID
}

// chosen reports whether a sandbox is one that the options ask for.
func chosen(s cloche.Sandbox, o cloche.ListOptions) bool {
	if len(o.States) > 0 && !slices.Contains(o.States, s.State) {
		return false
	}
	for k, v := range o.Labels {
		if got, ok := s.Labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Count returns how many sandboxes are not yet stopped: of the tenant, and of
// all tenants.
func (m *Manager) Count(tenant string) (own, all int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count(tenant)
}

// count is Count for a caller that holds m.mu.
func (m *Manager) count(tenant string) (own, all int) {
	for _, s := range m.byID {
		s.mu.Lock()
		state := s.info.State
		s.mu.Unlock()
		if state == cloche.StateStopped || state == cloche.StateLost {
			continue
		}
		all++
		if s.tenant == tenant {
			own++
		}
	}
	return own, all
}

// admit puts a new sandbox into the tables, if its name is free and the quota
// leaves room for it.
func (m *Manager) admit(s *live, quota policy.Quota) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	own, all := m.count(s.tenant)
	if quota.Total > 0 && all >= quota.Total || quota.Tenant > 0 && own >= quota.Tenant {
		err := cloche.Errorf(cloche.CodeNoCapacity, "no capacity for another sandbox: the server is full").WithHint("remove one, or come again later")
		err.Retryable, err.RetryAfterMS = true, 5000
		return err
	}
	if m.closed {
		return cloche.Errorf(cloche.CodeUnavailable, "the daemon is shutting down")
	}
	key := nameKey{s.tenant, s.name}
	if other := m.byName[key]; other != nil {
		err := cloche.Errorf(cloche.CodeExists, "a sandbox named %q exists: %s", s.name, other.id).
			WithHint("choose another name, or remove that one with: cloche rm %s", s.name)
		err.Field = "name"
		return err
	}
	m.byID[s.id], m.byName[key] = s, s
	return nil
}

// forget takes a sandbox out of the tables.
func (m *Manager) forget(s *live) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byID, s.id)
	if key := (nameKey{s.tenant, s.name}); m.byName[key] == s {
		delete(m.byName, key)
	}
}

// Close ends the Manager's own work. An ephemeral Manager removes its
// sandboxes first; the sandboxes of a daemon live on and are found again by
// Recover.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	all := make([]*live, 0, len(m.byID))
	for _, s := range m.byID {
		all = append(all, s)
	}
	m.mu.Unlock()

	var errs []error
	if m.opts.Ephemeral {
		for _, s := range all {
			errs = append(errs, m.remove(ctx, s))
		}
	}
	m.cancel()
	for _, s := range all {
		s.mu.Lock()
		conn := s.agent
		s.agent = nil
		s.mu.Unlock()
		if conn != nil {
			conn.close()
		}
	}
	m.wg.Wait()
	return errors.Join(errs...)
}

// hostname is what a sandbox calls itself: its name, as far as a host name may
// hold it.
func hostname(name string) string {
	return strings.Trim(strings.NewReplacer("_", "-", ".", "-").Replace(name), "-")
}

// now is the time that goes on record.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
