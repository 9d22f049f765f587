package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/await"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/sandbox/fault"
	"github.com/cloche-dev/cloche/internal/sandbox/idempotency"
	"github.com/cloche-dev/cloche/internal/sandbox/lease"
	"github.com/cloche-dev/cloche/internal/sandbox/pathrule"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/sandbox/remains"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
	"github.com/cloche-dev/cloche/internal/sandbox/undo"
	"github.com/cloche-dev/cloche/internal/snapshot"
	"github.com/cloche-dev/cloche/internal/workspace"
)

const (
	// agentTarget is where the agent's image is seen inside.
	agentTarget = "/.cloche"
	// maskBytes is the size of what hides a directory of the host.
	maskBytes = 64 << 10
	// createTimeout bounds a whole creation, whatever the caller allows.
	createTimeout = 2 * time.Minute
)

// creation is a create in progress.
type creation struct {
	m        *Manager
	permit   policy.Permit
	s        *live
	progress func(step string)

	plan   engine.Plan
	staged undo.Stack
	inst   engine.Instance
	client *agent.Client
	made   []*workspace.Made
	// makeCwd: the working directory is the image's.
	makeCwd bool
	// snapshot is what the sandbox begins with; nil is nothing.
	snapshot *snapshot.Use
	// filling: the files of the snapshot are in a named workspace, which does not have them yet.
	filling bool
	// described waits until the description of the sandbox is on the disk.
	described func() error
	// begun is when its turn came.
	begun time.Time
	// from is the ended sandbox that is started again, the suspended one that is resumed, which is s itself, or nil.
	from *live
	// memory is what a suspended sandbox or a fork continues from, or nil.
	memory *engine.Memory
	// fork is what the sandbox is forked from, or nil; origin says that in its event.
	fork   *Template
	origin string
}

// creationStep is one step of a creation. It pushes its own undo.
type creationStep struct {
	name string
	do   func(context.Context) error
}

// Create makes the sandbox that permit grants and returns when processes can be
// started in it. On error, or when ctx ends, nothing is left behind. progress,
// which may be nil, is told the name of each step as it begins.
func (m *Manager) Create(ctx context.Context, permit policy.Permit, progress func(step string)) (api.Sandbox, error) {
	s, err := m.create(ctx, permit, progress, nil)
	if err != nil {
		return api.Sandbox{}, err
	}
	return s.snapshot(), nil
}

