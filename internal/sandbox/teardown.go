package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/await"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/agentconn"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/sandbox/idempotency"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/sandbox/remains"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
	"github.com/cloche-dev/cloche/internal/sandbox/tombstone"
	"github.com/cloche-dev/cloche/internal/sandbox/usage"
)

const (
	// defaultGrace is how long processes may take to end after TERM.
	defaultGrace = 10 * time.Second
	// maxGrace bounds what a caller may ask for.
	maxGrace = 10 * time.Minute
	// closeTimeout bounds one attempt to end an instance.
	closeTimeout = 30 * time.Second
	// flushTimeout bounds what is still read of a sandbox whose grace was cut short.
	flushTimeout = 3 * time.Second
)

// Stop ends a sandbox gracefully: it sends TERM to every process, waits up to grace, flushes what
// they wrote, and then kills. The record, the logs and the workspace are kept. Stopping an ended
// sandbox is not an error.
func (m *Manager) Stop(ctx context.Context, caller policy.Caller, ref string, grace *time.Duration) (api.Sandbox, error) {
	wait := defaultGrace
	if grace != nil {
		if wait = *grace; wait < 0 || wait > maxGrace {
			return api.Sandbox{}, api.Invalid("grace_ms", "a grace of %s is not between 0 and %s", wait, maxGrace)
		}
	}
	s, err := m.find(caller, policy.VerbStop, ref)
	if err != nil {
		return api.Sandbox{}, err
	}
	// What was begun is finished, also when the caller has gone.
	return m.end(context.WithoutCancel(ctx), s, whyAsked(api.EndedStopped, caller), m.graceful(s, wait))
}

// graceful is the part of a graceful stop before the kill. The end of its context shortens the
// grace period.
func (m *Manager) graceful(s *live, grace time.Duration) func(context.Context) {
	return func(ctx context.Context) {
		s.mu.Lock()
		inst, suspended := s.inst, s.memory != nil
		s.mu.Unlock()
		if suspended {
			return // no process runs, and the root is in the memory
		}
		defer await.Of(ctx, agentconn.Named(inst, agentconn.TheAgent))()
		m.pauser.thaw(ctx, s)
		client, err := m.agentOf(ctx, s)
		unreached := err
		if err == nil {
			ctx, cancel := context.WithTimeout(ctx, grace+callTimeout)
			defer cancel()
			if err = client.Terminate(ctx, grace); err != nil {
				m.log.Warn("terminate", "sandbox", s.id, "error", err)
			}
		}
		if ctx.Err() != nil || err != nil {
			// A grace that was cut short is no reason to lose what was written before. An
			// agent that has not answered is not waited for as long again.
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
			defer cancel()
		}
		if err := s.procs.SaveOutput(ctx); err != nil {
			m.log.Warn("save output", "sandbox", s.id, "error", err)
		}
		m.saveRoot(ctx, s, unreached)
	}
}

// Kill ends a sandbox at once. The record and the workspace stay.
func (m *Manager) Kill(ctx context.Context, caller policy.Caller, ref string) (api.Sandbox, error) {
	s, err := m.find(caller, policy.VerbKill, ref)
	if err != nil {
		return api.Sandbox{}, err
	}
	// A kill does not queue behind a stop that is waiting for its grace: once
	// the instance is dead, the stop has nothing left to wait for.
	s.mu.Lock()
	inst := s.inst
	s.mu.Unlock()
	if inst != nil && s.snapshot().State == api.StateStopping {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		left := byEngine(ctx, inst)
		err := inst.Close(ctx)
		left()
		if err != nil {
			m.log.Warn("kill", "sandbox", s.id, "error", err)
		}
	}
	return m.end(context.WithoutCancel(ctx), s, whyAsked(api.EndedKilled, caller), nil)
}

// why says why a sandbox ends: for programs, and for people if no caller requested it.
type why struct {
	cause api.TerminalReason
	text  string
	// by is the caller that requested it, or empty.
	by string
	// discards: a saved memory is given up, and not resumed for the stop.
	discards bool
}

// whyAsked is why a sandbox ends that a caller wants to end.
func whyAsked(cause api.TerminalReason, caller policy.Caller) why {
	return why{cause: cause, by: "tenant " + caller.Tenant + ", " + caller.Origin()}
}

