// Package sandbox manages live sandboxes: it assembles a sandbox from a policy.Permit, keeps its
// state, communicates with its agent, and tears it down. It owns every goroutine that a sandbox
// needs.
//
// Create a Manager with [New]. [Manager.Recover] takes over the sandboxes of an earlier daemon.
package sandbox

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/approval"
	"github.com/cloche-dev/cloche/internal/egress/network"
	"github.com/cloche-dev/cloche/internal/endpoint/recording"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/admission"
	"github.com/cloche-dev/cloche/internal/sandbox/agentconn"
	"github.com/cloche-dev/cloche/internal/sandbox/deadline"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/sandbox/endpoints"
	"github.com/cloche-dev/cloche/internal/sandbox/files"
	"github.com/cloche-dev/cloche/internal/sandbox/filesync"
	"github.com/cloche-dev/cloche/internal/sandbox/idempotency"
	"github.com/cloche-dev/cloche/internal/sandbox/lease"
	"github.com/cloche-dev/cloche/internal/sandbox/pathrule"
	"github.com/cloche-dev/cloche/internal/sandbox/ports"
	"github.com/cloche-dev/cloche/internal/sandbox/pressure"
	"github.com/cloche-dev/cloche/internal/sandbox/process"
	"github.com/cloche-dev/cloche/internal/sandbox/quota"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/sandbox/retention"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
	"github.com/cloche-dev/cloche/internal/sandbox/tombstone"
	"github.com/cloche-dev/cloche/internal/sandbox/undo"
	"github.com/cloche-dev/cloche/internal/sandbox/usage"
	"github.com/cloche-dev/cloche/internal/secret"
	"github.com/cloche-dev/cloche/internal/snapshot"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// Options are what a Manager works with. All fields but Ended, Events, Used, Resume, Refused, Retention, Networks, Ask, Secrets,
// Redact, Egress, OwnAddress, EndpointSockets and Exchanged are required.
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
	Snapshots  *snapshot.Store
	// AgentImage returns the EROFS image that holds the agent.
	AgentImage func(context.Context) (string, error)
	Logger     *slog.Logger
	// Ended is told of every sandbox that ended without being asked to. It must not block.
	Ended func(api.Sandbox)
	// Events is called for each event, in order for each sandbox. It must not block and must not call the Manager. It can be nil.
	Events func(api.Event)
	// Used is called with the usage of a sandbox when its instance has ended. It must not block
	// and must not call the Manager. It can be nil.
	Used func(api.Sandbox, api.AuditUsed)
	// Resume resumes a suspended sandbox that a caller uses, as a caller with the rights of its creator. It calls
	// [Starter.ResumeSuspended]. Nil resumes none.
	Resume func(ctx context.Context, creator policy.Caller, sb api.Sandbox) error
	// Refused is called when a rule on a path refused access to a program. It may block briefly,
	// and must not call the Manager. It can be nil.
	Refused func(api.Sandbox, pathrule.Denial)
	// AgentSilence is how long an agent that a call waits for may answer nothing; 0 is
	// [agentconn.DefaultSilence].
	AgentSilence time.Duration
	// Retention bounds what is kept of ended sandboxes; zero is the default.
	Retention retention.Rule
	// Suspended says what is done with the memory of sandboxes that stay suspended; zero is nothing.
	Suspended retention.Suspended
	// MaySuspend returns an error if a tenant may not have so many bytes of saved memory. Nil bounds none.
	MaySuspend func(tenant string, bytes int64) error
	// Pressure says when the machine is short of memory; zero is never. The Manager sets Sandboxes and Logger.
	Pressure pressure.Options
	// Pool is what engines keep ready; what a profile says goes before it. Its User is not used.
	Pool engine.Pool
	// Admission bounds how many sandboxes are made at once; zero is the default.
	Admission policy.Admission
	// Networks makes the networks of sandboxes; nil makes no sandbox with a network. They are closed after
	// the Manager.
	Networks *network.Networks
	// Secrets reads the value of a secret; nil where there are none. What it returns is
	// in no record.
	Secrets func(ctx context.Context, name string) (string, error)
	// Ask waits for a word about what a sandbox wants out and no rule speaks of, and
	// says whether it is let out. Nil refuses it at once.
	Ask func(context.Context, approval.Question) bool
	// Redact takes the values of secrets out of a text; nil knows none.
	Redact func(text string) string
	// Egress is called for each record of allowed or refused egress, after it was written to the
	// sandbox's log. It must not call the Manager. It can be nil.
	Egress func(api.Sandbox, api.EgressRecord)
	// Recordings are what endpoints record and replay; nil where there are none.
	Recordings *recording.Store
	// OwnAddress reports whether the daemon listens at an address. No endpoint can lead there.
	// Nil means that it listens nowhere.
	OwnAddress func(netip.AddrPort) bool
	// EndpointSockets bounds the connections that all endpoints together have to their
	// targets; 0 is no bound.
	EndpointSockets int64
	// Exchanged is called for every request that went through an endpoint, in no particular
	// order. It may block for a while. It can be nil.
	Exchanged func(api.Exchange)
}

