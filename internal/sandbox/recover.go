package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/sandbox/lease"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
	"github.com/cloche-dev/cloche/internal/sandbox/template"
	"github.com/cloche-dev/cloche/internal/sandbox/usage"
)

// maxParallel bounds the sandboxes that are adopted at once.
const maxParallel = 8

// Recover finds the sandboxes of an earlier daemon again: it adopts what lives,
// marks what died as lost, finishes the ends and removals that were begun, and
// removes what a creation left half done. What has no record that can be read is kept, and
// listed as failed. It is called once, before anything
// else, by a Manager that is not ephemeral. Long removals go on when it has
// returned.
func (m *Manager) Recover(ctx context.Context) error {
	ids, gone, err := directory.List(m.sandboxesDir())
	if err != nil {
		return err
	}
	m.background(func() {
		for _, dir := range gone {
			if err := directory.RemoveGone(dir); err != nil {
				m.log.Error("finish the removal of a sandbox", "directory", dir, "error", err)
			}
		}
	})
	if err := m.tombstones.Load(); err != nil {
		m.log.Error("read which sandboxes are no more", "error", err)
	}
	found := finds{keep: map[string][]string{}}
	limit := make(chan struct{}, maxParallel)
	var wg sync.WaitGroup
	for _, id := range ids {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			m.recovery.reconcile(ctx, id, &found)
		})
	}
	wg.Wait()
	for _, eng := range m.opts.Engines {
		kept := found.keep[eng.Name()]
		if err := eng.Sweep(ctx, m.opts.Owner, func(id string) bool { return slices.Contains(kept, id) }); err != nil {
			found.errs = append(found.errs, fmt.Errorf("sweep engine %s: %w", eng.Name(), err))
		}
	}
	if err := m.networks.sweep(ctx); err != nil {
		found.errs = append(found.errs, fmt.Errorf("sweep links: %w", err))
	}
	if err := template.Sweep(m.opts.Dir); err != nil {
		found.errs = append(found.errs, err)
	}
	if err := m.workspaces.sweep(); err != nil {
		found.errs = append(found.errs, fmt.Errorf("sweep workspaces: %w", err))
	}
	m.reaper.poke()
	return errors.Join(found.errs...)
}

// recovery adopts the sandboxes of an earlier daemon.
type recovery struct{ m *Manager }

// finds is what a Recover has found so far.
type finds struct {
	mu   sync.Mutex
	keep map[string][]string // ids by engine
	errs []error
}

func (f *finds) keeps(engine, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keep[engine] = append(f.keep[engine], id)
}

// keepsEverywhere keeps a sandbox of which it is not known which engine has it.
func (f *finds) keepsEverywhere(engines []engine.Engine, id string) {
	for _, eng := range engines {
		f.keeps(eng.Name(), id)
	}
}

func (f *finds) failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = append(f.errs, err)
}

// reconcile does what one directory needs.
func (rc recovery) reconcile(ctx context.Context, id string, found *finds) {
	dir := filepath.Join(rc.m.sandboxesDir(), id)
	r, err := record.Read(dir)
	if err != nil && directory.Unfinished(dir) {
		if err := directory.Clear(dir); err != nil {
			found.failed(fmt.Errorf("clear what is left of %s: %w", id, err))
		}
		return
	}
	if err != nil {
		rc.listUnreadable(id, dir, err)
		found.keepsEverywhere(rc.m.opts.Engines, id)
		return
	}
	if err := directory.Establish(dir); err != nil {
		rc.m.log.Warn("mark a sandbox as created", "sandbox", id, "error", err)
	}
	s, err := rc.adopt(ctx, id, dir, r)
	if err == nil {
		s.procs.Adopt()
	}
	rc.adoptKey(s)
	rc.m.list(s)
	if err != nil {
		// What cannot be reached now may be later, by another build or when the machine
		// has recovered: nothing of it is swept.
		rc.m.log.Error("adopt sandbox", "sandbox", id, "error", err)
		found.failed(err)
		found.keepsEverywhere(rc.m.opts.Engines, id)
		if r.Removing {
			rc.m.reaper.removeLater(s, why{})
		}
		return
	}
	if err := rc.m.layers.finishCommit(s); err != nil {
		rc.m.log.Error("finish a commit that was interrupted; its sandbox stays until it is", "sandbox", id, "error", err)
		found.failed(err)
	}
	s.mu.Lock()
	inst, name, paused := s.inst, s.info.Engine, s.info.State == api.StatePaused
	s.mu.Unlock()
	if inst != nil {
		rc.m.networks.adopt(ctx, s)
		s.deadlines.Adopt(paused)
		found.keeps(name, id)
		rc.m.refused.attend(s, inst)
		rc.m.copier.keep(s)
		s.endpoints.Reopen(ctx)
		rc.m.log.Info("sandbox adopted", "sandbox", id)
	}
	rc.resolve(s)
}

