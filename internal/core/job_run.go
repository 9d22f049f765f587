package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// States of a phase.
const (
	stepRunning   = "running"
	stepSucceeded = "succeeded"
	stepFailed    = "failed"
	stepWaiting   = "waiting"
)

const (
	// jobCleanup limits the cleanup after a job was cancelled.
	jobCleanup = time.Minute
	// maxKeptOutput limits the output in the record of one job. Of later output only the last
	// keptTail bytes of each stream are kept.
	maxKeptOutput = 32 << 20
	keptTail      = 4 << 10
)

// preparedJob is the decision about a job, made before it begins.
type preparedJob struct {
	// permit is for the sandbox that the job creates, and sandbox is an existing one.
	permit  policy.Permit
	sandbox api.Sandbox
	profile string
	plan    policy.JobPlan
	// swap means that setup has its own network rules.
	swap bool
}

// prepareJob asks policy about all parts of a job.
func (s *Service) prepareJob(ctx context.Context, caller Caller, spec api.JobSpec) (preparedJob, error) {
	var p preparedJob
	if s.opts.Jobs == nil {
		return p, api.Errorf(api.CodeUnavailable, "jobs are kept by a daemon, and none runs").WithHint("start one with: cloche serve")
	}
	if err := policy.CheckJob(spec); err != nil {
		return p, err
	}
	var settings policy.Settings
	var left time.Duration
	if spec.Spec == nil {
		sb, err := s.target(caller, spec.Sandbox, api.Naming{}, s.rules())
		if err != nil {
			return p, err
		}
		p.sandbox, p.profile, settings = sb, sb.Profile, policy.SettingsOf(sb)
		if ms := sb.Limits.LifetimeMS; ms > 0 {
			left = max(time.Nanosecond, time.Until(sb.CreatedAt.Add(time.Duration(ms)*time.Millisecond)))
		}
	} else {
		asked := *spec.Spec
		// The sandbox must not remain even if the daemon is killed.
		asked.Transient = asked.Transient || !spec.Keep
		var setup *api.EgressPolicy
		if ph := spec.Setup; ph != nil && (ph.Network != "" || ph.Egress != nil) {
			setup, p.swap = &api.EgressPolicy{Network: ph.Network, Egress: ph.Egress}, true
		}
		var err error
		if p.permit, err = s.decideAll(ctx, caller, policy.Request{Spec: asked, Connected: true, Setup: setup}); err != nil {
			return p, err
		}
		p.profile, settings = p.permit.Profile(), p.permit.Settings()
		left = time.Duration(p.permit.Limits().LifetimeMS) * time.Millisecond
		if _, linked := p.permit.Egress(); !linked {
			p.swap = false
		}
	}
	var err error
	p.plan, err = policy.DecideJob(spec, settings, left, caller, s.rules())
	return p, err
}

// jobRun is a job that runs in this process.
type jobRun struct {
	s      *Service
	caller Caller
	spec   api.JobSpec
	prep   preparedJob
	// base has the values of the call that started the job.
	base   context.Context
	cancel context.CancelCauseFunc
	// over is closed when the record is final, and gone when the cleanup is done. answers carries
	// the caller's answers to the handler that waits.
	over, gone chan struct{}
	answers    chan api.JobContinue
	// release lets the setup of another job in the same sandbox begin. It is nil if the lock
	// is not held.
	release func()
	// kept is the amount of output in the record.
	kept int

	mu      sync.Mutex
	rec     api.Job
	steps   []api.JobStep
	changed chan struct{} // closed and replaced at each step
}

// look returns the present record.
func (r *jobRun) look() api.Job {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lookLocked()
}

func (r *jobRun) lookLocked() api.Job {
	p := r.rec
	p.Phases = slices.Clone(p.Phases)
	for i := range p.Phases {
		p.Phases[i].Commands = slices.Clone(p.Phases[i].Commands)
	}
	p.Outputs = slices.Clone(p.Outputs)
	return p
}

// change changes the record, stores it and notifies followers.
func (r *jobRun) change(fn func(*api.Job), step *api.JobStep) {
	r.mu.Lock()
	fn(&r.rec)
	if step != nil {
		step.Seq, step.Time = int64(len(r.steps)+1), time.Now().UTC()
		if r.rec.Sandbox != nil {
			step.Sandbox = r.rec.Sandbox.ID
		}
		r.steps = append(r.steps, *step)
	}
	p := r.lookLocked()
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
	if err := r.s.opts.Jobs.Save(p); err != nil {
		r.s.log.Error("save a job", "job", p.ID, "error", err)
	}
}

