package sandbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
)

// pace says when a teardown that failed is tried again.
type pace struct {
	// first is the wait after the first attempt; it doubles up to most.
	first, most time.Duration
	// burst is how many attempts are made before those who wait are told; after them
	// the reaper goes on at most.
	burst int
}

// teardownPace is every Manager's, but in tests.
func teardownPace() pace {
	return pace{first: 500 * time.Millisecond, most: 30 * time.Second, burst: 6}
}

// after is the wait after the n-th failed attempt, from 1. It is spread by a fifth,
// so that what failed together is not tried again together.
func (p pace) after(n int) time.Duration {
	wait := p.most
	if n <= p.burst && n < 32 {
		wait = min(p.first<<(n-1), p.most)
	}
	return time.Duration(float64(wait) * (0.8 + 0.4*rand.Float64()))
}

// burst is some attempts in a row that callers wait for.
type burst struct {
	// done is closed when one has succeeded, or all have failed with err.
	done chan struct{}
	err  error
}

func newBurst() *burst { return &burst{done: make(chan struct{})} }

// end ends the burst, once. The caller holds the sandbox's mu.
func (b *burst) end(err error) {
	select {
	case <-b.done:
	default:
		b.err = err
		close(b.done)
	}
}

// over reports whether the burst has ended.
func (b *burst) over() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// retrying is a teardown that goes on in the background. Its fields are guarded by
// the sandbox's mu.
type retrying struct {
	// again makes another burst begin.
	again chan struct{}
	burst *burst
}

// attempt tries once to end what a sandbox still has: its instance, and if it is
// being removed all the rest. What is done already is not done again. The caller
// holds s.ops.
func (m *Manager) attempt(ctx context.Context, s *live) error {
	s.mu.Lock()
	done := s.teardown == stage.TeardownRemoved || s.info.State == api.StateStopped
	s.mu.Unlock()
	if done {
		return nil
	}
	err := m.release(ctx, s)
	if err == nil {
		err = m.ended(ctx, s)
	}
	if err != nil {
		m.noteFailure(s, err)
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
	m.claims.drop(s.tenant, s.last().IdempotencyKey, s.id)
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
func (m *Manager) noteFailure(s *live, err error) {
	left := m.remains(s, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts++
	s.failure = err
	s.info.Teardown = &api.Teardown{Attempts: s.attempts, Error: said(err), Resources: left}
}

// awaitEnd goes on in the background with a teardown that failed, and waits for what
// the next attempts come to: until they are made, or closeTimeout after begun. A nil
// error is that one succeeded.
func (m *Manager) awaitEnd(ctx context.Context, s *live, err error, begun time.Time) error {
	b := m.retry(s)
	if b == nil {
		return s.notEnded(err)
	}
	patience := time.NewTimer(closeTimeout - time.Since(begun))
	defer patience.Stop()
	select {
	case <-b.done:
		if err = b.err; err == nil {
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
		out = api.Errorf(api.CodeInternal, "sandbox %s could not be %s: %s; it is being retried", s.name, what, said(err))
	}
	out.Retryable, out.RetryAfterMS, out.TerminalReason = true, teardownPace().most.Milliseconds(), reason
	return out.WithHint("its record says what is left of it; do the same again to try at once").WithCause(err)
}

// retry goes on with a teardown that failed, in the background, until it succeeds or
// the Manager closes; the next daemon's Recover takes it up then. It returns the
// attempts that come next: nil when there are none, since the Manager has closed.
func (m *Manager) retry(s *live) *burst {
	s.mu.Lock()
	if r := s.retrying; r != nil {
		defer s.mu.Unlock()
		if r.burst.over() {
			r.burst = newBurst()
			r.again <- struct{}{}
		}
		return r.burst
	}
	// One request at a time: the next is made when the burst of this one is over.
	r := &retrying{again: make(chan struct{}, 1), burst: newBurst()}
	b := r.burst
	s.retrying = r
	s.mu.Unlock()
	if !m.background(func() { m.keepTrying(s, r) }) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.retrying = nil
		return nil
	}
	return b
}

// keepTrying tries until a teardown is done.
func (m *Manager) keepTrying(s *live, r *retrying) {
	for n := 1; ; n++ {
		wait := m.pace.after(n)
		s.mu.Lock()
		if n >= m.pace.burst {
			r.burst.end(s.failure)
		}
		if t := s.info.Teardown; t != nil {
			shown := *t
			shown.NextAt = new(now().Add(wait))
			s.info.Teardown = &shown
		}
		s.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-m.ctx.Done():
			timer.Stop()
			s.mu.Lock()
			r.burst.end(m.ctx.Err())
			s.mu.Unlock()
			return
		case <-r.again:
			n = 0
		case <-timer.C:
		}
		timer.Stop()
		s.ops.Lock()
		err := m.attempt(m.ctx, s)
		s.mu.Lock()
		if err == nil {
			s.retrying = nil
			r.burst.end(nil)
		}
		s.mu.Unlock()
		s.ops.Unlock()
		if err == nil {
			m.log.Info("teardown succeeded on retry", "sandbox", s.id)
			return
		}
	}
}