// adopt makes a live sandbox of a recorded one. It is not in the tables yet, so waiting for the
// engine blocks no other call. s.inst is nil if it no longer runs.
func (rc recovery) adopt(ctx context.Context, id, dir string, r *record.Record) (*live, error) {
	s := &live{
		id: id, tenant: r.Info.Tenant, name: r.Info.Name, profile: r.Info.Profile, dir: dir, info: r.Info, dirs: r.Dirs, wake: rc.m.reaper.poke,
		token: r.AgentToken, image: r.Image, engineState: r.EngineState, ended: make(chan struct{}),
		grant: r.Egress, secrets: r.Secrets, trusts: r.Trusts, removal: r.Removal, spec: r.Spec, creator: r.Creator, rootSince: r.RootSince, endBegan: r.EndBegan, unsettled: r.Unsettled, making: stage.CreationAnnounced, endReason: r.Info.Reason,
	}
	rc.m.connect(s)
	if r.Removing {
		s.teardown.Step(stage.TeardownRemoving)
	}
	s.recall(r)
	s.info.Teardown, s.digest = nil, r.KeyDigest
	s.endpoints.Adopt(r.Endpoints)
	s.ports.Adopt(r.Ports)
	if s.info.State == api.StateStopped || s.info.State == api.StateLost {
		s.finish(ending{reason: "the sandbox was ended"})
		return s, nil
	}
	rc.m.pauser.recallMemory(s, r)
	if s.memory != nil {
		s.agent = rc.m.newConn(s, nil)
		s.deadlines.Adopt(true)
		return s, nil
	}
	inst, err := rc.reach(ctx, s)
	if errors.Is(err, api.ErrNotFound) {
		rc.m.refused.untold(s, err)
		rc.markDead(s)
		return s, nil
	}
	if err != nil {
		// It may live. Its record stays as it is, for a daemon that can reach it.
		s.unreached = true
		s.info.State, s.info.Reason = api.StateFailed, "this daemon cannot reach it: the daemon's log says why"
		return s, fmt.Errorf("recover sandbox %s: %w", id, err)
	}
	rc.m.copier.adopt(s, r.Copies)
	s.inst = inst
	s.agent = rc.m.newConn(s, func(version int) {
		rc.m.log.Warn("the sandbox was made by an older cloche and cannot do all that this one can; make it again to have that",
			"sandbox", id, "agent_protocol", version)
	})
	if st, ok := usage.Stat(ctx, inst); ok {
		s.oomSeen = st.OOMKills
	}
	if s.unsettled && s.info.State == api.StateRunning {
		s.info.State = api.StatePaused // until resolve has made sure that it runs
	}
	return s, nil
}

// recall makes the lease of a record.
func (s *live) recall(r *record.Record) {
	used := r.LastUse
	if used.IsZero() {
		used = now()
	}
	began := r.Began
	if began.IsZero() {
		began = r.Info.CreatedAt
	}
	s.lease = lease.New(began, r.Info.Limits, used)
	// The latest use may not be on record: give it the benefit of the doubt.
	if s.lease.LastUse = used.Add(s.lease.SaveEvery()); s.lease.LastUse.After(now()) {
		s.lease.LastUse = now()
	}
	if r.Info.State.Held() {
		s.lease.Paused, s.lease.Spent = true, r.IdleSpent
	}
}

