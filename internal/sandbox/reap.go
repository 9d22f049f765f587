package sandbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/retention"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
)

// maxNap bounds how long the reaper sleeps while something is leased: its timer
// does not see the wall clock being set, or the machine being suspended.
const maxNap = time.Minute

// maxStops bounds the ends that wait for their grace at once.
const maxStops = 64

// reaper ends sandboxes whose leases have ended, and forgets what was kept of ended ones for long enough.
type reaper struct {
	m *Manager
	// wake makes it look at the leases again.
	wake chan struct{}
}

// use counts one use of the sandbox, which holds its idle time until release is
// called. Calling release again does nothing.
func (s *live) use() (release func()) {
	s.copies.Use()
	s.mu.Lock()
	s.lease.Use(now())
	unsaved := s.lease.Unsaved(now())
	s.mu.Unlock()
	if unsaved && s.wake != nil {
		s.wake()
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lease.Release(now())
	})
}

// Touch renews the idle lease of a sandbox, and does nothing else.
func (m *Manager) Touch(caller policy.Caller, ref string) (api.Sandbox, error) {
	s, err := m.find(caller, policy.VerbHeartbeat, ref)
	if err != nil {
		return api.Sandbox{}, err
	}
	if info := s.snapshot(); info.State != api.StateRunning && !info.State.Held() {
		return api.Sandbox{}, stage.NotRunning(info)
	}
	s.use()()
	return s.snapshot(), nil
}

// Extend changes when the lifetime of a sandbox ends. Unless the permit says that the time is exact, the
// end never comes nearer, and a lifetime without a bound keeps none.
func (m *Manager) Extend(caller policy.Caller, ref string, permit policy.ExtendPermit) (api.Sandbox, error) {
	if !permit.Valid() {
		return api.Sandbox{}, api.Errorf(api.CodeDenied, "no policy has granted this extension")
	}
	s, err := m.find(caller, policy.VerbExtend, ref)
	if err != nil {
		return api.Sandbox{}, err
	}
	defer m.reaper.poke()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.leased() || s.teardown != stage.TeardownNone {
		return api.Sandbox{}, stage.NotRunning(s.info)
	}
	total, adjusted, err := permit.Total(now().Sub(s.lease.Began))
	if err != nil || !permit.Exact() && (s.lease.Lifetime == 0 || total <= s.lease.Lifetime) {
		return s.look(), err
	}
	before := s.lease.Lifetime
	s.lease.Lifetime, s.info.Limits.LifetimeMS = total, total.Milliseconds()
	s.lease.Touch(now())
	if err := s.save(); err != nil {
		s.lease.Lifetime, s.info.Limits.LifetimeMS = before, before.Milliseconds()
		return api.Sandbox{}, api.Errorf(api.CodeInternal, "the extension of sandbox %s could not be put on record", s.name).WithCause(err)
	}
	info := s.look()
	if adjusted != nil {
		info.Adjusted = append(slices.Clone(info.Adjusted), *adjusted)
	}
	return info, nil
}

// Hold binds a transient sandbox to its holder: when every holder has released
// it, it is removed in the background. Calling release again does nothing.
func (m *Manager) Hold(caller policy.Caller, ref string) (release func(), err error) {
	s, err := m.find(caller, policy.VerbRemove, ref)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.info.Transient {
		return nil, api.Errorf(api.CodeState, "sandbox %s is not transient, so no connection can hold it", s.name).
			WithHint("create it with transient set")
	}
	if !s.leased() {
		return nil, stage.NotRunning(s.info)
	}
	s.holders++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		s.holders--
		last := s.holders == 0
		s.mu.Unlock()
		if last {
			m.reaper.removeLater(s, why{cause: api.EndedLease, text: "the connection that held it is gone"})
		}
	}), nil
}

// removeLater removes a sandbox in the background, and goes on until it is gone.
// A Manager that closes leaves it to the next Recover.
func (r reaper) removeLater(s *live, w why) {
	r.m.background(func() {
		if _, err := r.m.remove(r.m.ctx, s, w); err != nil {
			r.m.log.Error("remove sandbox", "sandbox", s.id, "error", err)
		}
	})
}

