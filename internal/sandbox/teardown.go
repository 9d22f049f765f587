package sandbox

import (
	"context"
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/workspace"
)

const (
	// defaultGrace is how long processes may take to end after TERM.
	defaultGrace = 10 * time.Second
	// maxGrace bounds what a caller may ask for.
	maxGrace = 10 * time.Minute
	// closeTimeout bounds one attempt to end an instance.
	closeTimeout = 30 * time.Second
	// The retry of a failed teardown begins at retryMin and doubles to retryMax.
	retryMin, retryMax = time.Second, time.Minute
)

// Stop ends a sandbox in good order: TERM to every process, up to grace for
// them to end, what they wrote flushed and kept, then the kill. The record, the
// logs and the workspace stay. Stopping what has ended already is no error.
func (m *Manager) Stop(ctx context.Context, caller policy.Caller, ref string, grace *time.Duration) (cloche.Sandbox, error) {
	wait := defaultGrace
	if grace != nil {
		if wait = *grace; wait < 0 || wait > maxGrace {
			return cloche.Sandbox{}, cloche.Invalid("grace_ms", "a grace of %s is not between 0 and %s", wait, maxGrace)
		}
	}
	s, err := m.find(caller, policy.VerbStop, ref)
	if err != nil {
		return cloche.Sandbox{}, err
	}
	// What was begun is finished, also when the caller has gone.
	return m.end(context.WithoutCancel(ctx), s, func(ctx context.Context) {
		if client, err := m.agentOf(ctx, s); err == nil {
			ctx, cancel := context.WithTimeout(ctx, wait+callTimeout)
			defer cancel()
			if err := client.Terminate(ctx, wait); err != nil {
				m.log.Warn("terminate", "sandbox", s.id, "error", err)
			}
		}
		if err := m.saveOutput(ctx, s); err != nil {
			m.log.Warn("save output", "sandbox", s.id, "error", err)
		}
	})
}

// Kill ends a sandbox at once. The record and the workspace stay.
func (m *Manager) Kill(ctx context.Context, caller policy.Caller, ref string) (cloche.Sandbox, error) {
	s, err := m.find(caller, policy.VerbKill, ref)
	if err != nil {
		return cloche.Sandbox{}, err
	}
	// A kill does not queue behind a stop that is waiting for its grace: once
	// the instance is dead, the stop has nothing left to wait for.
	s.mu.Lock()
	inst := s.inst
	s.mu.Unlock()
	if inst != nil && s.snapshot().State == cloche.StateStopping {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if err := inst.Close(ctx); err != nil {
			m.log.Warn("kill", "sandbox", s.id, "error", err)
		}
	}
	return m.end(context.WithoutCancel(ctx), s, nil)
}

// end takes a sandbox to stopped. before, which may be nil, runs while it is
// stopping.
func (m *Manager) end(ctx context.Context, s *live, before func(context.Context)) (cloche.Sandbox, error) {
	s.ops.Lock()
	defer s.ops.Unlock()
	s.mu.Lock()
	switch s.info.State {
	case cloche.StateStopped, cloche.StateLost:
		defer s.mu.Unlock()
		return s.info, nil
	case cloche.StateFailed: // a teardown that is being retried: try it now
	default:
		if err := s.move(cloche.StateStopping, ""); err != nil {
			s.mu.Unlock()
			return cloche.Sandbox{}, err
		}
	}
	s.mu.Unlock()
	if before != nil {
		before(ctx)
	}
	if err := m.release(ctx, s); err != nil {
		s.mu.Lock()
		_ = s.move(cloche.StateFailed, "its teardown failed and is being retried")
		s.mu.Unlock()
		m.retry(s, false)
		return cloche.Sandbox{}, cloche.Errorf(cloche.CodeInternal, "sandbox %s could not be ended; the teardown is being retried", s.name).WithCause(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.markStopped(); err != nil {
		m.log.Error("save record", "sandbox", s.id, "error", err)
	}
	return s.info, nil
}

// markStopped records that nothing runs any more. The caller holds s.mu.
func (s *live) markStopped() error {
	stopped := now()
	s.info.StoppedAt = &stopped
	_ = s.move(cloche.StateStopped, "")
	return s.save()
}

// release ends the instance and all that belongs to it, and keeps the
// directory. The caller holds s.ops.
func (m *Manager) release(ctx context.Context, s *live) error {
	s.mu.Lock()
	inst, conn := s.inst, s.agent
	s.mu.Unlock()
	if conn != nil {
		conn.close()
	}
	if inst == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := inst.Close(ctx); err != nil {
		m.log.Error("close instance", "sandbox", s.id, "error", err)
		return err
	}
	s.mu.Lock()
	s.finish(ending{reason: "the sandbox was ended"})
	s.inst = nil
	s.mu.Unlock()
	return nil
}

// Remove takes a sandbox away with its record, logs and private workspace,
// running or not. What was begun is finished, also when the caller has gone.
func (m *Manager) Remove(ctx context.Context, caller policy.Caller, ref string) error {
	s, err := m.find(caller, policy.VerbRemove, ref)
	if err != nil {
		return err
	}
	return m.remove(context.WithoutCancel(ctx), s)
}

func (m *Manager) remove(ctx context.Context, s *live) error {
	if s.snapshot().State == cloche.StateCreating {
		return cloche.Errorf(cloche.CodeState, "sandbox %s is still being created", s.name).WithHint("try again when it is running")
	}
	if _, err := m.end(ctx, s, nil); err != nil {
		return err
	}
	s.ops.Lock()
	defer s.ops.Unlock()
	// Without its record, a directory is one that Recover clears.
	err := eraseRecord(s.dir)
	if err == nil {
		err = workspace.RemoveTree(s.dir)
	}
	if err != nil {
		m.log.Error("remove sandbox directory", "sandbox", s.id, "error", err)
		m.retry(s, true)
		return cloche.Errorf(cloche.CodeInternal, "the files of sandbox %s could not all be removed; it is being retried", s.name).WithCause(err)
	}
	m.forget(s)
	return nil
}

// retry goes on with a teardown that failed, in the background, until it
// succeeds or the Manager closes; the next daemon's Recover takes it up then.
func (m *Manager) retry(s *live, remove bool) {
	m.wg.Go(func() {
		for wait := retryMin; ; wait = min(2*wait, retryMax) {
			select {
			case <-m.ctx.Done():
				return
			case <-time.After(wait):
			}
			if m.retryOnce(s, remove) {
				m.log.Info("teardown succeeded on retry", "sandbox", s.id)
				return
			}
		}
	})
}

// retryOnce reports whether the teardown is done.
func (m *Manager) retryOnce(s *live, remove bool) bool {
	s.ops.Lock()
	defer s.ops.Unlock()
	if m.release(m.ctx, s) != nil {
		return false
	}
	if !remove {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.markStopped() == nil
	}
	if err := workspace.RemoveTree(s.dir); err != nil {
		return false
	}
	m.forget(s)
	return true
}
