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
	"github.com/cloche-dev/cloche/internal/core/hostfacts"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// Create creates a sandbox. If progress is not nil, it is called at each step. A spec with an
// idempotency key creates one sandbox, however often it is repeated.
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

// Hold creates a transient sandbox that exists until release is called or its lease ends. release
// can be called more than once. It returns when the sandbox is removed or its removal is being
// retried.
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

// create creates the permitted sandbox. The intent is recorded first, so that a full disk or a
// crash cannot hide a sandbox.
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
	create := s.opts.Sandboxes.Create
	if snap, ok := permit.Snapshot(); ok && snap.Scope == api.SnapshotMemory {
		d["memory_sum"] = snap.MemorySum
		create = func(ctx context.Context, permit policy.Permit, progress func(string)) (api.Sandbox, error) {
			return s.createFromMemory(ctx, permit, snap, progress)
		}
	}
	sb, err := create(ctx, permit, progress)
	s.metrics.Created(sb.Engine, time.Since(begun), err)
	return sb, s.done(ctx, caller, verb, sb.ID, createdDetails(sb, d), err)
}

// decide collects the facts that policy needs about the machine, and asks policy.
func (s *Service) decide(ctx context.Context, caller Caller, spec api.SandboxSpec, held bool) (policy.Permit, error) {
	return s.decideAll(ctx, caller, policy.Request{Spec: spec, Connected: held})
}

// decideAll is decide for a request that lacks only the facts.
func (s *Service) decideAll(ctx context.Context, caller Caller, req policy.Request) (policy.Permit, error) {
	rules := s.rules()
	err := policy.AuthorizeSpec(caller, req.Spec)
	if err != nil {
		return policy.Permit{}, err
	}
	if req.Facts, err = s.facts(ctx, caller, &req.Spec, rules); err != nil {
		return policy.Permit{}, err
	}
	if snap := req.Facts.Snapshot; req.Setup != nil && snap != nil && snap.Scope == api.SnapshotMemory {
		return policy.Permit{}, api.Invalid("setup.egress", "snapshot %s has memory: its programs continue under the rules of the sandbox that it was made of", snap.Name).
			WithHint("leave the egress of setup out, or use a snapshot of files")
	}
	return policy.Decide(req, caller, rules)
}

// facts collects what policy needs to know about the machine.
func (s *Service) facts(ctx context.Context, caller Caller, spec *api.SandboxSpec, rules rules.Rules) (policy.Facts, error) {
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
		// The name may point to another image by now, but the caller's sandbox used this image
		// under that name.
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
		facts.Dirs[p] = hostfacts.Look(name(p))
	}
	hostfacts.LookForPrivate(&facts, spec)
	return facts, hostfacts.LookAtMounts(&facts)
}

// permitRun decides both parts of a one-shot before anything is created. The call holds its
// sandbox. If the request names no command, the exec is decided after the image has been pulled,
// and the pull is recorded first.
func (s *Service) permitRun(ctx context.Context, caller Caller, req api.RunRequest, d details, progress func(string)) (oneShot, error) {
	// The sandbox must not remain even if the daemon is killed.
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

// oneShot is a granted one-shot.
type oneShot struct {
	permit policy.Permit
	exec   policy.ExecPermit
	// release releases the image, if it had to be pulled first.
	release func()
}

func (o *oneShot) close() {
	if o.release != nil {
		o.release()
	}
}

// imagesOwn returns the default command of a one-shot's image.
func (s *Service) imagesOwn(ctx context.Context, caller Caller, one *oneShot, d details, progress func(string)) ([]string, error) {
	grant := one.permit.Image()
	if grant.Ref == api.DefaultImage {
		return nil, nil // DecideExec reports what is missing
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

// Run creates a sandbox, runs one program in it and removes the sandbox, even if the caller
// disconnects. When ctx ends, the program is killed. A teardown that fails is logged and retried.
// It replaces neither the result nor the first error.
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

// RunStream is Run with a live Stream. The sandbox is removed when the Stream is closed, unless
// Keep is set.
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
		st.Closed = func() { s.discard(ctx, caller, sb) }
	}
	return sb, st, nil
}
