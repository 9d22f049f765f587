package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/pressure"
	"github.com/cloche-dev/cloche/internal/sandbox/retention"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
)

// waker suspends sandboxes whose time is over, and resumes suspended ones that are used.
type waker struct{ m *Manager }

// find is Manager.find for a use of the sandbox. It first resumes one that is suspended or being suspended, if the
// sandbox was created with auto_resume.
func (w waker) find(ctx context.Context, caller policy.Caller, verb policy.Verb, ref string) (*live, error) {
	s, err := w.m.find(caller, verb, ref)
	if err != nil {
		return nil, err
	}
	switch verb {
	case policy.VerbGet, policy.VerbProcesses, policy.VerbLogs:
		return s, nil // the records have it
	}
	return s, w.wake(ctx, s)
}

// wake resumes a sandbox for a use. A resume goes on when the caller has gone: others may wait for it too.
func (w waker) wake(ctx context.Context, s *live) error {
	if !s.snapshot().AutoResume {
		return nil
	}
	// A suspend that is about to begin sees it.
	release := s.use()
	timer := time.AfterFunc(useGrace, release)
	context.AfterFunc(ctx, func() { timer.Stop(); release() })
	if !s.snapshot().State.Held() {
		return nil
	}
	return w.resume(ctx, s)
}

// useGrace bounds the time between the begin of a call and its own use of the sandbox.
const useGrace = 5 * time.Second

// resume resumes a suspended sandbox as its creator, after a pause or a suspend that is under way.
func (w waker) resume(ctx context.Context, s *live) error {
	s.lockOps(ctx)
	s.mu.Lock()
	info, creator := s.look(), s.creator
	s.mu.Unlock()
	s.ops.Unlock()
	if info.State != api.StateSuspended || w.m.opts.Resume == nil {
		return nil
	}
	return w.m.opts.Resume(context.WithoutCancel(ctx), creator.Caller(s.tenant), info)
}

// resumeToStop resumes a suspended sandbox that is about to be stopped, so that its programs hear of that and its root is
// saved. One that cannot be resumed is stopped as it is.
func (w waker) resumeToStop(ctx context.Context, s *live) {
	if s.snapshot().State != api.StateSuspended {
		return
	}
	if err := w.resume(ctx, s); err != nil {
		w.m.log.Warn("a suspended sandbox is stopped without a resume", "sandbox", s.id, "error", err)
	}
}

// due has a sandbox be suspended in the background whose lease is over, and reports whether it is to be suspended
// then. The caller holds s.mu.
func (w waker) due(s *live, over why) bool {
	pausing := s.info.State == api.StatePaused && s.unsettled
	if s.info.OnExpiry != api.ExpirySuspend || s.info.State != api.StateRunning && !pausing {
		return false
	}
	if !s.suspending && !pausing {
		s.suspending = w.m.background(func() { w.suspend(s, over) })
	}
	return true
}

// suspend suspends a sandbox whose lease is over, unless it has been used meanwhile. One that cannot be suspended runs
// for another idle time, or is stopped if it was its lifetime that is over.
func (w waker) suspend(s *live, over why) {
	s.ops.Lock()
	err := s.maySuspend()
	if err == nil && s.snapshot().State == api.StateRunning {
		s.mu.Lock()
		inst := s.inst
		s.mu.Unlock()
		if _, ok := inst.(engine.Suspender); ok {
			err = w.m.pauser.suspend(context.WithoutCancel(w.m.ctx), s, inst, over.text) // what was begun is finished
		}
	}
	s.ops.Unlock()
	s.mu.Lock()
	s.suspending = false
	if err == nil || s.info.State != api.StateRunning {
		s.mu.Unlock()
		return
	}
	if !errors.Is(err, errUsed) {
		w.m.log.Warn("a sandbox whose lease is over could not be suspended", "sandbox", s.id, "reason", over.text, "error", err)
	}
	s.lease.Touch(now())
	end, bounded := s.lease.End(now())
	stop := over.cause == api.EndedTTL && bounded && !now().Before(end.At)
	if stop {
		s.teardown.Step(stage.TeardownDue)
	}
	s.mu.Unlock()
	if stop {
		w.m.reaper.expire(s, over)
		return
	}
	w.m.reaper.poke()
}

// store does what is due for the memory of a suspended sandbox, and returns when to look again; zero is never. The caller holds s.mu.
func (w waker) store(s *live, t time.Time) (next time.Time, discarded bool) {
	if s.info.State != api.StateSuspended || s.info.SuspendedAt == nil {
		return time.Time{}, false
	}
	act, next := w.m.opts.Suspended.Due(*s.info.SuspendedAt, s.compressed, t)
	switch act {
	case retention.Compress:
		s.compressed = true
		w.m.background(func() { w.compress(s) })
	case retention.Discard:
		s.teardown.Step(stage.TeardownDue)
		over := why{cause: api.EndedIdle, text: "it was suspended for longer than retention.suspended of the policy", discards: true}
		w.m.background(func() { w.m.reaper.expire(s, over) })
		return time.Time{}, true
	}
	return next, false
}

// compress compresses the saved memory of a sandbox, unless it is resumed meanwhile.
func (w waker) compress(s *live) {
	saved, err := s.memoryFiles.Compress(w.m.ctx, s.dir)
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, context.Canceled) { // a fork or a resume needed the files
		s.compressed, err = false, nil
	}
	if s.memory != nil && saved > 0 {
		s.memory.Bytes -= saved
		s.info.MemoryBytes = s.memory.Bytes
		err = errors.Join(err, s.save())
	}
	if err != nil && s.memory != nil { // else it was resumed
		w.m.log.Error("compress the saved memory of a sandbox", "sandbox", s.id, "error", err)
	}
}

// pauseLease pauses the idle time of a sandbox that is being suspended, because a save can take longer than that. It returns
// an error if a sandbox has been used that is suspended for its lease, as over says; empty is a request. The caller holds s.mu.
func (s *live) pauseLease(over string) error {
	end, ok := s.lease.End(now())
	if over == shortOfMemory {
		end.At, ok = s.lease.Used(now()).Add(pressure.MinIdle), true
	}
	if over != "" && (!ok || now().Before(end.At)) {
		return errUsed
	}
	s.lease.Pause(now())
	return nil
}

// shortOfMemory is why a sandbox is suspended before its lease is over.
const shortOfMemory = "the machine is short of memory"

// relieve suspends idle sandboxes while the machine is short of memory, until the Manager closes.
func (w waker) relieve() {
	o := w.m.opts.Pressure
	o.Logger, o.Sandboxes = w.m.log, func() (out []pressure.Sandbox) {
		for _, s := range w.m.all() {
			out = append(out, handle{w.m, s})
		}
		return out
	}
	if o.Below > 0 {
		pressure.Run(w.m.ctx, o)
	}
}

// IdleSince implements pressure.Sandbox.
func (h handle) IdleSince() (time.Time, bool) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	t := now()
	used := h.s.lease.Used(t)
	return used, h.s.info.State == api.StateRunning && h.s.teardown == stage.TeardownNone && used.Before(t)
}

// Suspend implements pressure.Sandbox.
func (h handle) Suspend(context.Context) bool {
	if info := h.s.snapshot(); info.OnExpiry == api.ExpirySuspend && info.AutoResume {
		h.m.waker.suspend(h.s, why{text: shortOfMemory})
	}
	return h.s.snapshot().State == api.StateSuspended
}

// errUsed is that a sandbox was used while it was about to be suspended.
var errUsed = errors.New("the sandbox is in use")
