package sandbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
)

// pauseTimeout bounds each act of a pause or resume.
const pauseTimeout = 15 * time.Second

// pauser pauses and resumes sandboxes, for callers and for the moment in which a root is written.
type pauser struct {
	m       *Manager
	fitting *sync.Mutex // from the check of a tenant's saved bytes until they are on record
}

// Pause pauses every process of a sandbox until Resume. Its idle time and the timeouts of its
// processes are paused too, and its lifetime continues. Pausing a paused sandbox is not an error.
func (m *Manager) Pause(ctx context.Context, caller policy.Caller, ref string) (api.Sandbox, error) {
	return m.change(ctx, caller, policy.VerbPause, ref, api.StatePaused, m.pauser.pause)
}

// Resume lets the processes of a paused sandbox go on. Resuming what runs is no
// error.
func (m *Manager) Resume(ctx context.Context, caller policy.Caller, ref string) (api.Sandbox, error) {
	return m.change(ctx, caller, policy.VerbResume, ref, api.StateRunning, m.pauser.resume)
}

// change takes a sandbox from running to paused or back, with do. What was begun
// is finished, also when the caller has gone.
func (m *Manager) change(ctx context.Context, caller policy.Caller, verb policy.Verb, ref string, to api.State, do func(context.Context, *live, engine.Pauser) error) (api.Sandbox, error) {
	s, err := m.find(caller, verb, ref)
	if err != nil {
		return api.Sandbox{}, err
	}
	// A stop may hold the lock for as long as its grace: do not wait for that.
	if err := s.mayChange(verb, to); err != nil {
		return api.Sandbox{}, err
	}
	s.lockOps(ctx)
	defer s.ops.Unlock()
	if err := s.mayChange(verb, to); err != nil {
		return api.Sandbox{}, err
	}
	s.mu.Lock()
	done, inst := s.info.State == to, s.inst
	s.mu.Unlock()
	if done {
		// Who asks for a pause has one now, also if Cloche owed it the end of its own.
		s.oweResume(false)
		return s.snapshot(), nil
	}
	p, ok := inst.(engine.Pauser)
	if inst == nil {
		return api.Sandbox{}, stage.NotRunning(s.snapshot())
	} else if !ok {
		return api.Sandbox{}, api.Errorf(api.CodeUnsupported, "engine %s cannot pause a sandbox", s.snapshot().Engine)
	}
	if err := do(context.WithoutCancel(ctx), s, p); err != nil {
		return api.Sandbox{}, err
	}
	return s.snapshot(), nil
}

// mayChange says why a sandbox cannot be paused or resumed.
func (s *live) mayChange(verb policy.Verb, to api.State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.info.State == to || stage.MayMove(s.info.State, to) && s.info.State != api.StateCreating {
		return nil
	}
	return api.Errorf(api.CodeState, "sandbox %s is %s: there is nothing to %s", s.name, s.info.State, verb).
		WithHint("only one that runs can be paused, and only one that is paused resumed")
}

// settle puts a step of a pause or resume on record before it is taken, unless one of may returns an error: a daemon
// that dies on the way has a successor that makes the sandbox run. may is called with s.mu.
func (s *live) settle(to api.State, unsettled bool, may ...func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range may {
		if err := f(); err != nil {
			return err
		}
	}
	before, was := s.info.State, s.unsettled
	// A sandbox that Cloche itself paused is not left paused.
	s.unsettled = unsettled || s.quiesced && to == api.StatePaused
	if to != before {
		if err := s.move(to, ""); err != nil {
			return err
		}
	}
	if err := s.save(); err != nil {
		s.info.State, s.unsettled = before, was
		return api.Errorf(api.CodeInternal, "sandbox %s could not be put on record", s.name).WithCause(err)
	}
	return nil
}

