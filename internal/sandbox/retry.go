package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox/remains"
	"github.com/cloche-dev/cloche/internal/sandbox/retry"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
)

// retrying is a teardown that goes on in the background. Its fields are guarded by
// the sandbox's mu.
type retrying struct {
	// again makes another burst begin.
	again chan struct{}
	burst *retry.Burst
}

// retrier ends sandboxes, and tries again what fails.
type retrier struct {
	m    *Manager
	pace retry.Pace
}

// attempt tries once to end what a sandbox still has: its instance, and if it is
// being removed all the rest. What is done already is not done again. The caller
// holds s.ops.
func (rt retrier) attempt(ctx context.Context, s *live) error {
	s.mu.Lock()
	done := s.teardown == stage.TeardownRemoved || s.info.State == api.StateStopped
	s.mu.Unlock()
	if done {
		return nil
	}
	err := rt.m.release(ctx, s)
	if err == nil {
		err = rt.m.ended(ctx, s)
	}
	if err != nil {
		rt.noteFailure(s, err)
	}
	return err
}

// ended is the part of an attempt that follows when nothing runs any more.
func (m *Manager) ended(ctx context.Context, s *live) error {
	s.mu.Lock()
	s.attempts++
	if s.info.StoppedAt == nil {
		m.markStopped(s)
	}
	removing := s.teardown.Removing()
	if !removing {
		s.attempts, s.info.Teardown = 0, nil
	}
	s.mu.Unlock()
	if !removing {
		return nil
	}
	if err := m.erase(ctx, s); err != nil {
		s.mu.Lock()
		s.attempts--
		s.mu.Unlock()
		return err
	}
	left := m.remains(s, nil)
	m.forget(s)
	m.keys.Drop(s.tenant, s.last().IdempotencyKey, s.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.teardown.Step(stage.TeardownRemoved)
	s.info.Teardown = &api.Teardown{Attempts: s.attempts, Resources: left}
	if s.making.Announced() {
		m.tell(s, api.EventRemoved, s.toldReason())
	}
	return nil
}

// noteFailure puts into the record of a sandbox what an attempt could not end.
func (rt retrier) noteFailure(s *live, err error) {
	left := rt.m.remains(s, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts++
	s.failure = err
	s.info.Teardown = &api.Teardown{Attempts: s.attempts, Error: remains.Said(err), Resources: left}
}

// awaitEnd goes on in the background with a teardown that failed, and waits for what
// the next attempts come to: until they are made, or closeTimeout after begun. A nil
// error is that one succeeded.
func (rt retrier) awaitEnd(ctx context.Context, s *live, err error, begun time.Time) error {
	b := rt.retry(s)
	if b == nil {
		return s.notEnded(err)
	}
	patience := time.NewTimer(closeTimeout - time.Since(begun))
	defer patience.Stop()
	select {
	case <-b.Done():
		if err = b.Err(); err == nil {
			return nil
		}
	case <-patience.C:
	case <-ctx.Done():
	}
	return s.notEnded(err)
}

// notEnded is the error for a teardown that failed and goes on in the background.
func (s *live) notEnded(err error) error {
	s.mu.Lock()
	removing := s.teardown.Removing()
	reason := s.info.TerminalReason
	s.mu.Unlock()
	what := "ended"
	if removing {
		what = "removed"
	}
	var out *api.Error
	if errors.Is(err, context.DeadlineExceeded) {
		// A machine under load takes its time to take a large sandbox apart.
		out = api.Errorf(api.CodeTimeout, "sandbox %s could not be %s within %s; it goes on", s.name, what, closeTimeout)
	} else {
		out = api.Errorf(api.CodeInternal, "sandbox %s could not be %s: %s; it is being retried", s.name, what, remains.Said(err))
	}
	out.Retryable, out.RetryAfterMS, out.TerminalReason = true, retry.Teardown().Most.Milliseconds(), reason
	return out.WithHint("its record says what is left of it; do the same again to try at once").WithCause(err)
}

// retry goes on with a teardown that failed, in the background, until it succeeds or
// the Manager closes; the next daemon's Recover takes it up then. It returns the
// attempts that come next: nil when there are none, since the Manager has closed.
func (rt retrier) retry(s *live) *retry.Burst {
	s.mu.Lock()
	if r := s.retrying; r != nil {
		defer s.mu.Unlock()
		if r.burst.Over() {
			r.burst = retry.NewBurst()
			r.again <- struct{}{}
		}
		return r.burst
	}
	// One request at a time: the next is made when the burst of this one is over.
	r := &retrying{again: make(chan struct{}, 1), burst: retry.NewBurst()}
	b := r.burst
	s.retrying = r
	s.mu.Unlock()
	if !rt.m.background(func() { rt.keepTrying(s, r) }) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.retrying = nil
		return nil
	}
	return b
}

// keepTrying tries until a teardown is done.
func (rt retrier) keepTrying(s *live, r *retrying) {
	for n := 1; ; n++ {
		wait := rt.pace.After(n)
		s.mu.Lock()
		if n >= rt.pace.Burst {
			r.burst.End(s.failure)
		}
		if t := s.info.Teardown; t != nil {
			shown := *t
			shown.NextAt = new(now().Add(wait))
			s.info.Teardown = &shown
		}
		s.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-rt.m.ctx.Done():
			timer.Stop()
			s.mu.Lock()
			r.burst.End(rt.m.ctx.Err())
			s.mu.Unlock()
			return
		case <-r.again:
			n = 0
		case <-timer.C:
		}
		timer.Stop()
		s.ops.Lock()
		err := rt.attempt(rt.m.ctx, s)
		s.mu.Lock()
		if err == nil {
			s.retrying = nil
			r.burst.End(nil)
		}
		s.mu.Unlock()
		s.ops.Unlock()
		if err == nil {
			rt.m.log.Info("teardown succeeded on retry", "sandbox", s.id)
			return
		}
	}
}