// Manager holds the sandboxes of one owner. It is safe for concurrent use.
type Manager struct {
	*files.Files
	*process.Runner
	*endpoints.Service
	Starter
	Forker
	// Ports are the ports of sandboxes that have a URL.
	Ports *ports.Service

	opts Options
	log  *slog.Logger

	// ctx ends when the Manager closes; background work hangs on it.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	// bg keeps background from adding to wg once Close waits for it.
	bg sync.Mutex
	// Each of these does a part of the work: see its type.
	keys       *idempotency.Keys
	layers     layers
	networks   networks
	pauser     pauser
	reaper     reaper
	recovery   recovery
	refused    refusalReader
	retrier    retrier
	waker      waker
	workspaces workspaces
	copier     copier
	// trap, which only tests set, fails or hangs at a named point of a create or
	// an end.
	trap func(ctx context.Context, point string) error
	// dialed, which only tests set, is told of connections for the output of processes.
	dialed func(sandbox string, c *agentconn.Conn)
	// deadlineGrace and deadlineLook are the constants; tests make them small.
	deadlineGrace, deadlineLook time.Duration
	// agentSilence is the value of the options, or the default.
	agentSilence time.Duration
	// closer is of directories of the host.
	closer workspace.Closer
	// limiter bounds how many sandboxes are created at once.
	limiter *admission.Limiter
	// tombstones are of the sandboxes that were removed.
	tombstones *tombstone.Store

	mu   sync.Mutex
	byID map[string]*live
	// starting counts the sandboxes of each tenant that are being started again.
	starting map[string]int
	byName   map[nameKey]*live
	closed   bool
	// homeless is that no later Manager can find the sandboxes of this one.
	homeless bool
}

// nameKey is a name in its tenant.
type nameKey struct{ tenant, name string }

