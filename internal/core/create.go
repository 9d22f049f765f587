package core

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// Create makes a sandbox. progress, which may be nil, is told each step. One whose
// spec has an idempotency key is made once, however often it is asked for.
func (s *Service) Create(ctx context.Context, caller Caller, spec api.SandboxSpec, progress func(step string)) (api.Sandbox, error) {
	create := s.createOne
	if spec.IdempotencyKey != "" {
		create = s.createKeyed
	}
	sb, err := create(ctx, caller, spec, progress)
	return sb, s.remember(ctx, caller, api.StageBuild, sb.ID, spec.Naming, err)
}

func (s *Service) createOne(ctx context.Context, caller Caller, spec api.SandboxSpec, progress func(step string)) (api.Sandbox, error) {
	permit, err := s.decide(ctx, caller, spec, false)
	if err != nil {
		return api.Sandbox{}, s.refused(ctx, caller, policy.VerbCreate, "", audit.SpecDetails(spec), err)
	}
	return s.create(ctx, caller, policy.VerbCreate, permit, audit.SpecDetails(spec), progress)
}

// Hold makes a transient sandbox that lives until release is called, or its
// lease ends. release may be called more than once, and returns when the
// sandbox is gone or its removal is being retried.
func (s *Service) Hold(ctx context.Context, caller Caller, spec api.SandboxSpec, progress func(step string)) (sb api.Sandbox, release func(), err error) {
	defer func() { _ = s.remember(ctx, caller, api.StageBuild, sb.ID, spec.Naming, err) }()
	spec.Transient = true
	d := audit.SpecDetails(spec)
	if err := policy.NoKey(spec); err != nil {
		return sb, nil, s.refused(ctx, caller, policy.VerbCreate, "", d, err)
	}
	permit, err := s.decide(ctx, caller, spec, true)
	if err != nil {
		return sb, nil, s.refused(ctx, caller, policy.VerbCreate, "", d, err)
	}
	if sb, err = s.create(ctx, caller, policy.VerbCreate, permit, d, progress); err != nil {
		return sb, nil, err
	}
	letGo, err := s.opts.Sandboxes.Hold(caller, sb.ID)
	if err != nil {
		s.discard(ctx, caller, sb)
		return sb, nil, err
	}
	return sb, sync.OnceFunc(func() {
		letGo()
		s.discard(ctx, caller, sb)
	}), nil
}

// create does what was permitted. What it is about to do is on record before it
// is done, so that a full disk or a crash cannot hide a sandbox.
func (s *Service) create(ctx context.Context, caller Caller, verb policy.Verb, permit policy.Permit, d details, progress func(string)) (api.Sandbox, error) {
	if err := s.intend(ctx, caller, verb, "", d); err != nil {
		return api.Sandbox{}, err
	}
	permit, release, err := s.fetch(ctx, caller, permit, progress)
	if err != nil {
		return api.Sandbox{}, s.done(ctx, caller, verb, "", d, err)
	}
	defer release()
	begun := time.Now()
	sb, err := s.opts.Sandboxes.Create(ctx, permit, progress)
	s.metrics.Created(sb.Engine, time.Since(begun), err)
	return sb, s.done(ctx, caller, verb, sb.ID, createdDetails(sb, d), err)
}

// decide gathers what policy must know of the machine, and asks it.
func (s *Service) decide(ctx context.Context, caller Caller, spec api.SandboxSpec, held bool) (policy.Permit, error) {
	return s.decideAll(ctx, caller, policy.Request{Spec: spec, Held: held})
}

// decideAll is decide for a request of which only the facts are missing.
func (s *Service) decideAll(ctx context.Context, caller Caller, req policy.Request) (policy.Permit, error) {
	rules := s.rules()
	var err error
	if req.Facts, err = s.facts(ctx, caller, &req.Spec, rules); err != nil {
		return policy.Permit{}, err
	}
	return policy.Decide(req, caller, rules)
}

// facts are what policy must know of the machine.
func (s *Service) facts(ctx context.Context, caller Caller, spec *api.SandboxSpec, rules policy.Rules) (policy.Facts, error) {
	own, all := s.opts.Sandboxes.Count(caller.Tenant)
	var found policy.Facts
	err := s.snapshotFacts(ctx, caller, spec, &found)
	if err != nil {
		return policy.Facts{}, err
	}
	facts := policy.Facts{
		Snapshot: found.Snapshot, NoLayers: found.NoLayers,
		Windows: runtime.GOOS == "windows", Dirs: map[string]policy.DirFact{}, Home: s.opts.Home, UserHome: s.opts.UserHome, SocketDirs: s.opts.SocketDirs,
		Engines: s.opts.Prober.Reports(ctx), Live: all, LiveTenant: own, Image: s.imageFact(policy.ImageOf(*spec, rules)),
		Secrets: s.opts.Sandboxes.HasSecrets(), NoInterception: s.opts.NoInterception, NoApproval: s.noApproval(), HardQuota: workspace.HardQuota(s.opts.Home), Projects: workspace.HasProjects(s.opts.Home), Workspace: s.workspaceFact(caller, *spec),
	}
	if snap := facts.Snapshot; snap != nil && spec.Image == snap.ImageDigest && facts.Image.Here {
		// The name may be another image's by now; the caller's sandbox had this one by it.
		facts.Image.Names = append(facts.Image.Names, snap.Image)
	}
	if facts.Skills, err = s.skillFacts(ctx, caller, *spec, rules); err != nil {
		return policy.Facts{}, err
	}
	asked, name := policy.Paths, func(p string) string { return p }
	if facts.Windows {
		asked, name = policy.WindowsPaths, policy.WindowsName
	}
	for _, p := range asked(*spec, caller, rules) {
		facts.Dirs[p] = lookAt(name(p))
	}
	lookForPrivate(&facts, spec)
	return facts, lookAtMounts(&facts)
}

