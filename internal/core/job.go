package core

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"strconv"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/job"
	"github.com/cloche-dev/cloche/internal/policy"
)

// maxJobs is the maximum number of running jobs.
const maxJobs = 4096

// jobs holds the jobs that run in this process. The zero value is empty.
type jobs struct {
	mu     sync.Mutex
	live   map[string]*jobRun
	closed bool
	wg     sync.WaitGroup
	// setups has one lock, a channel of capacity 1, for each existing sandbox in which a job
	// runs its setup.
	setups map[string]chan struct{}
}

// liveKey is the context key of a context that ends when the caller's authorization does.
type liveKey struct{}

// WithLive returns a context with the context of the caller's authorization. Work that continues
// after the call ends when live ends. A nil live never ends.
func WithLive(ctx, live context.Context) context.Context {
	if live == nil {
		return ctx
	}
	return context.WithValue(ctx, liveKey{}, live)
}

// errJobsClosed is the cause for jobs that end with the daemon.
var errJobsClosed = errors.New("the daemon ended")

// StartJob starts a job and returns when it is recorded. The job continues after the
// call. An equal request with the same idempotency key returns the existing job.
func (s *Service) StartJob(ctx context.Context, caller Caller, spec api.JobSpec) (api.Job, error) {
	d := jobDetails(spec)
	prep, err := s.prepareJob(ctx, caller, spec)
	if err != nil {
		return api.Job{}, s.refused(ctx, caller, policy.VerbJob, "", d, err)
	}
	r := &jobRun{
		s: s, caller: caller, spec: spec, prep: prep, changed: make(chan struct{}), over: make(chan struct{}), gone: make(chan struct{}),
		answers: make(chan api.JobContinue), base: context.WithoutCancel(ctx),
	}
	r.rec = api.Job{
		ID: api.NewID("pg-"), Name: spec.Name, Tenant: caller.Tenant, Profile: prep.profile, State: api.JobRunning, Labels: spec.Labels,
		Spec: &spec, Made: spec.Spec != nil, Phases: []api.JobPhaseRecord{}, CreatedAt: time.Now().UTC(),
	}
	d["job"] = r.rec.ID
	if err := s.intend(ctx, caller, policy.VerbJob, prep.sandbox.ID, d); err != nil {
		return api.Job{}, err
	}
	other, err := s.admitJob(r)
	if err != nil || other != "" {
		if err == nil {
			d["job"] = other
			p, gerr := s.Job(ctx, caller, other)
			return p, s.done(ctx, caller, policy.VerbJob, "", d, gerr)
		}
		return api.Job{}, s.done(ctx, caller, policy.VerbJob, "", d, err)
	}
	return r.look(), nil
}

// admitJob records a job and starts it. If a job with the same key exists, it returns
// that job's ID.
func (s *Service) admitJob(r *jobRun) (other string, err error) {
	p := &s.running
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return "", api.Errorf(api.CodeUnavailable, "the daemon is shutting down")
	case len(p.live) >= maxJobs:
		err := api.Errorf(api.CodeNoCapacity, "%d jobs run, which is the most", maxJobs)
		err.Retryable, err.RetryAfterMS = true, 1000
		return "", err
	}
	id, digest, err := s.opts.Jobs.Begin(r.rec)
	if err != nil {
		return "", s.broken("put a job on record", err)
	}
	if id != r.rec.ID {
		own, err := job.Digest(r.spec)
		if err != nil {
			return "", s.broken("compare jobs", err)
		}
		if own != digest {
			err := api.Errorf(api.CodeConflict, "job %s has this idempotency key, and another content", id).WithHint("choose another key")
			err.Field = "idempotency_key"
			return "", err
		}
		return id, nil
	}
	if p.live == nil {
		p.live, p.setups = map[string]*jobRun{}, map[string]chan struct{}{}
	}
	p.live[r.rec.ID] = r
	ctx, cancel := context.WithCancelCause(r.base)
	r.cancel = cancel
	stop := func() bool { return true }
	if live, ok := r.base.Value(liveKey{}).(context.Context); ok {
		stop = context.AfterFunc(live, func() { cancel(context.Cause(live)) })
	}
	p.wg.Go(func() {
		defer stop()
		defer cancel(nil)
		r.run(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.live, r.rec.ID)
	})
	return "", nil
}

