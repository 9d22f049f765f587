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
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/program"
)

// maxPrograms is the maximum number of running programs.
const maxPrograms = 4096

// programs holds the programs that run in this process. The zero value is empty.
type programs struct {
	mu     sync.Mutex
	live   map[string]*programRun
	closed bool
	wg     sync.WaitGroup
	// setups has one lock, a channel of capacity 1, for each existing sandbox in which a program
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

// errProgramsClosed is the cause for programs that end with the daemon.
var errProgramsClosed = errors.New("the daemon ended")

// StartProgram starts a program and returns when it is recorded. The program continues after the
// call. An equal request with the same idempotency key returns the existing program.
func (s *Service) StartProgram(ctx context.Context, caller Caller, spec api.ProgramSpec) (api.Program, error) {
	d := programDetails(spec)
	prep, err := s.prepareProgram(ctx, caller, spec)
	if err != nil {
		return api.Program{}, s.refused(ctx, caller, policy.VerbProgram, "", d, err)
	}
	r := &programRun{
		s: s, caller: caller, spec: spec, prep: prep, changed: make(chan struct{}), over: make(chan struct{}), gone: make(chan struct{}),
		answers: make(chan api.ProgramContinue), base: context.WithoutCancel(ctx),
	}
	r.rec = api.Program{
		ID: api.NewID("pg-"), Name: spec.Name, Tenant: caller.Tenant, Profile: prep.profile, State: api.ProgramRunning, Labels: spec.Labels,
		Spec: &spec, Made: spec.Spec != nil, Phases: []api.ProgramPhaseRecord{}, CreatedAt: time.Now().UTC(),
	}
	d["program"] = r.rec.ID
	if err := s.intend(ctx, caller, policy.VerbProgram, prep.sandbox.ID, d); err != nil {
		return api.Program{}, err
	}
	other, err := s.admitProgram(r)
	if err != nil || other != "" {
		if err == nil {
			d["program"] = other
			p, gerr := s.Program(ctx, caller, other)
			return p, s.done(ctx, caller, policy.VerbProgram, "", d, gerr)
		}
		return api.Program{}, s.done(ctx, caller, policy.VerbProgram, "", d, err)
	}
	return r.look(), nil
}

// admitProgram records a program and starts it. If a program with the same key exists, it returns
// that program's ID.
func (s *Service) admitProgram(r *programRun) (other string, err error) {
	p := &s.running
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return "", api.Errorf(api.CodeUnavailable, "the daemon is shutting down")
	case len(p.live) >= maxPrograms:
		err := api.Errorf(api.CodeNoCapacity, "%d programs run, which is the most", maxPrograms)
		err.Retryable, err.RetryAfterMS = true, 1000
		return "", err
	}
	id, digest, err := s.opts.Programs.Begin(r.rec)
	if err != nil {
		return "", s.broken("put a program on record", err)
	}
	if id != r.rec.ID {
		own, err := program.Digest(r.spec)
		if err != nil {
			return "", s.broken("compare programs", err)
		}
		if own != digest {
			err := api.Errorf(api.CodeConflict, "program %s has this idempotency key, and another content", id).WithHint("choose another key")
			err.Field = "idempotency_key"
			return "", err
		}
		return id, nil
	}
	if p.live == nil {
		p.live, p.setups = map[string]*programRun{}, map[string]chan struct{}{}
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

func programDetails(spec api.ProgramSpec) details {
	d := details{}
	if spec.Spec != nil {
		d = audit.SpecDetails(*spec.Spec)
	} else {
		d["ref"] = bound(spec.Sandbox)
	}
	if spec.Name != "" {
		d["program_name"] = bound(spec.Name)
	}
	for name, p := range map[string]*api.ProgramPhase{api.PhaseSetup: spec.Setup, api.PhasePostSetup: spec.PostSetup, api.PhaseRun: &spec.Run, api.PhaseScore: spec.Score} {
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

// program returns a program that runs in this process, or nil.
func (s *Service) program(id string) *programRun {
	s.running.mu.Lock()
	defer s.running.mu.Unlock()
	return s.running.live[id]
}

// Program returns the record of a program, with its request.
func (s *Service) Program(_ context.Context, caller Caller, id string) (api.Program, error) {
	return s.findProgram(caller, id, true)
}

func (s *Service) findProgram(caller Caller, id string, withSpec bool) (api.Program, error) {
	if s.opts.Programs == nil || !api.ValidName(id) {
		return api.Program{}, policy.NoProgram(id)
	}
	var p api.Program
	if r := s.program(id); r != nil {
		p = r.look()
	} else {
		var err error
		if p, err = s.opts.Programs.Get(id, withSpec); errors.Is(err, fs.ErrNotExist) {
			return p, policy.NoProgram(id)
		} else if err != nil {
			return p, s.broken("read a program", err)
		}
	}
	if !policy.SeesProgram(caller, p) {
		return api.Program{}, policy.NoProgram(id)
	}
	if !withSpec {
		p.Spec = nil
	}
	return p, nil
}

// Programs returns the newest of the caller's programs without their large parts. A limit of 0 is
// 100.
func (s *Service) Programs(_ context.Context, caller Caller, limit int) (api.ProgramList, error) {
	l := api.ProgramList{Programs: []api.Program{}}
	if limit < 0 || limit > maxPage {
		return l, api.Invalid("limit", "a page of %d was asked for", limit).WithHint("0 to %d", maxPage)
	}
	if s.opts.Programs == nil {
		return l, nil
	}
	for _, id := range s.opts.Programs.IDs(true) {
		p, err := s.findProgram(caller, id, false)
		if errors.Is(err, api.ErrNotFound) {
			continue
		}
		if err != nil {
			return l, err
		}
		if len(l.Programs) == cmp.Or(limit, 100) {
			break
		}
		p.Phases, p.Outputs = []api.ProgramPhaseRecord{}, nil
		l.Programs = append(l.Programs, p)
	}
	return l, nil
}

// CancelProgram cancels a program, and returns when its sandbox is removed. If the program has
// ended, it is not an error.
func (s *Service) CancelProgram(ctx context.Context, caller Caller, id string) (api.Program, error) {
	d := details{"program": bound(id)}
	p, err := s.findProgram(caller, id, false)
	if err != nil {
		return p, s.refused(ctx, caller, policy.VerbCancelProgram, "", d, err)
	}
	if r := s.program(id); r != nil {
		r.cancel(api.Errorf(api.CodeCanceled, "the program was cancelled"))
		select {
		case <-r.gone:
		case <-ctx.Done():
			return p, s.done(context.WithoutCancel(ctx), caller, policy.VerbCancelProgram, "", d, ctx.Err())
		}
	}
	p, err = s.findProgram(caller, id, true)
	return p, s.done(ctx, caller, policy.VerbCancelProgram, "", d, err)
}

// ContinueProgram ends the pause of a handler.
func (s *Service) ContinueProgram(ctx context.Context, caller Caller, id string, c api.ProgramContinue) (api.Program, error) {
	d := details{"program": bound(id), "handler": bound(c.Handler), "failed": bound(c.Failed)}
	p, err := s.findProgram(caller, id, false)
	if err == nil {
		err = s.continueProgram(ctx, id, p, c)
	}
	if err != nil {
		return p, s.refused(ctx, caller, policy.VerbContinueProgram, "", d, err)
	}
	p, err = s.findProgram(caller, id, true)
	return p, s.done(ctx, caller, policy.VerbContinueProgram, "", d, err)
}

func (s *Service) continueProgram(ctx context.Context, id string, p api.Program, c api.ProgramContinue) error {
	r := s.program(id)
	if r == nil || p.Handler != c.Handler {
		return api.Errorf(api.CodeState, "program %s does not wait for handler %s", id, bound(c.Handler)).
			WithHint("it is %s, in phase %s", p.State, p.Phase)
	}
	for {
		r.mu.Lock()
		waits, changed := r.rec.Handler, r.changed
		r.mu.Unlock()
		if waits != c.Handler {
			return api.Errorf(api.CodeState, "program %s does not wait for handler %s any more", id, bound(c.Handler))
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

// FollowProgram calls fn with each step of a program, from its beginning, and returns the program
// when it has ended. It also ends when ctx ends or fn returns an error.
func (s *Service) FollowProgram(ctx context.Context, caller Caller, id string, fn func(api.ProgramStep) error) (api.Program, error) {
	if _, err := s.findProgram(caller, id, false); err != nil {
		return api.Program{}, err
	}
	if r := s.program(id); r != nil {
		if err := r.follow(ctx, fn); err != nil {
			return api.Program{}, err
		}
	}
	return s.findProgram(caller, id, true)
}

// RecoverPrograms settles the programs of an earlier daemon. They are not continued, because what
// they had done is not known.
func (s *Service) RecoverPrograms(ctx context.Context) {
	if s.opts.Programs == nil {
		return
	}
	for _, id := range s.opts.Programs.IDs(false) {
		p, err := s.opts.Programs.Get(id, false)
		if err != nil {
			s.log.Error("recover a program", "program", id, "error", err)
			continue
		}
		now := time.Now().UTC()
		p.State, p.Handler, p.EndedAt = api.ProgramFailed, "", &now
		p.Failure = interrupted(p.Phase)
		if n := len(p.Phases); n > 0 && p.Phases[n-1].State == stepRunning {
			p.Phases[n-1].State = stepFailed
		}
		if err := s.opts.Programs.Save(p); err != nil {
			s.log.Error("recover a program", "program", id, "error", err)
		}
		who := Caller{Tenant: p.Tenant, UID: -1, Via: "recovery"}
		_ = s.done(ctx, who, policy.VerbProgram, sandboxID(p), details{"program": id, "phase": p.Phase},
			api.Errorf(api.CodeUnavailable, "%s", p.Failure.Message)) // done returns its argument
	}
}

func sandboxID(p api.Program) string {
	if p.Sandbox == nil {
		return ""
	}
	return p.Sandbox.ID
}

// ClosePrograms ends all running programs and removes their sandboxes. It waits until they have
// ended or ctx ends.
func (s *Service) ClosePrograms(ctx context.Context) error {
	p := &s.running
	p.mu.Lock()
	p.closed = true
	for _, r := range p.live {
		r.cancel(errProgramsClosed)
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