// live is one sandbox that the Manager knows. Records of ended ones are live
// too until they are removed.
type live struct {
	id, tenant, name string
	profile          string
	dir              string
	// wake makes the reaper look at the lease again.
	wake func()

	// ops serialises what changes the sandbox as a whole: stop, kill, remove.
	ops sync.Mutex

	// procs are its managed processes.
	procs process.Table
	// deadlines are those of its programs.
	deadlines deadline.Table
	// endpoints are those that it has now.
	endpoints endpoints.Table
	ports     ports.Table
	// copies are those of directories of this machine at a service.
	copies filesync.Set
	// dirs are the mounted directories of this machine.
	dirs []workspace.Attached

	// space is what is known of what its workspace takes.
	space quota.State
	// counted is what its workspace was last counted to hold.
	counted usage.Counter

	// writes are the writes of files that are under way; cut says that one may have left
	// a part of a file.
	writes atomic.Int32
	cut    atomic.Bool

	// memoryFiles are those of its memory while it is suspended.
	memoryFiles directory.MemoryFiles
	compressed  bool // this daemon has compressed them, or has tried to; guarded by mu

	mu   sync.Mutex // guards what follows
	info api.Sandbox
	inst engine.Instance
	// engineState is what finds inst again; it is kept also when inst could not be
	// reached.
	engineState []byte
	// memory is the saved memory of a suspended sandbox; nil for others.
	memory *engine.Memory
	token  []byte
	undo   undo.Stack
	agent  *agentconn.Conn
	lease  lease.Lease
	// holders counts the connections that hold a transient sandbox.
	holders int
	// making is how far it is on record, and teardown how far its removal is.
	making   stage.Creation
	teardown stage.Teardown
	// sealed: nothing of it is written any more. It was started again as next, or a test has the
	// daemon be one that was killed.
	sealed bool
	// next is what the sandbox is after it was started again, or nil.
	next *live
	// spec is what it was created with, without files. Nil means that it cannot be started again. creator created it.
	spec    *api.SandboxSpec
	creator record.Creator
	// suspending: its idle time or its lifetime is over, and it is about to be suspended.
	suspending bool
	// rootSince is when nothing had changed in its root yet, and endBegan when its end began.
	rootSince, endBegan time.Time
	// removal is why, as it was first said; nil is not known.
	removal *record.Removal
	// unreached: it may run, and this daemon does not have its instance.
	unreached bool
	// condemned is why the daemon has killed its instance; empty when it has not.
	condemned string
	// excess is by how much its workspace was over its bound; nil is that it was not.
	excess *api.Error
	// endReason says why it is being ended, if no caller requested it.
	endReason string
	// attempts is how often its teardown was tried, failure why it failed the last time.
	attempts int
	failure  error
	// retrying is a failed end that is being retried in the background, or nil.
	retrying *retrying
	// detached: it has given up its named workspace.
	detached bool
	// stopMaking ends its creation, and made is closed when that has ended.
	stopMaking context.CancelCauseFunc
	made       chan struct{}
	// digest is the digest of the request that its idempotency key belongs to.
	digest string
	// captured is closed when the last capture for a fork is over; nil is that there was none.
	captured chan struct{}
	// unsettled: a pause or a resume is under way.
	unsettled bool
	// quiesced means that Cloche itself has paused its processes for a moment.
	quiesced bool
	// owed: it is paused, and is resumed in the background.
	owed bool
	// interrupt ends what an end of the sandbox would have to wait for; nil is nothing.
	interrupt context.CancelFunc
	// enders are those who end it, or wait to.
	enders int
	// secrets are those that its processes have.
	secrets []record.Secret
	// trusts: its programs have files that say whom to trust, for its TLS is opened.
	trusts bool
	// image is what its image brings to every process.
	image record.Image
	// network is its network; nil without a network, and when that is lost or ended. It is
	// changed under ops too.
	network *network.Network
	// grant is what may leave; nil without a network.
	grant *policy.EgressGrant
	// oomSeen is the highest count of kills for memory that was read.
	oomSeen int64
	// end says how the instance ended; it is set before ended is closed.
	end ending
	// ended is closed when the instance is no more.
	ended chan struct{}
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
		opts.Ended = func(api.Sandbox) {}
	}
	if opts.Egress == nil {
		opts.Egress = func(api.Sandbox, api.EgressRecord) {}
	}
	if opts.Events == nil {
		opts.Events = func(api.Event) {}
	}
	if opts.Redact == nil {
		opts.Redact = func(text string) string { return text }
	}
	opts.Retention = opts.Retention.Filled()
	opts.Admission = opts.Admission.Filled()
	m := &Manager{
		opts: opts, log: opts.Logger, ctx: ctx, cancel: cancel,
		deadlineGrace: deadline.Grace, deadlineLook: deadline.Look, agentSilence: cmp.Or(opts.AgentSilence, agentconn.DefaultSilence), limiter: admission.New(opts.Admission), tombstones: tombstone.New(tombstone.Dir(opts.Dir, opts.Ephemeral)),
		byID: map[string]*live{}, byName: map[nameKey]*live{}, starting: map[string]int{},
	}
	m.assign()
	m.Files = files.New(user(m, func(s *live) files.Sandbox { return handle{m, s} }))
	m.Runner = process.New(process.Options{
		Context: ctx, Background: m.background, Logger: opts.Logger, Owner: opts.Owner, Retention: opts.Retention,
		Wake: m.reaper.poke, Events: opts.Events,
		Redacted: func(p api.Process) api.Process { return secret.In(opts.Redact, p) },
		Find:     user(m, func(s *live) *process.Table { return &s.procs }),
		Authorize: func(caller policy.Caller, verb policy.Verb, ref string) error {
			_, err := m.find(caller, verb, ref)
			return err
		},
	})
	m.Service = endpoints.New(endpoints.Options{
		Context: ctx, Background: m.background, Logger: opts.Logger, Recordings: opts.Recordings, OwnAddress: opts.OwnAddress,
		Sockets: opts.EndpointSockets, Secrets: opts.Secrets, Redact: opts.Redact, Exchanged: opts.Exchanged,
		Find: finder(m, func(s *live) *endpoints.Table { return &s.endpoints }),
	})
	m.Ports = ports.New(ports.Options{Find: finder(m, func(s *live) *ports.Table { return &s.ports }), Lookup: func(id string) *ports.Table { return portsOf(m, id) }})
	m.wg.Go(m.reaper.reap)
	m.workspaces.quotas = quota.New(quota.Options{
		Context: ctx, Background: m.background, Logger: opts.Logger, Dir: m.sandboxesDir(),
		Sandboxes: func() iter.Seq2[quota.Sandbox, *quota.State] {
			return func(yield func(quota.Sandbox, *quota.State) bool) {
				for _, s := range m.all() {
					if !yield(handle{m, s}, &s.space) {
						return
					}
				}
			}
		},
	})
	m.wg.Go(m.workspaces.quotas.Run)
	m.wg.Go(m.waker.relieve)
	return m
}

// all lists the sandboxes in the tables.
func (m *Manager) all() []*live {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.byID))
}

