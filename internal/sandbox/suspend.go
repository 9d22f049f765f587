package sandbox

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/sandbox/fault"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
	"github.com/cloche-dev/cloche/internal/sandbox/undo"
	"github.com/cloche-dev/cloche/internal/sandbox/usage"
)

// memoryTimeout bounds how long the memory of a sandbox may take to be saved. It is written to the disk and read once.
const memoryTimeout = 10 * time.Minute

// Suspend saves the memory and the root of a running sandbox to the disk and frees what it uses. A resume continues
// its processes, also after a restart of the daemon or of the machine. Suspending a suspended sandbox is not an error.
func (m *Manager) Suspend(ctx context.Context, caller policy.Caller, ref string) (api.Sandbox, error) {
	const verb = policy.VerbSuspend
	s, err := m.find(caller, verb, ref)
	if err != nil {
		return api.Sandbox{}, err
	}
	s.awaitPause(ctx)
	// A stop may hold the lock for as long as its grace: do not wait for that.
	if err = s.maySuspend(); err == nil {
		s.lockOps(ctx)
		defer s.ops.Unlock()
		err = s.maySuspend()
	}
	if err != nil {
		return api.Sandbox{}, err
	}
	s.mu.Lock()
	done, inst := s.info.State == api.StateSuspended, s.inst
	s.mu.Unlock()
	if done {
		return s.snapshot(), nil
	}
	if _, ok := inst.(engine.Suspender); !ok {
		return api.Sandbox{}, api.Errorf(api.CodeUnsupported, "engine %s cannot save the memory of a sandbox", s.snapshot().Engine).
			WithHint("cloche stop keeps its root and workspace, and cloche start brings them back")
	}
	// What was begun is finished, also when the caller has gone.
	if err := m.pauser.suspend(context.WithoutCancel(ctx), s, inst, ""); err != nil {
		return api.Sandbox{}, err
	}
	return s.snapshot(), nil
}

// maySuspend says why a sandbox cannot be suspended.
func (s *live) maySuspend() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maySave()
}

// maySave says why the memory of a sandbox cannot be saved. The memory of a suspended one is saved. The caller holds s.mu.
func (s *live) maySave() error {
	return stage.MaySave(s.info, s.spec != nil && s.image.Agent != "")
}

// awaitPause waits for a pause or a suspend that is under way.
func (s *live) awaitPause(ctx context.Context) {
	if s.snapshot().State == api.StatePaused {
		s.lockOps(ctx)
		s.ops.Unlock() //nolint:staticcheck // it waits
	}
}

// suspend stops the agent's timers, then everything, and saves it. Until its record says that it is suspended, a
// daemon that dies has a successor that makes it run. over says which time of its lease is over; empty is a request.
// The caller holds s.ops.
func (pr pauser) suspend(ctx context.Context, s *live, inst engine.Instance, over string) error {
	if err := pr.fits(s, 1); err != nil {
		return err
	}
	if err := s.settle(api.StateRunning, true); err != nil {
		return err
	}
	var memory engine.Memory
	complete, err := pr.saveMemory(ctx, s, inst, over, false)
	if err == nil {
		memory, err = complete(ctx)
	}
	if err == nil {
		pr.fitting.Lock()
		if err = pr.fits(s, memory.Bytes); err == nil {
			err = pr.putAway(s, memory, over)
		}
		pr.fitting.Unlock()
	}
	if err != nil {
		pr.removeMemory(s)
		err = pr.pauseFailed(ctx, s, inst.(engine.Pauser), "suspended", err)
		pr.m.reaper.poke()
		return err
	}
	pr.free(ctx, s, inst)
	ctx, cancel := context.WithTimeout(ctx, pauseTimeout)
	defer cancel()
	s.procs.Suspend(ctx)
	pr.m.reaper.poke()
	return nil
}

// fits returns an error if the tenant of a sandbox may not have so many bytes of it saved, beside the others.
func (pr pauser) fits(s *live, more int64) error {
	if pr.m.opts.MaySuspend == nil {
		return nil
	}
	for _, other := range pr.m.all() {
		if info := other.snapshot(); other != s && info.Tenant == s.tenant {
			more += info.MemoryBytes + info.SavedRootBytes
		}
	}
	return pr.m.opts.MaySuspend(s.tenant, more)
}

