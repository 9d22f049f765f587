package core

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
)

// maxPage is the largest page of a list.
const maxPage = 1000

// Get returns the record of a sandbox, by ID or name.
func (s *Service) Get(_ context.Context, caller Caller, ref string) (api.Sandbox, error) {
	return s.opts.Sandboxes.Get(caller, ref)
}

// Stats measures the present resource usage of a sandbox.
func (s *Service) Stats(ctx context.Context, caller Caller, ref string) (api.SandboxStats, error) {
	return s.opts.Sandboxes.Stats(ctx, caller, ref)
}

// List returns one page of the caller's sandboxes, newest first.
func (s *Service) List(_ context.Context, caller Caller, o api.ListOptions) (api.SandboxList, error) {
	if o.Limit < 0 || o.Limit > maxPage {
		return api.SandboxList{}, api.Invalid("limit", "a page of %d was asked for", o.Limit).WithHint("0 to %d", maxPage)
	}
	return s.opts.Sandboxes.List(caller, o), nil
}

// Delete removes a sandbox, running or not, and returns its last record. It has no effect on a
// sandbox that was already removed, if it is given by ID.
func (s *Service) Delete(ctx context.Context, caller Caller, ref string) (api.Sandbox, error) {
	if gone, ok := s.opts.Sandboxes.Removed(caller, ref); ok {
		return gone, nil
	}
	is, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		if gone, ok := s.opts.Sandboxes.Removed(caller, ref); ok {
			return gone, nil // its removal ended between the two lookups
		}
		return api.Sandbox{}, s.refused(ctx, caller, policy.VerbRemove, "", nil, err)
	}
	sb, err := s.opts.Sandboxes.Delete(ctx, caller, is.ID)
	return sb, s.done(context.WithoutCancel(ctx), caller, policy.VerbRemove, is.ID, nil, err)
}

// DeleteKeyed removes the sandbox of an idempotency key and prevents its later creation. See
// sandbox.Manager.DeleteKeyed.
func (s *Service) DeleteKeyed(ctx context.Context, caller Caller, key string) (api.Sandbox, error) {
	d := details{"idempotency_key": clip(key)}
	if err := policy.CheckKey(key); err != nil {
		return api.Sandbox{}, s.refused(ctx, caller, policy.VerbRemove, "", d, err)
	}
	sb, err := s.opts.Sandboxes.DeleteKeyed(ctx, caller, key)
	return sb, s.done(context.WithoutCancel(ctx), caller, policy.VerbRemove, sb.ID, d, err)
}

// Remove is Delete without the record.
func (s *Service) Remove(ctx context.Context, caller Caller, ref string) error {
	_, err := s.Delete(ctx, caller, ref)
	return err
}

// Stop ends a sandbox gracefully. A nil grace is the default.
func (s *Service) Stop(ctx context.Context, caller Caller, ref string, grace *time.Duration) (sb api.Sandbox, err error) {
	err = s.lifetime(ctx, caller, policy.VerbStop, ref, func(id string) error {
		sb, err = s.opts.Sandboxes.Stop(ctx, caller, id, grace)
		return err
	})
	return sb, err
}

// Kill ends a sandbox at once.
func (s *Service) Kill(ctx context.Context, caller Caller, ref string) (sb api.Sandbox, err error) {
	err = s.lifetime(ctx, caller, policy.VerbKill, ref, func(id string) error {
		sb, err = s.opts.Sandboxes.Kill(ctx, caller, id)
		return err
	})
	return sb, err
}

// lifetime runs one operation that ends a sandbox. An audit log that cannot be written never delays
// an end: the failure is logged, and the sandbox ends.
func (s *Service) lifetime(ctx context.Context, caller Caller, verb policy.Verb, ref string, do func(id string) error) error {
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return s.refused(ctx, caller, verb, "", nil, err)
	}
	return s.done(context.WithoutCancel(ctx), caller, verb, sb.ID, nil, do(sb.ID))
}

