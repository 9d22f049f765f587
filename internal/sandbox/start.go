package sandbox

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/fault"
	"github.com/cloche-dev/cloche/internal/sandbox/lease"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
)

// Starter starts sandboxes again that have ended, and has stops save what starts need. Use it through its [Manager].
type Starter struct {
	m *Manager
	// saves bounds how many roots are saved at once: each needs memory for the files of its image.
	saves chan struct{}
}

// StartOptions are what a sandbox is started again with.
type StartOptions struct {
	// Permit is the decision about what SpecOf returned.
	Permit policy.Permit
	// Egress are the rules that the sandbox had at its end, as they apply now. Nil takes those of the Permit.
	Egress *policy.EgressGrant
}

// SpecOf returns the record of a sandbox and what a start of it has to decide: what it was created with, and
// what has changed since. The spec is nil for a sandbox that runs.
func (st Starter) SpecOf(caller policy.Caller, ref string) (api.Sandbox, *api.SandboxSpec, error) {
	s, err := st.m.find(caller, policy.VerbStartSandbox, ref)
	if err != nil {
		return api.Sandbox{}, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	info := s.look()
	if info.State == api.StateRunning {
		return info, nil, nil
	}
	if err := s.mayStart(); err != nil {
		return info, nil, err
	}
	return info, record.SpecNow(*s.spec, info), nil
}

// mayStart says why a sandbox cannot be started. The caller holds s.mu.
func (s *live) mayStart() error {
	if s.next != nil {
		return api.Errorf(api.CodeState, "sandbox %s was started meanwhile", s.info.Name)
	}
	return stage.MayStart(s.info, s.teardown, s.spec != nil)
}

// Start starts a sandbox that has ended. It has its ID, its name, its workspace, and the root that its last stop
// saved; Lost of its record says what is missing. Starting a sandbox that runs is not an error. If the start fails,
// the sandbox stays as it was. declared are the processes that are to be started again.
func (st Starter) Start(ctx context.Context, caller policy.Caller, ref string, o StartOptions, progress func(step string)) (sb api.Sandbox, declared []api.ProcessSpec, err error) {
	if !o.Permit.Valid() {
		return api.Sandbox{}, nil, api.Errorf(api.CodeDenied, "no policy has granted this start")
	}
	old, err := st.m.find(caller, policy.VerbStartSandbox, ref)
	if err != nil {
		return api.Sandbox{}, nil, err
	}
	if progress == nil {
		progress = func(string) {}
	}
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	old.lockOps(ctx)
	defer old.ops.Unlock()
	defer old.interruptible(cancel)()
	old.mu.Lock()
	next, endBegan := old.next, old.endBegan
	old.mu.Unlock()
	if next != nil {
		return next.snapshot(), nil, nil // another call started it
	}
	leave, err := st.admit(ctx, old, o.Permit.Quota(), progress)
	if err != nil {
		return api.Sandbox{}, nil, err
	}
	defer leave()
	if err := st.m.releaseRest(ctx, old); err != nil {
		return api.Sandbox{}, nil, err
	}
	c := &creation{m: st.m, permit: o.Permit, progress: progress, s: st.again(old, o), from: old, begun: time.Now()}
	if err := c.run(ctx); err != nil {
		st.m.log.Warn("start failed", "sandbox", old.id, "error", err, "cause", errors.Unwrap(err))
		c.giveUp(ctx)
		return api.Sandbox{}, nil, err
	}
	st.m.log.Info("sandbox started again", "sandbox", old.id, "name", old.name, "took", time.Since(c.begun))
	declared = c.s.procs.Renew(endBegan)
	c.s.procs.Adopt()
	st.m.refused.attend(c.s, c.inst)
	return c.s.snapshot(), declared, nil
}

// admit lets a start begin when the state of the sandbox, the quota and the number of creations allow it.
func (st Starter) admit(ctx context.Context, old *live, quota policy.Quota, progress func(string)) (leave func(), err error) {
	old.mu.Lock()
	err = old.mayStart()
	old.mu.Unlock()
	if err != nil {
		return nil, err
	}
	st.m.mu.Lock()
	own, all := st.m.count(old.tenant)
	if err = quota.Check(own, all, false); err == nil && st.m.closed {
		err = api.Errorf(api.CodeUnavailable, "the daemon is shutting down")
	}
	if err == nil {
		st.m.starting[old.tenant]++
	}
	st.m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	counted := func() {
		st.m.mu.Lock()
		defer st.m.mu.Unlock()
		if st.m.starting[old.tenant]--; st.m.starting[old.tenant] == 0 {
			delete(st.m.starting, old.tenant)
		}
	}
	left, err := st.m.limiter.Enter(ctx, old.tenant, func() { progress("queue") })
	if err != nil {
		counted()
		return nil, fault.Canceled(ctx, createTimeout, "queue", err)
	}
	return func() { left(); counted() }, nil
}

// again makes the record of a sandbox that is about to be started again.
func (st Starter) again(old *live, o StartOptions) *live {
	old.mu.Lock()
	defer old.mu.Unlock()
	started, p := now(), o.Permit
	info := old.info
	info.State, info.Reason, info.TerminalReason, info.EndedBy, info.StoppedAt, info.Teardown, info.Degraded = api.StateCreating, "", "", "", nil, nil, ""
	info.Limits, info.Adjusted, info.Unenforced = p.Limits(), p.Adjusted(), p.Unenforced()
	info.Starts, info.StartedAt, info.QueueMS = info.Starts+1, &started, 0
	info.Lost = slices.Clone(info.Lost)
	made := make(chan struct{})
	close(made)
	s := &live{
		id: old.id, tenant: old.tenant, name: old.name, profile: p.Profile(), dir: old.dir, wake: old.wake, digest: old.digest,
		ended: make(chan struct{}), made: made, lease: lease.New(started, p.Limits(), started), info: info,
		making: stage.CreationRecorded, secrets: old.secrets, spec: old.spec, creator: old.creator, grant: o.Egress,
	}
	st.m.connect(s)
	return s
}

// begin makes the started sandbox the one that callers find, unless its removal was requested meanwhile. Until its
// record is on the disk, a daemon that dies leaves a stopped sandbox.
func (c *creation) begin() error {
	s, old := c.s, c.from
	s.info.StartMS = time.Since(c.begun).Milliseconds()
	old.mu.Lock()
	defer old.mu.Unlock()
	if old.teardown != stage.TeardownNone {
		return api.Errorf(api.CodeConflict, "sandbox %s was deleted while it was being started", s.name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.move(api.StateRunning, ""); err != nil {
		return err
	}
	s.lease.Begin(now())
	if err := s.save(); err != nil {
		return err
	}
	old.sealed, old.next = true, s
	s.making.Step(stage.CreationAnnounced)
	return nil
}

// announce puts a started sandbox into the tables.
func (c *creation) announce() {
	c.m.mu.Lock()
	c.m.byID[c.s.id] = c.s
	if key := (nameKey{c.s.tenant, c.s.name}); c.m.byName[key] == c.from {
		c.m.byName[key] = c.s
	}
	c.m.mu.Unlock()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	var lost string
	if n := len(c.s.info.Lost); n > 0 {
		lost = cmp.Or(c.s.info.Lost[0].Name, string(c.s.info.Lost[0].Kind)) + ": " + c.s.info.Lost[0].Reason
	}
	c.m.tell(c.s, api.EventStarted, lost)
}

// giveUp takes back a start that failed. What cannot be taken back now is swept by the next start, the removal of
// the sandbox, or the next daemon.
func (c *creation) giveUp(ctx context.Context) {
	c.s.mu.Lock()
	conn := c.s.agent
	c.s.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
	if err := c.s.undo.Run(ctx); err != nil {
		c.m.log.Error("undo of a failed start", "sandbox", c.s.id, "error", err)
		c.from.mu.Lock()
		c.from.unreached = true
		c.from.mu.Unlock()
	}
}

// Lose adds to what the record of a started sandbox says is lost.
func (st Starter) Lose(caller policy.Caller, ref string, lost []api.Loss) (api.Sandbox, error) {
	s, err := st.m.find(caller, policy.VerbStartSandbox, ref)
	if err != nil {
		return api.Sandbox{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info.Lost = append(slices.Clone(s.info.Lost), lost...)
	return s.look(), s.save()
}