// at is a point at which a test may make something go wrong.
func (m *Manager) at(ctx context.Context, point string) error {
	if m.trap == nil {
		return nil
	}
	return m.trap(ctx, point)
}

// sandboxesDir is where each sandbox has its directory.
func (m *Manager) sandboxesDir() string { return filepath.Join(m.opts.Dir, directory.Sandboxes) }

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
		return nil, m.tombstones.Missing(caller, ref)
	}
	if err := policy.Authorize(caller, verb, ref, s.tenant, s.profile); err != nil {
		return nil, err
	}
	return s, nil
}

// snapshot copies what is on record.
func (s *live) snapshot() api.Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.look()
}

// look is snapshot for a caller that holds s.mu.
func (s *live) look() api.Sandbox {
	info := s.info
	if s.leased() && (s.info.State != api.StateSuspended || s.info.OnExpiry != api.ExpirySuspend) {
		if t, ok := s.lease.End(now()); ok {
			at := t.At.UTC()
			info.ExpiresAt = &at
		}
	}
	if s.grant != nil {
		info.Egress = s.grant.OnRecord(now())
	}
	return info
}

// Get returns what is on record about a sandbox.
func (m *Manager) Get(caller policy.Caller, ref string) (api.Sandbox, error) {
	s, err := m.find(caller, policy.VerbGet, ref)
	if err != nil {
		return api.Sandbox{}, err
	}
	return s.observed(), nil
}

// observed is a snapshot that says when it was last known to be so.
func (s *live) observed() api.Sandbox {
	s.mu.Lock()
	info, conn := s.look(), s.agent
	s.mu.Unlock()
	info.ObservedAt = now().UTC()
	if conn != nil && info.State == api.StateRunning {
		info.ObservedAt = conn.Observed().UTC()
	}
	return info
}

// Count returns how many sandboxes are not yet stopped: of the tenant, and of
// all tenants.
func (m *Manager) Count(tenant string) (own, all int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count(tenant)
}

// Placed is a state on an engine.
type Placed struct {
	State  api.State
	Engine string
}

// Starting says how many sandboxes are being created now, and how many wait for that.
func (m *Manager) Starting() (starting, queued int) { return m.limiter.Counts() }

// Tally counts the sandboxes on record by their state and engine, the bytes of saved memory, and by the
// name of their endpoint the requests that go on.
func (m *Manager) Tally() (states map[Placed]int, suspendedBytes int64, active map[string]int64) {
	states, active = map[Placed]int{}, map[string]int64{}
	for _, s := range m.all() {
		info := s.snapshot()
		states[Placed{info.State, info.Engine}]++
		suspendedBytes += info.MemoryBytes
		s.endpoints.Active(active)
	}
	return states, suspendedBytes, active
}

// hasEnded reports whether nothing of a sandbox runs any more.
func (s *live) hasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info.State.Over() || s.info.State == api.StateDeleting && s.info.StoppedAt != nil
}

// count is Count for a caller that holds m.mu.
func (m *Manager) count(tenant string) (own, all int) {
	for _, s := range m.byID {
		if s.hasEnded() {
			continue
		}
		all++
		if s.tenant == tenant {
			own++
		}
	}
	for other, n := range m.starting {
		all += n
		if other == tenant {
			own += n
		}
	}
	return own, all
}

// admit adds a new sandbox to the tables, if its name is free and the quota allows another one.
func (m *Manager) admit(s *live, quota policy.Quota) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	own, all := m.count(s.tenant)
	if err := quota.Check(own, all, false); err != nil {
		return err
	}
	if m.closed {
		return api.Errorf(api.CodeUnavailable, "the daemon is shutting down")
	}
	key := nameKey{s.tenant, s.name}
	if other := m.byName[key]; other != nil {
		err := api.Errorf(api.CodeExists, "a sandbox named %q exists: %s", s.name, other.id).
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
// sandboxes first. Of a daemon's, those that are not persistent are stopped, with
// a grace that the end of ctx cuts short, and those that only connections held
// are removed; the others live on and are found again by Recover.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	all := m.all()
	err := m.reaper.stopAll(ctx, all)
	m.bg.Lock()
	m.cancel()
	m.bg.Unlock()
	for _, s := range all {
		s.mu.Lock()
		conn := s.agent
		s.agent = nil
		if s.lease.Idle > 0 && s.leased() {
			if serr := s.save(); serr != nil {
				m.log.Error("save the last use", "sandbox", s.id, "error", serr)
			}
		}
		s.mu.Unlock()
		s.deadlines.End()
		s.ports.Close(false)
		if conn != nil {
			conn.Close()
		}
	}
	m.wg.Wait()
	return err
}

// now is the time that goes on record.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