// permitRun decides both halves of a one-shot before anything is made. The call
// holds its sandbox. A request that names no command is decided once its image is
// here, which is on record by then.
func (s *Service) permitRun(ctx context.Context, caller Caller, req api.RunRequest, d details, progress func(string)) (oneShot, error) {
	// Not even a daemon that is killed leaves it behind.
	req.Spec.Transient = req.Spec.Transient || !req.Keep
	var one oneShot
	err := errors.Join(policy.NoKey(req.Spec), policy.RunNaming(req))
	if err != nil {
		return one, s.refused(ctx, caller, policy.VerbRun, "", d, err)
	}
	if one.permit, err = s.decide(ctx, caller, req.Spec, true); err != nil {
		return one, s.refused(ctx, caller, policy.VerbRun, "", d, err)
	}
	if req.Exec.Argv == nil && req.Exec.Shell == "" && req.Exec.Python == "" {
		if req.Exec.Argv, err = s.imagesOwn(ctx, caller, &one, d, progress); err != nil {
			one.close()
			return one, err
		}
		maps.Copy(d, s.runDetails(req))
	}
	if one.exec, err = policy.DecideExec(req.Exec, one.permit.Settings(), caller, s.rules()); err != nil {
		one.close()
		return one, s.refused(ctx, caller, policy.VerbRun, "", d, err)
	}
	return one, nil
}

// oneShot is a one-shot that was granted.
type oneShot struct {
	permit policy.Permit
	exec   policy.ExecPermit
	// release lets the image go, when it had to be here first.
	release func()
}

func (o *oneShot) close() {
	if o.release != nil {
		o.release()
	}
}

// imagesOwn is the command that the image of a one-shot names.
func (s *Service) imagesOwn(ctx context.Context, caller Caller, one *oneShot, d details, progress func(string)) ([]string, error) {
	grant := one.permit.Image()
	if grant.Ref == api.DefaultImage {
		return nil, nil // DecideExec says what is missing
	}
	if err := s.intend(ctx, caller, policy.VerbRun, "", d); err != nil {
		return nil, err
	}
	var err error
	if one.permit, one.release, err = s.fetch(ctx, caller, one.permit, progress); err != nil {
		return nil, s.done(ctx, caller, policy.VerbRun, "", d, err)
	}
	argv, err := s.imageCommand(grant.Ref)
	if err != nil {
		return nil, s.refused(ctx, caller, policy.VerbRun, "", d, err)
	}
	return argv, nil
}

// Run makes a sandbox, runs one program in it and removes it, whatever becomes
// of the caller; when ctx ends, the program is killed with it. A teardown that
// fails is logged and retried; it replaces neither the result nor the first
// error.
func (s *Service) Run(ctx context.Context, caller Caller, req api.RunRequest) (api.RunResult, error) {
	d := s.runDetails(req)
	failed := func(sandbox string, err error) error {
		return s.remember(ctx, caller, api.StageBuild, sandbox, req.Spec.Naming, err)
	}
	one, err := s.permitRun(ctx, caller, req, d, nil)
	if err != nil {
		return api.RunResult{}, failed("", err)
	}
	defer one.close()
	sb, err := s.create(ctx, caller, policy.VerbRun, one.permit, d, nil)
	if err != nil {
		return api.RunResult{}, failed(sb.ID, err)
	}
	if !req.Keep {
		defer s.discard(ctx, caller, sb)
	}
	res, err := s.measuredExec(ctx, caller, sb, one.exec, req.Spec.Naming)
	err = s.done(ctx, caller, policy.VerbExec, sb.ID, resultDetails(res, d), err)
	limitText(&res, req.Exec)
	return api.RunResult{Sandbox: sb, Result: res}, err
}

// discard removes the sandbox of a one-shot.
func (s *Service) discard(ctx context.Context, caller Caller, sb api.Sandbox) {
	err := s.Remove(context.WithoutCancel(ctx), caller, sb.ID)
	if err != nil && !errors.Is(err, api.ErrNotFound) {
		s.log.Error("remove the sandbox of a one-shot; it is being retried", "sandbox", sb.ID, "error", err)
	}
}

// RunStream is Run with a live Stream. The sandbox is removed when the Stream is
// closed, unless Keep.
func (s *Service) RunStream(ctx context.Context, caller Caller, req api.RunRequest, progress func(step string)) (api.Sandbox, *Stream, error) {
	d := s.runDetails(req)
	failed := func(sandbox string, err error) error {
		return s.remember(ctx, caller, api.StageBuild, sandbox, req.Spec.Naming, err)
	}
	if err := policy.NoOutputChars(req.Exec); err != nil {
		return api.Sandbox{}, nil, failed("", s.refused(ctx, caller, policy.VerbRun, "", d, err))
	}
	one, err := s.permitRun(ctx, caller, req, d, progress)
	if err != nil {
		return api.Sandbox{}, nil, failed("", err)
	}
	defer one.close()
	sb, err := s.create(ctx, caller, policy.VerbRun, one.permit, d, progress)
	if err != nil {
		return sb, nil, failed(sb.ID, err)
	}
	st, err := s.stream(ctx, caller, sb, one.exec, req.Spec.Naming, d)
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