// reach asks the engine for the instance.
func (rc recovery) reach(ctx context.Context, s *live) (engine.Instance, error) {
	if s.engineState == nil {
		return nil, api.Errorf(api.CodeNotFound, "sandbox %s ran under another home", s.id)
	}
	eng := rc.m.engineNamed(s.info.Engine)
	if eng == nil {
		return nil, api.Errorf(api.CodeUnavailable, "sandbox %s needs engine %q, which is not in this build", s.id, s.info.Engine)
	}
	return eng.Recover(ctx, s.engineState)
}

// markDead records the end of a sandbox that ended while no daemon was there to
// see it: as lost, unless it was being ended, or its lease is over by now.
func (rc recovery) markDead(s *live) {
	s.engineState = nil
	if s.info.Workspace.Name != "" {
		s.cut.Store(true) // work in progress was not observed
		rc.m.removeCutWrites(rc.m.ctx, s)
	}
	t, leased := s.lease.End(now())
	switch {
	case s.teardown.Removing():
		// resolve goes on with it.
	case s.info.State == api.StateStopping || s.info.State == api.StateFailed:
		s.info.State, s.info.Reason = api.StateStopping, s.endReason
		s.info.TerminalReason = cmp.Or(s.info.TerminalReason, api.EndedStopped)
		rc.m.markStopped(s)
	case leased && !now().Before(t.At):
		s.info.State, s.endReason, s.info.TerminalReason = api.StateStopping, t.Reason, t.Cause
		rc.m.markStopped(s)
	default:
		stopped := now()
		s.info.State, s.info.Reason, s.info.StoppedAt = api.StateLost, "the sandbox died while the daemon was not running", &stopped
		s.info.TerminalReason, s.endBegan = api.EndedLost, stopped
		s.loseRoot("it died while the daemon was not running")
		if err := s.save(); err != nil {
			rc.m.log.Error("save record", "sandbox", s.id, "error", err)
		}
		rc.m.tell(s, api.EventLost, s.info.Reason)
		rc.m.opts.Ended(s.info)
	}
	s.finish(ending{reason: cmp.Or(s.info.Reason, "the sandbox was ended")})
}

// resolve goes on with what an earlier daemon had begun with an adopted sandbox.
func (rc recovery) resolve(s *live) {
	s.mu.Lock()
	state, cause, alive := s.info.State, s.info.TerminalReason, s.inst != nil
	removing := s.teardown.Removing() || s.info.Transient && (s.info.Limits.IdleMS == 0 || !alive)
	unsettled := s.unsettled
	if err := s.check(); err != nil {
		rc.m.log.Error("a sandbox was recovered in an illegal combination of states", "sandbox", s.id, "error", err)
	}
	because := why{cause: api.EndedLease, text: "what held it went with the daemon"}
	if s.removal != nil {
		because = whyRemoved(s.removal)
		s.endsFor(because)
	}
	if alive && !removing && state != api.StateStopping {
		rc.m.tell(s, api.EventAdopted, "")
	}
	s.mu.Unlock()
	switch {
	case removing:
		rc.m.reaper.removeLater(s, because)
	case !alive:
	case state == api.StateStopping || state == api.StateFailed:
		rc.m.background(func() {
			// A kill has no grace.
			before := rc.m.graceful(s, defaultGrace)
			if cause == api.EndedKilled {
				before = nil
			}
			if _, err := rc.m.end(rc.m.ctx, s, why{cause: api.EndedStopped}, before); err != nil {
				rc.m.log.Error("finish a stop", "sandbox", s.id, "error", err)
			}
		})
	case unsettled:
		rc.m.background(func() { rc.settleDown(s) })
	}
}

// settleDown makes a sandbox run in whose pause or resume a daemon died.
func (rc recovery) settleDown(s *live) {
	s.ops.Lock()
	defer s.ops.Unlock()
	s.mu.Lock()
	needed := s.unsettled && s.info.State == api.StatePaused
	p, ok := s.inst.(engine.Pauser)
	s.mu.Unlock()
	if !ok || !needed {
		return
	}
	if err := rc.m.pauser.resume(rc.m.ctx, s, p); err != nil {
		rc.m.log.Error("resume a sandbox in whose pause or resume the daemon died", "sandbox", s.id, "error", err)
	}
}