// end takes a sandbox to stopped, or to nothing if it is being removed. before,
// which may be nil, runs while it is stopping. What fails is tried again; the error
// is of what could not be done while the caller waited, and goes on.
func (m *Manager) end(ctx context.Context, s *live, w why, before func(context.Context)) (api.Sandbox, error) {
	if before != nil && !w.discards {
		m.waker.resumeToStop(ctx, s)
	}
	defer s.interruptSnapshot()()
	s.lockOps(ctx)
	first, err := m.beginEnd(s, w)
	if err != nil {
		s.ops.Unlock()
		return api.Sandbox{}, err
	}
	if err := m.at(ctx, "stopping"); err != nil {
		m.log.Warn("stop", "sandbox", s.id, "error", err)
	}
	if before != nil && first {
		before(ctx)
	}
	begun := time.Now()
	err = m.retrier.attempt(ctx, s)
	s.ops.Unlock()
	if err != nil {
		err = m.retrier.awaitEnd(ctx, s, err, begun)
	}
	return s.last(), err
}

// beginEnd says that a sandbox is being ended. first is true unless that failed
// before. The caller holds s.ops.
func (m *Manager) beginEnd(s *live, w why) (first bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := api.StateStopping
	if s.teardown.Removing() {
		to = api.StateDeleting
	}
	s.endsFor(w)
	switch state := s.info.State; {
	case s.teardown == stage.TeardownRemoved, state.Over() && !s.teardown.Removing():
		return false, nil
	case state.Over():
		s.endReason = w.text // its own reason stays on record
		return false, s.move(to, s.info.Reason)
	case state == to, state == api.StateStopping:
		// An earlier daemon began it, or it failed and is being retried, or what was to
		// end only goes now.
		s.endReason = cmp.Or(w.text, s.endReason)
		if state != to {
			err = s.move(to, s.endReason)
		}
		return s.info.Teardown == nil, err
	}
	if err := s.move(to, w.text); err != nil {
		return false, err
	}
	s.endReason, s.endBegan = w.text, now()
	reason := "its end was cut short" // unless a stop saves the root
	switch {
	case w.cause == api.EndedKilled:
		reason = "it was killed"
	case s.memory != nil:
		reason = "it was stopped while it was suspended"
	}
	s.loseRoot(reason)
	// On record before anything ends: a daemon that dies now has a successor
	// that finishes this.
	m.saveUnlessRemoving(s)
	if s.making.Announced() {
		m.tell(s, api.EventStopping, w.text)
	}
	return true, nil
}

// endsFor notes why a sandbox ends, unless that was said before. The caller holds s.mu.
func (s *live) endsFor(w why) {
	if s.info.TerminalReason == "" {
		s.info.TerminalReason, s.info.EndedBy = w.cause, w.by
	}
}

// last is what is on record of a sandbox, or was before it was removed.
func (s *live) last() api.Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := s.look()
	if s.teardown == stage.TeardownRemoved {
		info.State = api.StateDeleted
	}
	return info
}

// markStopped records that nothing runs any more. The caller holds s.mu.
func (m *Manager) markStopped(s *live) {
	stopped := now()
	s.info.StoppedAt = &stopped
	if !s.teardown.Removing() {
		_ = s.move(api.StateStopped, s.endReason)
		s.info.Teardown = nil
		m.saveUnlessRemoving(s)
	}
	if s.making.Announced() {
		m.tell(s, api.EventStopped, s.toldReason())
	}
	m.reaper.poke()
}

// toldReason is what an event says of an end: why, and if it did not succeed at once
// that it was retried. The caller holds s.mu.
func (s *live) toldReason() string {
	if s.attempts < 2 {
		return s.endReason
	}
	again := fmt.Sprintf("it succeeded at attempt %d", s.attempts)
	if s.endReason == "" {
		return again
	}
	return s.endReason + "; " + again
}

// saveUnlessRemoving writes the record, unless that says already that the
// sandbox goes. The caller holds s.mu.
func (m *Manager) saveUnlessRemoving(s *live) {
	if s.teardown.Removing() {
		return
	}
	if err := s.save(); err != nil {
		m.log.Error("save record", "sandbox", s.id, "error", err)
	}
}