// follow calls fn with each step until the job has ended.
func (r *jobRun) follow(ctx context.Context, fn func(api.JobStep) error) error {
	over := false
	for next := 0; ; {
		r.mu.Lock()
		steps, changed := r.steps[next:], r.changed
		r.mu.Unlock()
		for _, st := range steps {
			if err := fn(st); err != nil {
				return err
			}
		}
		if next += len(steps); len(steps) > 0 {
			continue
		}
		if over {
			return nil
		}
		select {
		case <-changed:
		case <-r.over:
			over = true // then read the steps once more
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// run runs the phases in order, and then the cleanup, whether they succeeded or not.
func (r *jobRun) run(ctx context.Context) {
	defer close(r.gone)
	failure := r.phases(ctx)
	if r.release != nil {
		r.release()
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), jobCleanup)
	defer cancel()
	r.collect(after)
	inspect := r.settle(after, ctx, failure)
	close(r.over)
	if inspect {
		timer := time.NewTimer(time.Duration(r.spec.InspectFailedMS) * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), jobCleanup)
		defer cancel()
		cleanup := r.remove(after)
		r.change(func(p *api.Job) { p.Cleanup, p.InspectUntil = cleanup, nil }, nil)
	}
}

// phase is one phase of a job.
type phase struct {
	name string
	on   bool
	do   func(context.Context) error
}

// phases runs the phases, and returns the failure, or nil.
func (r *jobRun) phases(ctx context.Context) *api.JobFailure {
	sp, plan := r.spec, r.prep.plan
	first := []phase{
		{api.PhaseCreate, sp.Spec != nil, r.create},
		{api.PhaseFiles, len(sp.Files)+len(sp.Dirs) > 0, r.files},
		{api.PhaseSetup, sp.Setup != nil, r.commands(api.PhaseSetup, plan.Setup, sp.Setup)},
		{api.PhaseNetwork, r.prep.swap, r.network},
		{api.PhasePostSetup, sp.PostSetup != nil, r.commands(api.PhasePostSetup, plan.PostSetup, sp.PostSetup)},
		{api.PhaseHandlers, len(sp.Handlers) > 0, r.handlers},
		{api.PhaseState, len(sp.State) > 0, r.state},
		{api.PhaseChannels, len(plan.Channels) > 0, r.channels},
	}
	if sp.Spec == nil {
		r.change(func(p *api.Job) { p.Sandbox = &r.prep.sandbox }, nil)
	}
	for _, ph := range first {
		if failure := r.phase(ctx, ph); failure != nil {
			return failure
		}
	}
	r.change(func(p *api.Job) { p.ReadyAt = new(time.Now().UTC()) }, nil)
	failure := r.phase(ctx, phase{api.PhaseRun, true, r.commands(api.PhaseRun, plan.Run, &sp.Run)})
	if sp.Score == nil || failure != nil && !(sp.ScoreAlways && scorable(failure)) {
		return failure
	}
	// Of two failures, report the first.
	if scored := r.phase(ctx, phase{api.PhaseScore, true, r.score}); failure == nil {
		failure = scored
	}
	return failure
}

// phase runs one phase and records its result.
func (r *jobRun) phase(ctx context.Context, ph phase) *api.JobFailure {
	if !ph.on {
		return nil
	}
	begun := time.Now()
	r.change(func(p *api.Job) {
		p.Phase = ph.name
		p.Phases = append(p.Phases, api.JobPhaseRecord{Phase: ph.name, State: stepRunning, StartedAt: begun.UTC()})
	}, &api.JobStep{Phase: ph.name, State: stepRunning})
	err := r.hold(ctx, ph.name)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = ph.do(ctx)
	}
	var failure *api.JobFailure
	state := stepSucceeded
	if err != nil {
		state = stepFailed
		failure = r.failure(ctx, ph.name, err)
	}
	step := &api.JobStep{Phase: ph.name, State: state}
	if failure != nil {
		step.Text = failure.Message
	}
	r.change(func(*api.Job) {
		rec := r.present()
		rec.State, rec.DurationMS = state, time.Since(begun).Milliseconds()
	}, step)
	return failure
}

// present returns the record of the running phase. The caller holds r.mu, or is in a change.
func (r *jobRun) present() *api.JobPhaseRecord { return &r.rec.Phases[len(r.rec.Phases)-1] }