// pause stops the agent's timers and then everything. The caller holds s.ops.
func (pr pauser) pause(ctx context.Context, s *live, p engine.Pauser) error {
	if err := s.settle(api.StateRunning, true); err != nil {
		return err
	}
	err := pr.m.at(ctx, "before hold")
	if err == nil {
		err = pr.holdTimers(ctx, s, true)
	}
	if err == nil {
		// From here on calls are refused, and calls in progress are paused.
		err = s.settle(api.StatePaused, true)
	}
	if err == nil {
		err = pr.m.at(ctx, "before pause")
	}
	if err == nil {
		err = driven(ctx, s, p.Pause)
	}
	if err == nil {
		err = pr.m.at(ctx, "after pause")
	}
	if err != nil {
		return pr.pauseFailed(ctx, s, p, "paused", err)
	}
	s.mu.Lock()
	s.lease.Pause(now())
	pr.m.tell(s, api.EventPaused, "")
	s.mu.Unlock()
	// It is paused. A daemon that finds the older record makes it run again.
	pr.settleAfter(s, api.StatePaused)
	return nil
}

// pauseFailed makes a sandbox run again that could not be paused or suspended, as what says.
func (pr pauser) pauseFailed(ctx context.Context, s *live, p engine.Pauser, what string, cause error) error {
	if err := pr.runOn(ctx, s, p); err != nil {
		pr.m.log.Error("resume after a pause that failed", "sandbox", s.id, "error", err)
	}
	return pauseError(s, what, cause)
}

// runOn makes a sandbox run again that was paused for a moment, or that could not be paused. After an error it stays paused, as
// far as is known, until it is resumed in the background, by a caller, by a stop, or by the next daemon. The caller holds s.ops.
func (pr pauser) runOn(ctx context.Context, s *live, p engine.Pauser) error {
	paused := s.snapshot().State == api.StatePaused
	if paused {
		if err := driven(ctx, s, p.Resume); err != nil {
			s.mu.Lock()
			s.lease.Pause(now())
			s.mu.Unlock()
			pr.resumeLater(s, p)
			return err
		}
	}
	s.mu.Lock()
	if paused {
		_ = s.move(api.StateRunning, "") // unless it died
	}
	s.lease.Resume(now())
	s.mu.Unlock()
	if err := pr.holdTimers(ctx, s, false); err != nil {
		pr.m.log.Warn("let the timers go on", "sandbox", s.id, "error", err)
	}
	pr.settleAfter(s, api.StateRunning)
	return nil
}

// resume lets everything go on, and then the agent's timers. A record that cannot be
// written does not keep a sandbox paused: it is written later. The caller holds s.ops.
func (pr pauser) resume(ctx context.Context, s *live, p engine.Pauser) error {
	if err := s.settle(api.StatePaused, true); err != nil {
		pr.m.log.Warn("resume a sandbox that cannot be put on record now", "sandbox", s.id, "error", err)
	}
	err := pr.m.at(ctx, "before resume")
	if err == nil {
		err = driven(ctx, s, p.Resume)
	}
	if err == nil {
		err = pr.m.at(ctx, "after resume")
	}
	if err != nil {
		return pauseError(s, "resumed", err)
	}
	s.mu.Lock()
	s.lease.Resume(now())
	err = s.move(api.StateRunning, "")
	if err == nil {
		pr.m.tell(s, api.EventResumed, "")
	}
	s.mu.Unlock()
	pr.m.reaper.poke()
	if err != nil {
		return err // it died
	}
	if err := pr.holdTimers(ctx, s, false); err != nil {
		pr.releaseTimers(s)
	}
	s.oweResume(false)
	pr.settleAfter(s, api.StateRunning)
	return nil
}

// settleAfter puts on record that a sandbox is in a state, now or, where that fails, as
// soon as it can be, unless it has left the state by then. The caller holds s.ops.
func (pr pauser) settleAfter(s *live, state api.State) {
	settled := func() bool {
		if s.snapshot().State != state {
			return true // what changed it was put on record
		}
		err := s.settle(state, false)
		if err != nil {
			pr.m.log.Error("save record; it is tried again", "sandbox", s.id, "state", state, "error", err)
		}
		return err == nil
	}
	if settled() {
		return
	}
	pr.repeatedly(s, settled)
}