// create is Create, of a fork if prepare is not nil: it completes the creation before that begins.
func (m *Manager) create(ctx context.Context, permit policy.Permit, progress func(step string), prepare func(*creation)) (*live, error) {
	if !permit.Valid() {
		return nil, api.Errorf(api.CodeDenied, "no policy has granted this sandbox")
	}
	if progress == nil {
		progress = func(string) {}
	}
	c := &creation{m: m, permit: permit, progress: progress, s: m.newLive(permit)}
	if prepare != nil {
		prepare(c)
	}
	ctx, c.s.stopMaking = context.WithCancelCause(ctx)
	defer c.s.stopMaking(nil)
	if err := m.admit(c.s, permit.Quota()); err != nil {
		return nil, err
	}
	defer close(c.s.made)
	leave, err := c.queue(ctx)
	if err != nil {
		return nil, m.abandon(ctx, c.s, err)
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	begun := time.Now()
	c.begun = begun
	if err := c.run(ctx); err != nil {
		m.log.Warn("create failed", "sandbox", c.s.id, "error", err, "cause", errors.Unwrap(err))
		return nil, m.abandon(ctx, c.s, err)
	}
	m.log.Info("sandbox created", "sandbox", c.s.id, "name", c.s.name, "took", time.Since(begun))
	m.refused.attend(c.s, c.inst)
	return c.s, nil
}

// queue waits until the sandbox may be made, and calls leave when it has been.
func (c *creation) queue(ctx context.Context) (leave func(), err error) {
	begun := time.Now()
	leave, err = c.m.limiter.Enter(ctx, c.s.tenant, func() { c.progress("queue") })
	c.s.mu.Lock()
	c.s.info.QueueMS = time.Since(begun).Milliseconds()
	c.s.mu.Unlock()
	if err != nil && ctx.Err() != nil {
		err = fault.Canceled(ctx, createTimeout, "queue", err)
	}
	return leave, err
}

// newLive makes the record of a sandbox that is about to be created.
func (m *Manager) newLive(permit policy.Permit) *live {
	spec, id := permit.Spec(), api.NewID("sb-")
	name := cmp.Or(spec.Name, id)
	created := now()
	s := &live{
		id: id, tenant: permit.Tenant(), name: name, profile: permit.Profile(),
		dir:    filepath.Join(m.sandboxesDir(), id),
		ended:  make(chan struct{}),
		made:   make(chan struct{}),
		wake:   m.reaper.poke,
		digest: m.keys.Digest(permit.Tenant(), spec.IdempotencyKey),
		lease:  lease.New(created, permit.Limits(), created),
		info: api.Sandbox{
			ID: id, Name: name, State: api.StateCreating, Tenant: permit.Tenant(), IdempotencyKey: spec.IdempotencyKey,
			Profile: permit.Profile(), Image: spec.Image, Snapshot: spec.Snapshot, Engine: permit.Engine(), Tier: permit.Tier(),
			Network: spec.Network, Endpoints: spec.Endpoints, Env: spec.Env, Secrets: spec.Secrets, User: spec.User, Sudo: spec.Sudo, Cwd: spec.Cwd, Mounts: spec.Mounts, Skills: spec.Skills,
			Workspace: *spec.Workspace, Limits: permit.Limits(), ReadOnlyRoot: spec.ReadOnlyRoot != nil && *spec.ReadOnlyRoot,
			Labels: spec.Labels, Adjusted: permit.Adjusted(), Unenforced: permit.Unenforced(), CreatedAt: created,
			Persistent: spec.Persistent == nil || *spec.Persistent, Transient: spec.Transient, OnExpiry: spec.OnExpiry, AutoResume: spec.AutoResume,
		},
	}
	if !spec.Transient && !m.opts.Ephemeral {
		spec.Files, spec.IdempotencyKey, spec.Naming = nil, "", api.Naming{}
		s.spec, s.creator = &spec, record.CreatorOf(permit.Creator())
	}
	m.connect(s)
	return s
}

// run does the steps in order. Each pushes its own undo before the next begins.
func (c *creation) run(ctx context.Context) (err error) {
	steps := []creationStep{
		{"directory", c.makeDir},
		{"image", c.resolveImage},
		{"snapshot", c.useSnapshot},
		{"workspace", c.openWorkspace},
		{"mounts", c.stageMounts},
		{"agent", c.prepareAgent},
		{"secrets", c.holdSecrets},
		{"network", c.openNetwork},
		{"engine", c.startEngine},
		{"connect", c.connect},
		{"copies", c.fillCopies},
		{"root", c.restoreRoot},
		{"rules", c.restrict},
		{"trust", c.writeTrust},
		{"endpoints", c.openEndpoints},
		{"files", c.writeFiles},
		{"record", c.commit},
	}
	switch {
	case c.fork != nil:
		steps = c.forking()
	case c.memory != nil:
		steps = c.resumption()
	}
	defer func() { c.keepMade(err) }()
	defer func() {
		// What was staged for the engine is of no use after its Create.
		if err := c.staged.Run(ctx); err != nil {
			c.m.log.Error("staged mounts are left", "sandbox", c.s.id, "error", err)
		}
	}()
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return fault.Canceled(ctx, createTimeout, step.name, err)
		}
		c.progress(step.name)
		begun := time.Now()
		err := c.m.at(ctx, "before "+step.name)
		if err == nil {
			err = step.do(ctx)
		}
		if err == nil {
			err = c.m.at(ctx, "after "+step.name)
		}
		if err != nil && ctx.Err() != nil {
			return fault.Canceled(ctx, createTimeout, step.name, err)
		}
		if err != nil {
			return fault.Classify(step.name, err)
		}
		c.m.log.Debug("create step", "sandbox", c.s.id, "step", step.name, "took", time.Since(begun))
	}
	return nil
}