// Heartbeat renews the lease of a sandbox.
func (s *Service) Heartbeat(_ context.Context, caller Caller, ref string) (api.Sandbox, error) {
	return s.opts.Sandboxes.Touch(caller, ref)
}

// Extend extends the lifetime of a sandbox, or with Exact sets its end.
func (s *Service) Extend(ctx context.Context, caller Caller, ref string, x api.Extension) (api.Sandbox, error) {
	const verb = policy.VerbExtend
	d := details{"lifetime_ms": strconv.FormatInt(x.LifetimeMS, 10)}
	if x.Exact {
		d["exact"] = "true"
	}
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return sb, s.refused(ctx, caller, verb, "", d, err)
	}
	permit, err := policy.DecideExtend(x, policy.SettingsOf(sb), caller, s.rules())
	if err == nil {
		// Sandboxes checks again, because it knows exactly since when the sandbox runs.
		_, _, err = permit.Total(time.Since(sb.RunningSince()))
	}
	if err != nil {
		return sb, s.refused(ctx, caller, verb, sb.ID, d, err)
	}
	if err := s.intend(ctx, caller, verb, sb.ID, d); err != nil {
		return sb, err
	}
	after, err := s.opts.Sandboxes.Extend(caller, sb.ID, permit)
	return after, s.done(ctx, caller, verb, sb.ID, d, err)
}

// Pause pauses the processes of a sandbox.
func (s *Service) Pause(ctx context.Context, caller Caller, ref string) (sb api.Sandbox, err error) {
	if sb, err = s.opts.Sandboxes.Get(caller, ref); err != nil {
		return sb, s.refused(ctx, caller, policy.VerbPause, "", nil, err)
	}
	err = s.recorded(ctx, caller, policy.VerbPause, sb.ID, nil, func() error {
		sb, err = s.opts.Sandboxes.Pause(ctx, caller, sb.ID)
		return err
	})
	return sb, err
}

// Suspend saves the memory and the root of a sandbox to the disk and frees what it uses.
func (s *Service) Suspend(ctx context.Context, caller Caller, ref string) (sb api.Sandbox, err error) {
	if sb, err = s.opts.Sandboxes.Get(caller, ref); err != nil {
		return sb, s.refused(ctx, caller, policy.VerbSuspend, "", nil, err)
	}
	d := details{}
	err = s.recorded(ctx, caller, policy.VerbSuspend, sb.ID, d, func() error {
		sb, err = s.opts.Sandboxes.Suspend(ctx, caller, sb.ID)
		if err == nil {
			d["memory_bytes"] = strconv.FormatInt(sb.MemoryBytes, 10)
		}
		return err
	})
	return sb, err
}

// resumeSuspended continues a suspended sandbox. Policy decides again about what it was created with, under the present
// rules, as for a start.
func (s *Service) resumeSuspended(ctx context.Context, caller Caller, sb api.Sandbox, spec api.SandboxSpec) (api.Sandbox, error) {
	const verb = policy.VerbResume
	d := audit.SpecDetails(spec)
	o, err := s.decideStart(ctx, caller, sb, spec)
	if err != nil {
		return api.Sandbox{}, s.refused(ctx, caller, verb, sb.ID, d, err)
	}
	if err := s.intend(ctx, caller, verb, sb.ID, d); err != nil {
		return api.Sandbox{}, err
	}
	d["memory_bytes"] = strconv.FormatInt(sb.MemoryBytes, 10)
	sb, err = s.opts.Sandboxes.ResumeSuspended(ctx, caller, sb.ID, o)
	return sb, s.done(ctx, caller, verb, sb.ID, d, err)
}

// Resume resumes a paused or suspended sandbox. A resume of a paused one is recorded afterwards, so that no sandbox stays paused because the audit
// log cannot be written.
func (s *Service) Resume(ctx context.Context, caller Caller, ref string) (sb api.Sandbox, err error) {
	if sb, spec, err := s.opts.Sandboxes.SuspendedSpec(ctx, caller, ref); err == nil && spec != nil {
		return s.resumeSuspended(ctx, caller, sb, *spec)
	}
	err = s.lifetime(ctx, caller, policy.VerbResume, ref, func(id string) error {
		sb, err = s.opts.Sandboxes.Resume(ctx, caller, id)
		return err
	})
	return sb, err
}