func jobDetails(spec api.JobSpec) details {
	d := details{}
	if spec.Spec != nil {
		d = audit.SpecDetails(*spec.Spec)
	} else {
		d["ref"] = bound(spec.Sandbox)
	}
	if spec.Name != "" {
		d["job_name"] = bound(spec.Name)
	}
	for name, p := range map[string]*api.JobPhase{api.PhaseSetup: spec.Setup, api.PhasePostSetup: spec.PostSetup, api.PhaseRun: &spec.Run, api.PhaseScore: spec.Score} {
		if p != nil {
			d[name+"_commands"] = strconv.Itoa(len(p.Commands))
		}
	}
	if p := spec.Setup; p != nil {
		for k, v := range policyDetails(api.EgressPolicy{Network: p.Network, Egress: p.Egress}) {
			if k != "replace" {
				d["setup_"+k] = v
			}
		}
	}
	return d
}

// job returns a job that runs in this process, or nil.
func (s *Service) job(id string) *jobRun {
	s.running.mu.Lock()
	defer s.running.mu.Unlock()
	return s.running.live[id]
}

// Job returns the record of a job, with its request.
func (s *Service) Job(_ context.Context, caller Caller, id string) (api.Job, error) {
	return s.findJob(caller, id, true)
}

func (s *Service) findJob(caller Caller, id string, withSpec bool) (api.Job, error) {
	if s.opts.Jobs == nil || !api.ValidName(id) {
		return api.Job{}, policy.NoJob(id)
	}
	var p api.Job
	if r := s.job(id); r != nil {
		p = r.look()
	} else {
		var err error
		if p, err = s.opts.Jobs.Get(id, withSpec); errors.Is(err, fs.ErrNotExist) {
			return p, policy.NoJob(id)
		} else if err != nil {
			return p, s.broken("read a job", err)
		}
	}
	if !policy.SeesJob(caller, p) {
		return api.Job{}, policy.NoJob(id)
	}
	if !withSpec {
		p.Spec = nil
	}
	return p, nil
}

// Jobs returns the newest of the caller's jobs without their large parts. A limit of 0 is
// 100.
func (s *Service) Jobs(_ context.Context, caller Caller, limit int) (api.JobList, error) {
	l := api.JobList{Jobs: []api.Job{}}
	if limit < 0 || limit > maxPage {
		return l, api.Invalid("limit", "a page of %d was asked for", limit).WithHint("0 to %d", maxPage)
	}
	if s.opts.Jobs == nil {
		return l, nil
	}
	for _, id := range s.opts.Jobs.IDs(true) {
		p, err := s.findJob(caller, id, false)
		if errors.Is(err, api.ErrNotFound) {
			continue
		}
		if err != nil {
			return l, err
		}
		if len(l.Jobs) == cmp.Or(limit, 100) {
			break
		}
		p.Phases, p.Outputs = []api.JobPhaseRecord{}, nil
		l.Jobs = append(l.Jobs, p)
	}
	return l, nil
}

// CancelJob cancels a job, and returns when its sandbox is removed. If the job has
// ended, it is not an error.
func (s *Service) CancelJob(ctx context.Context, caller Caller, id string) (api.Job, error) {
	d := details{"job": bound(id)}
	p, err := s.findJob(caller, id, false)
	if err != nil {
		return p, s.refused(ctx, caller, policy.VerbCancelJob, "", d, err)
	}
	if r := s.job(id); r != nil {
		r.cancel(api.Errorf(api.CodeCanceled, "the job was cancelled"))
		select {
		case <-r.gone:
		case <-ctx.Done():
			return p, s.done(context.WithoutCancel(ctx), caller, policy.VerbCancelJob, "", d, ctx.Err())
		}
	}
	p, err = s.findJob(caller, id, true)
	return p, s.done(ctx, caller, policy.VerbCancelJob, "", d, err)
}

