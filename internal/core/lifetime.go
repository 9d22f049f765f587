package core

import (
	"context"
	"strconv"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
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
		_, _, err = permit.Total(time.Since(sb.CreatedAt) - time.Duration(sb.QueueMS+sb.StartMS)*time.Millisecond)
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

// Resume resumes them. It is recorded afterwards, so that no sandbox stays paused because the audit
// log cannot be written.
func (s *Service) Resume(ctx context.Context, caller Caller, ref string) (sb api.Sandbox, err error) {
	err = s.lifetime(ctx, caller, policy.VerbResume, ref, func(id string) error {
		sb, err = s.opts.Sandboxes.Resume(ctx, caller, id)
		return err
	})
	return sb, err
}