// StartSandbox starts a sandbox that has ended. Policy decides again about what it was created with, under the
// present rules. If progress is not nil, it is called at each step. Processes with a restart policy that were alive
// when the sandbox ended are started again. Those that cannot be are in Lost of the record.
func (s *Service) StartSandbox(ctx context.Context, caller Caller, ref string, progress func(step string)) (api.Sandbox, error) {
	const verb = policy.VerbStartSandbox
	sb, spec, err := s.opts.Sandboxes.SpecOf(caller, ref)
	if err != nil {
		return api.Sandbox{}, s.refused(ctx, caller, verb, sb.ID, details{"ref": ref}, err)
	}
	if spec == nil {
		return sb, nil // it runs
	}
	d := audit.SpecDetails(*spec)
	o, err := s.decideStart(ctx, caller, sb, *spec)
	if err != nil {
		return api.Sandbox{}, s.refused(ctx, caller, verb, sb.ID, d, err)
	}
	if err := s.intend(ctx, caller, verb, sb.ID, d); err != nil {
		return api.Sandbox{}, err
	}
	begun := time.Now()
	sb, declared, err := s.opts.Sandboxes.Start(ctx, caller, sb.ID, o, progress)
	if err == nil {
		d["starts"], d["saved_root_bytes"] = strconv.Itoa(sb.Starts), strconv.FormatInt(sb.SavedRootBytes, 10)
	}
	s.metrics.Created(cmp.Or(sb.Engine, o.Permit.Engine()), time.Since(begun), err)
	if err := s.done(ctx, caller, verb, sb.ID, d, err); err != nil {
		return sb, err
	}
	return s.startDeclared(ctx, caller, sb, declared)
}

// decideStart decides whether a sandbox can be started as it was.
func (s *Service) decideStart(ctx context.Context, caller Caller, sb api.Sandbox, spec api.SandboxSpec) (sandbox.StartOptions, error) {
	rules := s.rules()
	caller.Tenant = sb.Tenant // an operator starts the sandbox of a tenant, and not one of its own
	facts, err := s.facts(ctx, caller, &spec, rules)
	if err != nil {
		return sandbox.StartOptions{}, err
	}
	if spec.Image == sb.ImageDigest && facts.Image.Here && !slices.Contains(facts.Image.Names, sb.Image) {
		facts.Image.Names = append(facts.Image.Names, sb.Image) // the name that it was created by
	}
	o := sandbox.StartOptions{}
	if o.Permit, err = policy.Decide(policy.Request{Spec: spec, Facts: facts}, caller, rules); err != nil {
		return o, err
	}
	// Rules that were changed while it ran stay changed.
	if grant, _, err := s.opts.Sandboxes.Egress(caller, policy.VerbStartSandbox, sb.ID); err == nil && sb.Egress != nil {
		next, err := policy.RefreshEgress(grant, policy.SettingsOf(sb), rules, time.Now())
		if err != nil {
			return o, err
		}
		o.Egress = &next
	}
	return o, nil
}

// startDeclared starts the processes of a sandbox again that it had when it ended.
func (s *Service) startDeclared(ctx context.Context, caller Caller, sb api.Sandbox, declared []api.ProcessSpec) (api.Sandbox, error) {
	var lost []api.Loss
	for _, spec := range declared {
		if _, err := s.StartProcess(ctx, caller, sb.ID, spec); err != nil {
			lost = append(lost, api.Loss{Kind: api.LossProcess, Name: spec.ExecID, Reason: err.Error()})
		}
	}
	if lost == nil {
		return sb, nil
	}
	return s.opts.Sandboxes.Lose(caller, sb.ID, lost)
}