// ContinueJob ends the pause of a handler.
func (s *Service) ContinueJob(ctx context.Context, caller Caller, id string, c api.JobContinue) (api.Job, error) {
	d := details{"job": bound(id), "handler": bound(c.Handler), "failed": bound(c.Failed)}
	p, err := s.findJob(caller, id, false)
	if err == nil {
		err = s.continueJob(ctx, id, p, c)
	}
	if err != nil {
		return p, s.refused(ctx, caller, policy.VerbContinueJob, "", d, err)
	}
	p, err = s.findJob(caller, id, true)
	return p, s.done(ctx, caller, policy.VerbContinueJob, "", d, err)
}

func (s *Service) continueJob(ctx context.Context, id string, p api.Job, c api.JobContinue) error {
	r := s.job(id)
	if r == nil || p.Handler != c.Handler {
		return api.Errorf(api.CodeState, "job %s does not wait for handler %s", id, bound(c.Handler)).
			WithHint("it is %s, in phase %s", p.State, p.Phase)
	}
	for {
		r.mu.Lock()
		waits, changed := r.rec.Handler, r.changed
		r.mu.Unlock()
		if waits != c.Handler {
			return api.Errorf(api.CodeState, "job %s does not wait for handler %s any more", id, bound(c.Handler))
		}
		select {
		case r.answers <- c:
			return nil
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// FollowJob calls fn with each step of a job, from its beginning, and returns the job
// when it has ended. It also ends when ctx ends or fn returns an error.
func (s *Service) FollowJob(ctx context.Context, caller Caller, id string, fn func(api.JobStep) error) (api.Job, error) {
	if _, err := s.findJob(caller, id, false); err != nil {
		return api.Job{}, err
	}
	if r := s.job(id); r != nil {
		if err := r.follow(ctx, fn); err != nil {
			return api.Job{}, err
		}
	}
	return s.findJob(caller, id, true)
}

// RecoverJobs settles the jobs of an earlier daemon. They are not continued, because what
// they had done is not known.
func (s *Service) RecoverJobs(ctx context.Context) {
	if s.opts.Jobs == nil {
		return
	}
	for _, id := range s.opts.Jobs.IDs(false) {
		p, err := s.opts.Jobs.Get(id, false)
		if err != nil {
			s.log.Error("recover a job", "job", id, "error", err)
			continue
		}
		now := time.Now().UTC()
		p.State, p.Handler, p.EndedAt = api.JobFailed, "", &now
		p.Failure = interrupted(p.Phase)
		if n := len(p.Phases); n > 0 && p.Phases[n-1].State == stepRunning {
			p.Phases[n-1].State = stepFailed
		}
		if err := s.opts.Jobs.Save(p); err != nil {
			s.log.Error("recover a job", "job", id, "error", err)
		}
		who := Caller{Tenant: p.Tenant, UID: -1, Via: "recovery"}
		_ = s.done(ctx, who, policy.VerbJob, sandboxID(p), details{"job": id, "phase": p.Phase},
			api.Errorf(api.CodeUnavailable, "%s", p.Failure.Message)) // done returns its argument
	}
}

func sandboxID(p api.Job) string {
	if p.Sandbox == nil {
		return ""
	}
	return p.Sandbox.ID
}

// CloseJobs ends all running jobs and removes their sandboxes. It waits until they have
// ended or ctx ends.
func (s *Service) CloseJobs(ctx context.Context) error {
	p := &s.running
	p.mu.Lock()
	p.closed = true
	for _, r := range p.live {
		r.cancel(errJobsClosed)
	}
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		p.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