func (c *creation) makeDir(context.Context) error {
	if c.from != nil {
		return directory.Prepare(c.s.dir)
	}
	if err := os.MkdirAll(filepath.Dir(c.s.dir), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(c.s.dir, 0o700); err != nil {
		return err
	}
	c.s.undo.Push("directory", func(context.Context) error { return workspace.RemovePrivate(c.s.dir) })
	// Before anything else is in the directory.
	described, err := record.Describe(c.s.dir, c.s.snapshot(), c.s.digest)
	if err != nil {
		return err
	}
	c.described = described
	c.s.undo.Push("description", func(context.Context) error { _ = described(); return nil })
	return directory.Prepare(c.s.dir)
}

// stageDir takes over dir.
func (c *creation) stageDir(dir *workspace.Dir, target string, readOnly bool) error {
	if c.m.copier.remote(c.permit.Engine()) != nil {
		return c.copyDir(dir, target, readOnly)
	}
	defer dir.Close()
	var terms engine.Terms
	closing := workspace.CloseNone
	if host, ok := c.m.engineNamed(c.permit.Engine()).(engine.Host); ok {
		terms, closing = host.Terms(), workspace.CloseForeign
		if terms.KeepsOwners {
			closing = workspace.CloseAll
		}
	}
	dir.CloseSockets(closing, &c.m.closer)
	staged, err := dir.Stage(filepath.Join(c.s.dir, directory.Staging), readOnly)
	if err != nil {
		return err
	}
	c.staged.Push("staged mount", func(context.Context) error { return staged.Close() })
	m := engine.Mount{Source: staged.Path, Target: target, ReadOnly: readOnly}
	if closing != workspace.CloseNone && !staged.Closed {
		if m.ReadOnly && !terms.ClosesSockets {
			c.tellOpen(m.Target)
		}
		if m.Sockets, err = c.findSockets(staged, terms); err != nil {
			return err
		}
	}
	c.plan.Mounts = append(c.plan.Mounts, m)
	c.s.mu.Lock()
	c.s.dirs = append(c.s.dirs, dir.AttachedAs(target, readOnly))
	c.s.mu.Unlock()
	return nil
}

// findSockets lists what the engine is to cover in what is mounted and not closed.
func (c *creation) findSockets(staged *workspace.Staged, terms engine.Terms) ([]string, error) {
	if !terms.CoversSockets {
		return nil, nil
	}
	most := engine.MaxSockets
	for _, before := range c.plan.Mounts {
		most -= len(before.Sockets)
	}
	return staged.Sockets(most)
}

// tellOpen says that sockets in a directory of the host stay open, where only its
// filesystem is the reason and policy could not know it.
func (c *creation) tellOpen(target string) {
	field := ""
	if _, ok := c.permit.WorkspaceDir(); ok && target == c.s.info.Workspace.Path {
		field = policy.FieldWorkspaceSockets
	}
	for i, m := range c.permit.Mounts() {
		if m.Target == target {
			field = policy.FieldMountSockets(i)
		}
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if field == "" || slices.ContainsFunc(c.s.info.Unenforced, func(u api.Unenforced) bool { return u.Field == field }) {
		return
	}
	c.s.info.Unenforced = append(c.s.info.Unenforced, api.Unenforced{
		Field:  field,
		Reason: "its filesystem maps no owners, so programs can connect to unix sockets of the host that come to lie in it later, or lie too deep in it to be found",
	})
}

func (c *creation) prepareAgent(ctx context.Context) error {
	img, err := c.m.opts.AgentImage(ctx)
	if err != nil {
		return err
	}
	c.s.mu.Lock()
	if c.memory == nil {
		c.s.token, c.s.image.Agent = agent.NewToken(), img
	} else { // the agent continues, with its token
		img = directory.PinnedImage(c.memory.Dir, directory.AgentImage, c.s.image.Agent)
	}
	c.s.mu.Unlock()
	limits := c.s.info.Limits
	told := agent.Config{Token: c.s.token, Port: agent.Port, PidsMax: limits.Pids, CPUs: limits.CPUs, MemoryBytes: limits.MemoryBytes, SingleUser: os.Geteuid() != 0, User: c.s.info.User, Sudo: c.s.info.Sudo}
	uid, target := uint32(agent.UID), agentTarget
	if remote := c.m.copier.remote(c.permit.Engine()); remote != nil {
		// Nothing at the service keeps root inside from the agent, so it needs no user of its own. sudo is the service's.
		uid, target = 0, remote.RemoteTerms().AgentDir
		told.KernelGuardsInit, told.NoCgroup, told.SingleUser, told.Sudo = true, true, false, false
	}
	if host, ok := c.m.engineNamed(c.permit.Engine()).(engine.Host); ok {
		terms := host.Terms()
		uid = 0
		told.KernelGuardsInit, told.Confine, told.SingleUser, told.NoCgroup = true, true, terms.SingleUser, terms.NoGroups
		if terms.LimitsPids {
			told.PidsMax, told.OwnThreads = 0, terms.CountsAgent
		}
	}
	config, err := json.Marshal(told)
	if err != nil {
		return fmt.Errorf("encode the agent's configuration: %w", err)
	}
	c.plan.ID, c.plan.Owner, c.plan.Dir = c.s.id, c.m.opts.Owner, filepath.Join(c.s.dir, directory.Engine)
	c.plan.Hostname, c.plan.DieWithParent = record.Hostname(c.s.name), c.m.opts.Ephemeral
	c.plan.Pool.User = c.permit.Tenant()
	c.plan.Pool.Floor, c.plan.Pool.Ceiling = c.permit.Pool(c.m.opts.Pool.Floor, c.m.opts.Pool.Ceiling)
	if target == agentTarget {
		c.plan.Tmpfs = append(c.plan.Tmpfs,
			engine.Tmpfs{Target: "/tmp", SizeBytes: limits.TmpBytes, Mode: 0o1777},
			engine.Tmpfs{Target: "/dev/shm", SizeBytes: limits.ShmBytes, Mode: 0o1777},
		)
	}
	for _, r := range pathrule.Of(c.s.snapshot()) {
		c.plan.Rules = append(c.plan.Rules, engine.PathRule{Target: string(r.Target), Path: string(r.Path), Access: r.Access})
	}
	c.plan.Limits = engine.Limits{CPUs: limits.CPUs, MemoryBytes: limits.MemoryBytes, Pids: limits.Pids, DiskBytes: c.permit.RootBytes()}
	c.plan.Agent = engine.Agent{
		Image: img, Target: target, Argv: []string{target + "/" + agent.Argv0}, UID: uid, Config: config, Early: told.EarlyLine(), Port: agent.Port,
	}
	return nil
}

func (c *creation) startEngine(ctx context.Context) error {
	eng := c.m.engineNamed(c.permit.Engine())
	if eng == nil {
		return api.Errorf(api.CodeUnavailable, "engine %q is not in this build", c.permit.Engine())
	}
	c.plan.Memory = c.memory
	started := await.For(ctx, "the engine "+eng.Name())
	inst, err := eng.Create(ctx, c.plan)
	started()
	if herr := c.handNetwork(ctx); err == nil && herr != nil {
		err = errors.Join(herr, inst.Close(context.WithoutCancel(ctx)))
	}
	if err != nil {
		return err
	}
	c.inst = inst
	c.s.mu.Lock()
	c.s.inst, c.s.engineState = inst, inst.State()
	c.s.mu.Unlock()
	c.s.undo.Push("engine", func(ctx context.Context) error {
		if err := inst.Close(ctx); err != nil {
			return err
		}
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		if c.from == c.s {
			c.s.inst, c.s.engineState = nil, nil // it stays suspended
			return nil
		}
		c.s.finish(ending{reason: "the sandbox was ended"})
		return nil
	})
	return nil
}

func (c *creation) connect(ctx context.Context) error {
	c.s.mu.Lock()
	c.s.agent = c.m.newConn(c.s, nil)
	conn := c.s.agent
	c.s.mu.Unlock()
	client, err := conn.Get(ctx)
	c.client = client
	return err
}

// writeFiles writes what the request brought with it, and makes sure that the working directory exists.
func (c *creation) writeFiles(ctx context.Context) error {
	c.prepareCwd(ctx)
	for i, f := range c.permit.Spec().Files {
		o := agent.WriteOptions{Mode: cmp.Or(f.Mode, 0o644), User: c.s.info.User, Parents: true}
		if _, err := c.client.WriteFile(ctx, f.Path, o, bytes.NewReader(f.Content)); err != nil {
			if e, ok := errors.AsType[*api.Error](err); ok {
				e.Field = fmt.Sprintf("files[%d].path", i)
			}
			return err
		}
	}
	return nil
}

// commit makes the sandbox one that the next daemon will find.
func (c *creation) commit(context.Context) error {
	if c.from != nil {
		if err := c.begin(); err != nil {
			return err
		}
		c.announce()
		c.m.reaper.poke()
		c.m.copier.keep(c.s)
		return nil
	}
	if err := errors.Join(c.endFill(), c.described()); err != nil {
		return err
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.s.making == stage.CreationCanceled {
		return idempotency.DeletedError()
	}
	c.s.info.StartMS = time.Since(c.begun).Milliseconds()
	if err := c.s.move(api.StateRunning, ""); err != nil {
		return err
	}
	c.s.lease.Begin(now())
	if err := c.s.save(); err != nil {
		return err
	}
	if err := directory.Establish(c.s.dir); err != nil {
		return err
	}
	c.s.making.Step(stage.CreationAnnounced)
	c.m.tell(c.s, api.EventCreated, c.origin)
	if c.s.info.Degraded != "" {
		c.m.tell(c.s, api.EventDegraded, c.s.info.Degraded)
	}
	c.m.reaper.poke()
	c.m.copier.keep(c.s)
	return nil
}

// save writes the record, unless the sandbox is gone. The caller holds s.mu.
func (s *live) save() error {
	if s.sealed || s.teardown.Erasing() || s.making == stage.CreationUnreadable && !s.teardown.Removing() {
		return nil // what cannot be read is kept as it is
	}
	r := s.record()
	if err := r.Write(s.dir, !s.making.Recorded()); err != nil {
		return err
	}
	s.making.Step(stage.CreationRecorded)
	s.lease.Saved = r.LastUse
	return nil
}

// record is what the directory of the sandbox is to say. The caller holds s.mu.
func (s *live) record() *record.Record {
	r := &record.Record{
		Version: record.Version, Info: s.info, EngineState: s.engineState, AgentToken: s.token, Image: s.image,
		Endpoints: s.endpoints.Grants(), Ports: s.ports.Grants(), Egress: s.grant, Secrets: s.secrets, Trusts: s.trusts, Copies: s.copies.Dirs(), Dirs: s.dirs, KeyDigest: s.digest, Removing: s.teardown.Removing(), Removal: s.removal, Unsettled: s.unsettled, Began: s.lease.Began, Spec: s.spec, Creator: s.creator, RootSince: s.rootSince, EndBegan: s.endBegan, LastUse: s.lease.Used(now()), IdleSpent: s.lease.Spent,
	}
	if s.memory != nil {
		r.Memory = s.memory.Note
	}
	return r
}

// abandon undoes a failed creation. What cannot be undone now is retried; the caller gets the first error either way.
func (m *Manager) abandon(ctx context.Context, s *live, cause error) error {
	s.mu.Lock()
	s.info.State, s.info.Reason, s.info.TerminalReason = api.StateDeleting, cause.Error(), api.EndedError
	if s.making == stage.CreationCanceled {
		s.info.TerminalReason = api.EndedDeleted
	}
	s.teardown.Step(stage.TeardownRemoving)
	conn := s.agent
	s.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
	// Without its record it is nothing that a next daemon would call lost.
	err := directory.Withdraw(s.dir)
	if err == nil {
		err = s.undo.Run(ctx)
	}
	if err != nil {
		m.log.Error("undo of a failed create", "sandbox", s.id, "error", err)
		m.retrier.noteFailure(s, remains.Leaves(api.ResourceProcesses, err))
		m.retrier.retry(s)
		return cause
	}
	s.mu.Lock()
	s.teardown.Step(stage.TeardownErasing)
	s.teardown.Step(stage.TeardownRemoved)
	s.mu.Unlock()
	m.forget(s)
	return cause
}