// isRemoving reports whether a removal has begun.
func (s *live) isRemoving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.teardown.Removing()
}

// release ends the instance and all that belongs to it, and keeps the
// directory. The caller holds s.ops.
func (m *Manager) release(ctx context.Context, s *live) error {
	s.mu.Lock()
	inst, conn := s.inst, s.agent
	s.mu.Unlock()
	m.copier.last(ctx, s, conn)
	s.endpoints.Close(ctx)
	if conn != nil {
		conn.Close()
	}
	if inst == nil {
		if err := m.retrier.endUnreached(ctx, s); err != nil {
			return remains.Leaves(api.ResourceProcesses, err)
		}
		m.pauser.dropMemory(s)
		m.networks.end(ctx, s)
		m.removeCutWrites(ctx, s)
		return remains.Leaves(api.ResourceLeases, m.workspaces.detach(s, false))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err := m.at(ctx, "before close")
	left := byEngine(ctx, inst)
	last := usage.Measure(ctx, inst, now())
	if err == nil {
		err = inst.Close(ctx)
	}
	left()
	if err == nil {
		err = m.at(ctx, "after close")
	}
	if errors.Is(err, api.ErrNotFound) {
		err = nil // another call has ended it
	}
	if err != nil {
		m.log.Error("close instance", "sandbox", s.id, "error", err)
		return remains.Leaves(api.ResourceProcesses, err)
	}
	s.mu.Lock()
	s.finish(ending{reason: "the sandbox was ended"})
	s.inst, s.engineState = nil, nil
	s.mu.Unlock()
	m.pauser.dropMemory(s)
	last.Net = m.networks.end(ctx, s)
	m.used(s, last)
	s.procs.Settle()
	m.removeCutWrites(ctx, s)
	s.copies.Close()
	return remains.Leaves(api.ResourceLeases, m.workspaces.detach(s, false))
}

// releaseRest is release of a sandbox that has ended: a lost one may have left something of its instance. The caller
// holds s.ops.
func (m *Manager) releaseRest(ctx context.Context, s *live) error {
	if err := m.release(ctx, s); err != nil {
		return api.Errorf(api.CodeInternal, "sandbox %s has not ended wholly yet", s.name).WithHint("try again").WithCause(err)
	}
	return nil
}

// clean ends what is left of the instance of a lost sandbox.
func (m *Manager) clean(ctx context.Context, s *live) {
	s.ops.Lock()
	err := m.retrier.attempt(ctx, s)
	s.ops.Unlock()
	if err != nil {
		m.retrier.retry(s)
	}
}

// Delete takes a sandbox away with its record, logs and private workspace, running
// or not, and returns the last that is known of it. One that is still being created
// is not created. What was begun is finished, also when the caller has gone or the
// daemon dies.
func (m *Manager) Delete(ctx context.Context, caller policy.Caller, ref string) (api.Sandbox, error) {
	s, err := m.find(caller, policy.VerbRemove, ref)
	if err != nil {
		if sb, ok := m.tombstones.Sandbox(caller, ref); ok {
			return sb, nil
		}
		return api.Sandbox{}, err
	}
	return m.remove(context.WithoutCancel(ctx), s, whyAsked(api.EndedDeleted, caller))
}

// Removed returns the last record of a removed sandbox, by its ID. It is not found while the
// removal is in progress.
func (m *Manager) Removed(caller policy.Caller, id string) (api.Sandbox, bool) {
	if m.listed(id) {
		return api.Sandbox{}, false
	}
	return m.tombstones.Sandbox(caller, id)
}

// listed reports whether there is a sandbox with this id. One that is being removed has
// its tombstone already, and is there until nothing is left of it.
func (m *Manager) listed(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byID[id] != nil
}

// Remove is Delete for who wants no record.
func (m *Manager) Remove(ctx context.Context, caller policy.Caller, ref string) error {
	_, err := m.Delete(ctx, caller, ref)
	return err
}

// whyRemoved is the reason that the next daemon gives, who asked included.
func whyRemoved(r *record.Removal) why {
	text := r.Text
	if r.By != "" {
		text = "its removal was asked for by " + r.By + ", and finished by another daemon"
	}
	return why{cause: r.Cause, text: text, by: r.By}
}

// remove is Delete of a sandbox that was found. What fails is retried.
func (m *Manager) remove(ctx context.Context, s *live, w why) (api.Sandbox, error) {
	if err := s.forestall(ctx); err != nil {
		return s.last(), err
	}
	s.mu.Lock()
	if next := s.next; next != nil {
		s.mu.Unlock()
		if w.by == "" {
			return next.last(), nil // it was for what has been started again
		}
		return m.remove(ctx, next, w)
	}
	if s.teardown == stage.TeardownRemoved {
		s.mu.Unlock()
		return s.last(), nil
	}
	if s.removal == nil {
		s.removal = &record.Removal{Cause: w.cause, Text: w.text, By: w.by}
	}
	s.endsFor(w)
	s.teardown.Step(stage.TeardownRemoving)
	// On record first: who finds this record finishes the removal, and says why.
	if err := s.save(); err != nil {
		m.log.Error("save the intention to remove", "sandbox", s.id, "error", err)
	}
	s.mu.Unlock()
	if err := m.at(ctx, "removing"); err != nil {
		m.log.Warn("remove", "sandbox", s.id, "error", err)
	}
	return m.end(ctx, s, w, nil)
}

// forestall ends the creation of a sandbox that is not created yet, and waits for
// that.
func (s *live) forestall(ctx context.Context) error {
	s.mu.Lock()
	if s.info.State != api.StateCreating {
		s.mu.Unlock()
		return nil
	}
	s.making.Step(stage.CreationCanceled)
	stop, made := s.stopMaking, s.made
	s.mu.Unlock()
	stop(idempotency.ErrDeleted)
	select {
	case <-made:
		return nil
	case <-ctx.Done():
		return api.Errorf(api.CodeTimeout, "sandbox %s is still being created, and goes when that has ended", s.name).WithCause(ctx.Err())
	}
}

// erase takes away what a sandbox that has ended still has. The caller holds
// s.ops.
func (m *Manager) erase(ctx context.Context, s *live) error {
	// What was begun with the workspace is not left half done.
	if err := m.layers.finishCommit(s); err != nil {
		return remains.Leaves(api.ResourceDisk, err)
	}
	if err := m.layers.drop(ctx, s); err != nil {
		return remains.Leaves(api.ResourceDisk, err)
	}
	if err := m.at(ctx, "before erase"); err != nil {
		return remains.Leaves(api.ResourceDisk, err)
	}
	if err := m.workspaces.detach(s, true); err != nil {
		return remains.Leaves(api.ResourceLeases, err)
	}
	if err := m.workspaces.dropVolume(ctx, s); err != nil {
		return remains.Leaves(api.ResourceDisk, err)
	}
	if err := m.dropHolds(s); err != nil {
		return remains.Leaves(api.ResourceLeases, err)
	}
	// Nothing is written any more, so that nothing appears in what is being removed.
	s.mu.Lock()
	s.teardown.Step(stage.TeardownErasing)
	s.mu.Unlock()
	// Its tombstone is there before its record goes, so that at every moment one of them
	// says what became of its key.
	if s.isAnnounced() {
		if err := m.tombstones.Add(s.tombstone()); err != nil {
			m.log.Error("a restart will forget that a sandbox was removed", "sandbox", s.id, "error", err)
		}
	}
	err := directory.Clear(s.dir)
	if err == nil {
		err = m.at(ctx, "after erase")
	}
	return remains.Leaves(api.ResourceDisk, err)
}

// tombstone returns what stays known of a sandbox that is being removed.
func (s *live) tombstone() *tombstone.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.info
	return &tombstone.Record{At: now(), Digest: s.digest, Sandbox: api.Sandbox{
		ID: i.ID, Name: i.Name, State: api.StateDeleted, Reason: i.Reason, TerminalReason: i.TerminalReason, EndedBy: i.EndedBy, IdempotencyKey: i.IdempotencyKey,
		Tenant: i.Tenant, Profile: i.Profile, Image: i.Image, Engine: i.Engine, Tier: i.Tier, Network: i.Network, Cwd: i.Cwd, Workspace: api.Workspace{Path: i.Workspace.Path},
		QueueMS: i.QueueMS, StartMS: i.StartMS, CreatedAt: i.CreatedAt, StoppedAt: i.StoppedAt,
	}}
}
