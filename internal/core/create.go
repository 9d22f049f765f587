package core

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Create makes a sandbox. progress, which may be nil, is told each step.
func (s *Service) Create(ctx context.Context, caller Caller, spec cloche.SandboxSpec, progress func(step string)) (cloche.Sandbox, error) {
	permit, err := s.decide(ctx, caller, spec)
	if err != nil {
		return cloche.Sandbox{}, s.refused(ctx, caller, policy.VerbCreate, "", audit.SpecDetails(spec), err)
	}
	return s.create(ctx, caller, policy.VerbCreate, permit, audit.SpecDetails(spec), progress)
}

// create does what was permitted. What it is about to do is on record before it
// is done, so that a full disk or a crash cannot hide a sandbox.
func (s *Service) create(ctx context.Context, caller Caller, verb policy.Verb, permit policy.Permit, d details, progress func(string)) (cloche.Sandbox, error) {
	if err := s.intend(ctx, caller, verb, "", d); err != nil {
		return cloche.Sandbox{}, err
	}
	sb, err := s.opts.Sandboxes.Create(ctx, permit, progress)
	return sb, s.done(ctx, caller, verb, sb.ID, createdDetails(sb, d), err)
}

// decide gathers what policy must know of the machine, and asks it.
func (s *Service) decide(ctx context.Context, caller Caller, spec cloche.SandboxSpec) (policy.Permit, error) {
	own, all := s.opts.Sandboxes.Count(caller.Tenant)
	facts := policy.Facts{
		Dirs: map[string]policy.DirFact{}, Home: s.opts.Home, UserHome: s.opts.UserHome,
		Engines: s.opts.Prober.Reports(ctx), Live: all, LiveTenant: own,
	}
	for _, p := range policy.Paths(spec, caller, s.opts.Rules) {
		facts.Dirs[p] = lookAt(p)
	}
	return policy.Decide(policy.Request{Spec: spec, Facts: facts}, caller, s.opts.Rules)
}

// lookAt finds out what policy must know of one path. Whoever mounts it opens
// it again and compares device and inode, so that what changes between is found.
func lookAt(path string) policy.DirFact {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return policy.DirFact{}
	}
	fi, err := os.Lstat(real)
	if err != nil {
		return policy.DirFact{}
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return policy.DirFact{}
	}
	return policy.DirFact{Exists: true, Real: real, Dir: fi.IsDir(), OwnerUID: int(st.Uid), Dev: uint64(st.Dev), Ino: st.Ino}
}

// permitRun decides both halves of a one-shot before anything is made.
func (s *Service) permitRun(ctx context.Context, caller Caller, req cloche.RunRequest) (policy.Permit, policy.ExecPermit, error) {
	permit, err := s.decide(ctx, caller, req.Spec)
	if err != nil {
		return permit, policy.ExecPermit{}, err
	}
	exec, err := policy.DecideExec(req.Exec, permit.Settings(), caller, s.opts.Rules)
	return permit, exec, err
}

// Run makes a sandbox, runs one program in it and removes it, whatever becomes
// of the caller; when ctx ends, the program is killed with it. A teardown that
// fails is logged and retried; it replaces neither the result nor the first
// error.
func (s *Service) Run(ctx context.Context, caller Caller, req cloche.RunRequest) (cloche.RunResult, error) {
	d := s.runDetails(req)
	permit, exec, err := s.permitRun(ctx, caller, req)
	if err != nil {
		return cloche.RunResult{}, s.refused(ctx, caller, policy.VerbRun, "", d, err)
	}
	sb, err := s.create(ctx, caller, policy.VerbRun, permit, d, nil)
	if err != nil {
		return cloche.RunResult{}, err
	}
	if !req.Keep {
		defer s.discard(ctx, caller, sb)
	}
	res, err := s.opts.Sandboxes.Exec(ctx, caller, sb.ID, exec)
	return cloche.RunResult{Sandbox: sb, Result: res}, s.done(ctx, caller, policy.VerbExec, sb.ID, resultDetails(res, d), err)
}

// discard removes the sandbox of a one-shot.
func (s *Service) discard(ctx context.Context, caller Caller, sb cloche.Sandbox) {
	err := s.Remove(context.WithoutCancel(ctx), caller, sb.ID)
	if err != nil && !errors.Is(err, cloche.ErrNotFound) {
		s.log.Error("remove the sandbox of a one-shot; it is being retried", "sandbox", sb.ID, "error", err)
	}
}

// RunStream is Run with a live Stream. The sandbox is removed when the Stream is
// closed, unless Keep.
func (s *Service) RunStream(ctx context.Context, caller Caller, req cloche.RunRequest, progress func(step string)) (cloche.Sandbox, *Stream, error) {
	d := s.runDetails(req)
	permit, exec, err := s.permitRun(ctx, caller, req)
	if err != nil {
		return cloche.Sandbox{}, nil, s.refused(ctx, caller, policy.VerbRun, "", d, err)
	}
	sb, err := s.create(ctx, caller, policy.VerbRun, permit, d, progress)
	if err != nil {
		return sb, nil, err
	}
	st, err := s.stream(ctx, caller, sb.ID, exec, d)
	if err != nil {
		if !req.Keep {
			s.discard(ctx, caller, sb)
		}
		return sb, nil, err
	}
	if !req.Keep {
		st.onClose = func() { s.discard(ctx, caller, sb) }
	}
	return sb, st, nil
}