// background runs f as work that Close waits for, unless the Manager has closed.
func (m *Manager) background(f func()) (runs bool) {
	m.bg.Lock()
	defer m.bg.Unlock()
	if m.ctx.Err() != nil {
		return false
	}
	m.wg.Go(f)
	return true
}

// poke makes the reaper look again, and the watch of workspaces with it.
func (r reaper) poke() {
	select {
	case r.wake <- struct{}{}:
	default: // it is about to
	}
	r.m.workspaces.quotas.Wake()
}

// reap ends the sandboxes whose lease is over and forgets the ended ones that
// are not kept any longer, until the Manager closes. One timer waits for
// whatever is due first.
func (r reaper) reap() {
	timer := time.NewTimer(maxNap)
	defer timer.Stop()
	for {
		next := r.reapDue()
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(min(max(0, next.Sub(now())), maxNap))
		}
		select {
		case <-r.m.ctx.Done():
			return
		case <-r.wake:
		case <-timer.C:
		}
	}
}

// reapDue does what is due now, and says when something will be; a zero time
// is never. What it cannot do in a moment it leaves to goroutines of their own.
func (r reaper) reapDue() (next time.Time) {
	sooner := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	var ended []retention.Ended[*live]
	for _, s := range r.m.all() {
		s.mu.Lock()
		switch {
		case s.teardown != stage.TeardownNone || s.making == stage.CreationUnreadable:
		case s.leased():
			if at, ok := r.reapLease(s); ok {
				sooner(at)
			}
		case s.info.StoppedAt == nil || s.info.State != api.StateStopped && s.info.State != api.StateLost:
		case s.info.Transient && s.lease.Idle > 0:
			// It ended before its lease did; what is left of it goes with the lease.
			if at := s.info.StoppedAt.Add(s.lease.Idle); now().Before(at) {
				sooner(at)
			} else {
				s.teardown.Step(stage.TeardownDue)
				r.removeLater(s, why{cause: api.EndedLease, text: "it is transient and has ended"})
			}
		default:
			ended = append(ended, retention.Ended[*live]{At: *s.info.StoppedAt, Thing: s})
		}
		running := s.info.State == api.StateRunning
		s.mu.Unlock()
		if running {
			if at := s.procs.Reap(); !at.IsZero() {
				sooner(at)
			}
		}
	}
	if at := r.m.tombstones.Expire(now()); !at.IsZero() {
		sooner(at)
	}
	gone, at := retention.Select(r.m.opts.Retention, ended, now())
	if !at.IsZero() {
		sooner(at)
	}
	if len(gone) > 0 {
		r.forgetEnded(gone)
	}
	return next
}

// reapLease does what is due for one sandbox that is leased, and says when it
// must be looked at again. The caller holds s.mu.
func (r reaper) reapLease(s *live) (next time.Time, ok bool) {
	t := now()
	end, ok := s.lease.End(t)
	stored, discarded := r.m.waker.store(s, t)
	switch {
	case discarded || s.info.OnExpiry == api.ExpirySuspend && s.info.State == api.StateSuspended:
		return stored, !stored.IsZero() // its next lease begins with the resume
	case ok && !t.Before(end.At) && r.m.waker.due(s, why{cause: end.Cause, text: end.Reason}):
		return time.Time{}, false
	case ok && !t.Before(end.At):
		s.teardown.Step(stage.TeardownDue)
		r.m.log.Info("lease is over", "sandbox", s.id, "reason", end.Reason)
		r.m.background(func() { r.expire(s, why{cause: end.Cause, text: end.Reason}) })
		return time.Time{}, false
	case ok && s.lease.Warn(end, t):
		r.m.tellExpiring(s, end)
	}
	if s.lease.Unsaved(t) {
		if err := s.save(); err != nil {
			r.m.log.Error("save the last use", "sandbox", s.id, "error", err)
			s.lease.Saved = t // not again at once
		}
	}
	if next, ok = s.lease.Next(t); !stored.IsZero() && (!ok || stored.Before(next)) {
		return stored, true
	}
	return next, ok
}