// saveMemory pauses a sandbox and saves it. The files are complete, with links to its images, when the completion returns. With
// runsOn, execs wait for their callers to reattach.
func (pr pauser) saveMemory(ctx context.Context, s *live, inst engine.Instance, over string, runsOn bool) (engine.Completion, error) {
	if err := errors.Join(pr.m.at(ctx, "before hold"), pr.holdTimers(ctx, s, true)); err != nil {
		return nil, err
	}
	client, err := pr.m.agentOf(ctx, s)
	if err != nil {
		return nil, err
	}
	// From here on calls are refused, so that no connection is opened.
	if err := s.settle(api.StatePaused, true, func() error { return s.pauseLease(over) }); err != nil {
		return nil, err
	}
	if err := bounded(ctx, pauseTimeout, func(ctx context.Context) error { return client.Suspend(ctx, runsOn) }); err != nil {
		return nil, err
	}
	dir, err := s.memoryFiles.Create(s.dir)
	if err != nil {
		return nil, err
	}
	if err := pr.m.at(ctx, "before suspend"); err != nil {
		return nil, err
	}
	defer byEngine(ctx, inst)()
	var complete engine.Completion
	err = bounded(ctx, memoryTimeout, func(ctx context.Context) error {
		complete, err = inst.(engine.Suspender).Suspend(ctx, dir)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	root, agent := s.image.Path, s.image.Agent
	s.mu.Unlock()
	return func(ctx context.Context) (memory engine.Memory, err error) {
		err = bounded(ctx, memoryTimeout, func(ctx context.Context) error {
			memory, err = complete(ctx)
			return cmp.Or(err, directory.PinImages(dir, root, agent))
		})
		return memory, errors.Join(err, pr.m.at(ctx, "after suspend"))
	}, nil
}

// putAway puts on record that a sandbox is suspended.
func (pr pauser) putAway(s *live, memory engine.Memory, over string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, suspended, state := s.info, now(), s.engineState
	if err := s.move(api.StateSuspended, ""); err != nil {
		return err
	}
	s.info.SuspendedAt, s.info.MemoryBytes = &suspended, memory.Bytes
	s.memory, s.unsettled, s.engineState, s.compressed = &memory, false, nil, false
	if err := s.save(); err != nil {
		s.info, s.memory, s.engineState = before, nil, state
		return api.Errorf(api.CodeInternal, "sandbox %s could not be put on record", s.name).WithCause(err)
	}
	pr.m.tell(s, api.EventSuspended, over)
	return nil
}

// free ends the instance of a suspended sandbox and its network. What cannot be ended now is ended before the resume,
// with the sandbox, or by the next daemon.
func (pr pauser) free(ctx context.Context, s *live, inst engine.Instance) {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	last := usage.Measure(ctx, inst, now())
	left := byEngine(ctx, inst)
	err := inst.Close(ctx)
	left()
	if err != nil && !errors.Is(err, api.ErrNotFound) {
		pr.m.log.Error("close the instance of a suspended sandbox", "sandbox", s.id, "error", err)
		return
	}
	s.mu.Lock()
	s.inst = nil
	s.mu.Unlock()
	last.Net = pr.m.networks.end(ctx, s)
	pr.m.used(s, last)
}

// SuspendedSpec returns the record of a sandbox and what a resume of it has to decide. The spec is nil for a sandbox
// that is not suspended.
func (st Starter) SuspendedSpec(ctx context.Context, caller policy.Caller, ref string) (api.Sandbox, *api.SandboxSpec, error) {
	s, err := st.m.find(caller, policy.VerbResume, ref)
	if err != nil {
		return api.Sandbox{}, nil, err
	}
	s.awaitPause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	info := s.look()
	if info.State != api.StateSuspended {
		return info, nil, nil
	}
	return info, record.SpecNow(*s.spec, info), nil
}

// ResumeSuspended continues the processes of a suspended sandbox from the disk. If that fails, the sandbox stays
// suspended. Resuming a sandbox that runs is not an error.
func (st Starter) ResumeSuspended(ctx context.Context, caller policy.Caller, ref string, o StartOptions) (api.Sandbox, error) {
	if !o.Permit.Valid() {
		return api.Sandbox{}, api.Errorf(api.CodeDenied, "no policy has granted this resume")
	}
	s, err := st.m.find(caller, policy.VerbResume, ref)
	if err != nil {
		return api.Sandbox{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	s.memoryFiles.Interrupt()
	s.lockOps(ctx)
	defer s.ops.Unlock()
	defer s.interruptible(cancel)()
	info := s.snapshot()
	switch info.State {
	case api.StateRunning:
		return info, nil
	case api.StateSuspended:
	default:
		return api.Sandbox{}, stage.NotRunning(info)
	}
	left, err := st.m.limiter.Enter(ctx, s.tenant, func() {})
	if err != nil {
		return api.Sandbox{}, fault.Canceled(ctx, createTimeout, "queue", err)
	}
	defer left()
	s.mu.Lock()
	inst, memory := s.inst, s.memory
	if o.Egress != nil {
		s.grant = o.Egress
	}
	s.undo, s.dirs = undo.Stack{}, nil
	s.mu.Unlock()
	if inst != nil {
		st.m.pauser.free(ctx, s, inst)
	}
	c := &creation{m: st.m, permit: o.Permit, progress: func(string) {}, s: s, from: s, memory: memory, begun: time.Now()}
	if err := c.run(ctx); err != nil {
		st.m.log.Warn("resume failed", "sandbox", s.id, "error", err, "cause", errors.Unwrap(err))
		if uerr := s.undo.Run(context.WithoutCancel(ctx)); uerr != nil {
			st.m.log.Error("undo of a failed resume", "sandbox", s.id, "error", uerr)
		}
		return api.Sandbox{}, err
	}
	st.m.log.Info("sandbox resumed", "sandbox", s.id, "name", s.name, "took", time.Since(c.begun))
	return s.snapshot(), nil
}

// resumption are the steps of a resume, in order.
func (c *creation) resumption() []creationStep {
	return slices.Concat([]creationStep{{"directory", c.makeDir}}, c.restoration(), []creationStep{{"record", c.continued}})
}

// restoration are the steps of everything that continues from a memory, in order.
func (c *creation) restoration() []creationStep {
	return []creationStep{
		{"image", c.resolveImage},
		{"workspace", c.openWorkspace},
		{"mounts", c.stageMounts},
		{"agent", c.prepareAgent},
		{"secrets", c.holdSecrets},
		{"network", c.openNetwork},
		{"engine", c.startEngine},
		{"renew", c.renew},
	}
}

// renew connects to the agent of a sandbox that continues from a memory, and gives it a token that no copy of the memory
// has, and the name of the sandbox, before any other call. Then the agent's timers go on. If the resume fails after that,
// the saved memory still has the old token.
func (c *creation) renew(ctx context.Context) error {
	s, token := c.s, agent.NewToken()
	s.mu.Lock()
	conn := c.m.newConn(s, nil)
	s.agent = conn
	s.mu.Unlock()
	client, err := conn.Get(ctx)
	if err != nil {
		return err
	}
	err = client.Renew(ctx, token, record.Hostname(s.name))
	if errors.Is(err, api.ErrUnsupported) && c.fork == nil {
		c.m.log.Info("the agent is too old to take another token", "sandbox", s.id)
		token, err = s.token, nil
	}
	if err != nil {
		return err
	}
	conn.Renew(token)
	s.mu.Lock()
	before := s.token
	s.token = token
	s.mu.Unlock()
	s.undo.Push("token", func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.token, s.agent = before, c.m.newConn(s, nil)
		return nil
	})
	c.client = client
	s.deadlines.Hold(false)
	return client.HoldTimers(ctx, false)
}

// pinnedRoot has the root be the image that the memory is of. The caller holds s.mu.
func (c *creation) pinnedRoot(digest string) error {
	if digest != c.s.info.ImageDigest {
		return api.Errorf(api.CodeState, "image %s has changed since sandbox %s was suspended", c.s.info.Image, c.s.name).
			WithHint("to start it without what its programs had in memory: cloche stop %s, and cloche start %s", c.s.name, c.s.name).WithCause(engine.ErrMemoryRefused)
	}
	c.plan.Root.Image = directory.PinnedImage(c.memory.Dir, directory.RootImage, c.s.image.Path)
	return nil
}

// continued puts on record that a suspended sandbox runs. Until that is on the disk, a daemon that dies leaves a
// suspended sandbox, whose memory is still there.
func (c *creation) continued(ctx context.Context) error {
	s := c.s
	s.mu.Lock()
	before, memory, lease := s.info, s.memory, s.lease
	err := s.move(api.StateRunning, "")
	if err == nil {
		resumed := now()
		s.info.SuspendedAt, s.info.MemoryBytes, s.info.ResumedAt = nil, 0, &resumed
		s.info.StartMS = time.Since(c.begun).Milliseconds()
		s.memory = nil
		s.lease.Resume(now())
		if s.info.OnExpiry == api.ExpirySuspend {
			s.lease.Begin(now())
		}
		if err = s.save(); err != nil {
			s.info, s.memory, s.lease = before, memory, lease
		}
	}
	if err == nil {
		c.m.tell(s, api.EventResumed, "")
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.memoryFiles.Retire(s.dir, c.m.background, func(err error) {
		c.m.log.Error("remove the saved memory of a sandbox", "sandbox", s.id, "error", err)
	})
	s.procs.Resume()
	c.m.refused.attend(s, c.inst)
	s.endpoints.Reopen(ctx)
	c.m.reaper.poke()
	return nil
}

// dropMemory gives up the saved memory of a suspended sandbox that is being ended. The caller holds s.ops.
func (pr pauser) dropMemory(s *live) {
	s.mu.Lock()
	suspended := s.memory != nil
	s.memory, s.info.SuspendedAt, s.info.MemoryBytes = nil, nil, 0
	if suspended {
		s.finish(ending{reason: "the sandbox was ended"})
	}
	s.mu.Unlock()
	pr.removeMemory(s)
	if suspended {
		s.procs.Settle()
	}
}

// removeMemory removes the files of a saved memory. What is left goes with the next suspend or with the sandbox.
func (pr pauser) removeMemory(s *live) {
	if err := s.memoryFiles.Remove(s.dir); err != nil {
		pr.m.log.Error("remove the saved memory of a sandbox", "sandbox", s.id, "error", err)
	}
}

// recallMemory takes over the saved memory of a record. What is there of a sandbox that is not suspended is what an
// interrupted suspend or resume has left.
func (pr pauser) recallMemory(s *live, r *record.Record) {
	if s.info.State == api.StateSuspended {
		s.memory = &engine.Memory{Dir: filepath.Join(s.dir, directory.Memory), Bytes: s.info.MemoryBytes, Note: r.Memory}
		return
	}
	pr.removeMemory(s)
}