// resumeLater resumes, in the background, a sandbox that no caller paused and that could not be
// resumed. The caller holds s.ops.
func (pr pauser) resumeLater(s *live, p engine.Pauser) {
	if s.snapshot().State != api.StatePaused || !s.oweResume(true) {
		return
	}
	pr.repeatedly(s, func() bool {
		s.mu.Lock()
		due := s.owed && s.info.State == api.StatePaused
		s.mu.Unlock()
		if !due {
			s.oweResume(false)
			return true
		}
		err := pr.resume(pr.m.ctx, s, p)
		if err != nil {
			pr.m.log.Error("resume a sandbox that was not to stay paused; it is tried again", "sandbox", s.id, "error", err)
		}
		return err == nil
	})
}

// oweResume notes whether a sandbox is to be resumed in the background, and reports
// whether that is new.
func (s *live) oweResume(owed bool) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.owed != owed
	s.owed = owed
	return changed
}

// repeatedly calls done in the background, holding s.ops, until it is true or the
// sandbox or the Manager has ended.
func (pr pauser) repeatedly(s *live, done func() bool) {
	pr.m.background(func() {
		for wait := retryMin; ; wait = min(2*wait, retryMax) {
			select {
			case <-pr.m.ctx.Done():
				return
			case <-s.ended:
				return
			case <-time.After(wait):
			}
			s.ops.Lock()
			ok := done()
			s.ops.Unlock()
			if ok {
				return
			}
		}
	})
}

// thaw resumes a paused sandbox that is being stopped, so that its processes can
// hear of it.
func (pr pauser) thaw(ctx context.Context, s *live) {
	s.mu.Lock()
	p, ok := s.inst.(engine.Pauser)
	ok = ok && (s.lease.Paused || s.unsettled)
	s.lease.Resume(now())
	s.mu.Unlock()
	if !ok {
		return
	}
	if err := driven(ctx, s, p.Resume); err != nil {
		pr.m.log.Warn("resume before a stop", "sandbox", s.id, "error", err)
		return
	}
	if err := pr.holdTimers(ctx, s, false); err != nil {
		pr.m.log.Warn("let the timers go on", "sandbox", s.id, "error", err)
	}
}

// holdTimers tells the agent whether its timers are paused, as the daemon's deadlines behind them
// are. An agent that is too old for that keeps them running.
func (pr pauser) holdTimers(ctx context.Context, s *live, hold bool) error {
	s.deadlines.Hold(hold)
	return bounded(ctx, pauseTimeout, func(ctx context.Context) error {
		client, err := pr.m.agentOf(ctx, s)
		if err != nil {
			return err
		}
		if err := client.HoldTimers(ctx, hold); !errors.Is(err, api.ErrUnsupported) {
			return err
		}
		pr.m.log.Info("the agent is too old to hold its timers", "sandbox", s.id)
		return nil
	})
}

// The timers that were not let go are tried again after retryMin, doubling to retryMax.
const retryMin, retryMax = time.Second, time.Minute

// releaseTimers lets the timers of a running sandbox go on, in the background,
// until the agent has heard of it.
func (pr pauser) releaseTimers(s *live) {
	pr.repeatedly(s, func() bool {
		if s.snapshot().State != api.StateRunning {
			return true // the next resume does it
		}
		err := pr.holdTimers(pr.m.ctx, s, false)
		if err != nil {
			pr.m.log.Warn("let the timers go on", "sandbox", s.id, "error", err)
		}
		return err == nil
	})
}

// bounded runs one act with a deadline.
func bounded(ctx context.Context, timeout time.Duration, act func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return act(ctx)
}

// driven pauses or resumes the instance of a sandbox.
func driven(ctx context.Context, s *live, act func(context.Context) error) error {
	s.mu.Lock()
	inst := s.inst
	s.mu.Unlock()
	defer byEngine(ctx, inst)()
	return bounded(ctx, pauseTimeout, act)
}

// pauseError classifies what kept a sandbox from being paused or resumed.
func pauseError(s *live, what string, err error) error {
	if s.over() {
		return s.explain(api.Errorf(api.CodeSandboxLost, "sandbox %s could not be %s", s.name, what).WithCause(err))
	}
	if _, ok := errors.AsType[*api.Error](err); ok {
		return err
	}
	return api.Errorf(api.CodeInternal, "sandbox %s could not be %s", s.name, what).WithCause(err)
}