// expire ends a sandbox whose lease is over; what fails is retried.
func (r reaper) expire(s *live, w why) {
	var err error
	if s.snapshot().Transient {
		_, err = r.m.remove(r.m.ctx, s, w)
	} else {
		_, err = r.m.end(r.m.ctx, s, w, r.m.graceful(s, defaultGrace))
	}
	if err != nil {
		r.m.log.Error("end a sandbox whose lease is over", "sandbox", s.id, "error", err)
	}
	s.mu.Lock()
	s.teardown.Step(stage.TeardownNone) // from here on it is one of the ended
	s.mu.Unlock()
	r.poke()
}

// forgetEnded removes ended sandboxes, one after the other: there may be many.
func (r reaper) forgetEnded(gone []retention.Ended[*live]) {
	for _, g := range gone {
		g.Thing.mu.Lock()
		g.Thing.teardown.Step(stage.TeardownDue)
		g.Thing.mu.Unlock()
	}
	r.m.background(func() {
		for _, g := range gone {
			if r.m.ctx.Err() != nil {
				return
			}
			if _, err := r.m.remove(r.m.ctx, g.Thing, why{cause: api.EndedDeleted, text: "it ended at " + g.At.Format(time.RFC3339) + " and is not kept any longer"}); err != nil {
				r.m.log.Error("remove an ended sandbox", "sandbox", g.Thing.id, "error", err)
			}
		}
	})
}

// stopAll ends, in parallel, what must not outlive an orderly shutdown. The end of ctx cuts the grace short.
func (r reaper) stopAll(ctx context.Context, all []*live) error {
	errs := make(chan error, len(all))
	limit := make(chan struct{}, maxStops)
	var wg sync.WaitGroup
	r.m.mu.Lock()
	homeless := r.m.homeless
	r.m.mu.Unlock()
	for _, s := range all {
		var stop func() error
		switch info := s.snapshot(); {
		case homeless:
			stop = func() error {
				_, err := r.m.end(ctx, s, why{cause: api.EndedShutdown, text: homelessReason}, nil)
				return err
			}
		case r.m.opts.Ephemeral, s.ownerless():
			stop = func() error { return r.m.removeFor(ctx, s, why{cause: api.EndedShutdown}) }
		case info.State != api.StateRunning && info.State != api.StatePaused, info.Persistent:
			continue
		case info.Transient:
			stop = func() error { return r.m.removeFor(ctx, s, why{cause: api.EndedShutdown, text: shutdownReason}) }
		default:
			stop = func() error {
				_, err := r.m.end(ctx, s, why{cause: api.EndedShutdown, text: shutdownReason}, r.m.graceful(s, defaultGrace))
				return err
			}
		}
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			errs <- stop()
		})
	}
	wg.Wait()
	close(errs)
	var joined []error
	for err := range errs {
		joined = append(joined, err)
	}
	return errors.Join(joined...)
}

// removeFor is remove for who wants no record.
func (m *Manager) removeFor(ctx context.Context, s *live, w why) error {
	_, err := m.remove(ctx, s, w)
	return err
}

// shutdownReason is why a sandbox that is not persistent was ended.
const shutdownReason = "the daemon was shut down"

// homelessReason is why every sandbox was ended, a persistent one too.
const homelessReason = "the daemon's home was removed, moved or replaced"

// Homeless has Close kill every sandbox, for the directory with their records is gone and
// no later Manager can find them. Their files are left as they are.
func (m *Manager) Homeless() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.homeless = true
}

// ownerless reports whether a sandbox is one that only a connection held: with
// the daemon, the connection is gone too.
func (s *live) ownerless() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info.Transient && s.info.Limits.IdleMS == 0
}

// leased reports whether the lease of a sandbox runs. The caller holds s.mu.
func (s *live) leased() bool {
	return s.info.State == api.StateRunning || s.info.State.Held()
}