// hold prevents jobs from running their setup in one sandbox at the same time. No lock is held
// during the other phases.
func (r *jobRun) hold(ctx context.Context, name string) error {
	setup := name == api.PhaseSetup || name == api.PhasePostSetup
	switch {
	case r.spec.Spec != nil:
		return nil
	case r.release != nil && !setup:
		r.release()
		r.release = nil
		return nil
	case r.release != nil || !setup:
		return nil
	}
	p := &r.s.running
	p.mu.Lock()
	lock := p.setups[r.prep.sandbox.ID]
	if lock == nil {
		lock = make(chan struct{}, 1)
		p.setups[r.prep.sandbox.ID] = lock
	}
	p.mu.Unlock()
	select {
	case lock <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	r.release = func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		<-lock
	}
	return nil
}

// sandbox returns the ID of the job's sandbox.
func (r *jobRun) sandbox() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return sandboxID(r.rec)
}

// settle makes the record final. It reports whether the sandbox is kept for inspection. Otherwise,
// it has removed the sandbox, if the job created it.
func (r *jobRun) settle(ctx, run context.Context, failure *api.JobFailure) (inspect bool) {
	id := r.sandbox()
	if id != "" {
		if sb, err := r.s.opts.Sandboxes.Get(r.caller, id); err == nil {
			r.change(func(p *api.Job) { p.Sandbox = &sb }, nil)
		}
	}
	ready := r.look().ReadyAt != nil
	var cleanup *api.Error
	switch {
	case id == "":
	case r.spec.Spec == nil:
		cleanup = r.leave(ctx)
	case r.spec.Keep:
	case failure != nil && !ready && r.spec.InspectFailedMS > 0 && run.Err() == nil:
		inspect = true
	default:
		cleanup = r.remove(ctx)
	}
	state, err := api.JobSucceeded, error(nil)
	if failure != nil {
		if state = api.JobFailed; failure.Kind == api.FailureCanceled {
			state = api.JobCanceled
		}
		err = &api.Error{Code: failure.Code, Message: failure.Message, Rule: failure.Rule}
		if failure.Code == "" {
			err = nil // a command that fails has a result
		}
	}
	now := time.Now().UTC()
	r.change(func(p *api.Job) {
		p.State, p.Failure, p.Cleanup, p.EndedAt, p.Handler = state, failure, cleanup, &now, ""
		if inspect {
			p.InspectUntil = new(now.Add(time.Duration(r.spec.InspectFailedMS) * time.Millisecond))
		}
	}, nil)
	d := details{"job": r.rec.ID, "state": string(state), "phase": r.look().Phase}
	if failure != nil {
		d["kind"], d["phase"] = string(failure.Kind), failure.Phase
	}
	_ = r.s.done(ctx, r.caller, policy.VerbJob, id, d, err) // done returns its argument
	return inspect
}

// remove removes the sandbox that the job created. If the removal fails, the sandbox manager
// retries it, and the job does not fail.
func (r *jobRun) remove(ctx context.Context) *api.Error {
	err := r.s.Remove(ctx, r.caller, r.sandbox())
	if err == nil || errors.Is(err, api.ErrNotFound) {
		return nil
	}
	r.s.log.Error("remove the sandbox of a job; it is being retried", "job", r.rec.ID, "error", err)
	return toError(err)
}

// leave removes the job's channels from a sandbox that is kept.
func (r *jobRun) leave(ctx context.Context) (first *api.Error) {
	for _, ph := range r.look().Phases {
		for _, c := range ph.Commands {
			if c.Channel == "" {
				continue
			}
			err := r.s.RemoveProcess(ctx, r.caller, r.sandbox(), c.Channel)
			if err != nil && !errors.Is(err, api.ErrNotFound) && !errors.Is(err, &api.Error{Code: api.CodeState}) && first == nil {
				first = toError(err)
			}
		}
	}
	return first
}

// toError returns err in its recorded form.
func toError(err error) *api.Error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return api.Errorf(api.CodeTimeout, "it took too long")
	}
	return api.Errorf(api.CodeInternal, "it failed for a reason that is in the daemon's log").WithCause(err)
}

// naming returns how the sandbox's name was selected. A forced template requires it again.
func (r *jobRun) naming() api.Naming {
	if r.spec.Spec == nil {
		return api.Naming{}
	}
	return r.spec.Spec.Naming
}

// execID returns the exec ID of a command of the job, so that the command never runs twice.
func (r *jobRun) execID(phase string, n int) string {
	return fmt.Sprintf("%s-%s-%d", r.rec.ID, phase, n)
}
