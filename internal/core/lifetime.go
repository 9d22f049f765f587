package core

import (
	"context"
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/policy"
)

// maxPage is the largest page of a list.
const maxPage = 1000

// Get tells what is on record about a sandbox, by id or name.
func (s *Service) Get(_ context.Context, caller Caller, ref string) (cloche.Sandbox, error) {
	return s.opts.Sandboxes.Get(caller, ref)
}

// List returns one page of the caller's sandboxes, newest first.
func (s *Service) List(_ context.Context, caller Caller, o cloche.ListOptions) (cloche.SandboxList, error) {
	if o.Limit < 0 || o.Limit > maxPage {
		return cloche.SandboxList{}, cloche.Invalid("limit", "a page of %d was asked for", o.Limit).WithHint("0 to %d", maxPage)
	}
	return s.opts.Sandboxes.List(caller, o), nil
}

// Remove takes a sandbox away, running or not.
func (s *Service) Remove(ctx context.Context, caller Caller, ref string) error {
	return s.lifetime(ctx, caller, policy.VerbRemove, ref, func(id string) error {
		return s.opts.Sandboxes.Remove(ctx, caller, id)
	})
}

// Stop ends a sandbox in good order; a nil grace is the default.
func (s *Service) Stop(ctx context.Context, caller Caller, ref string, grace *time.Duration) (sb cloche.Sandbox, err error) {
	err = s.lifetime(ctx, caller, policy.VerbStop, ref, func(id string) error {
		sb, err = s.opts.Sandboxes.Stop(ctx, caller, id, grace)
		return err
	})
	return sb, err
}

// Kill ends a sandbox at once.
func (s *Service) Kill(ctx context.Context, caller Caller, ref string) (sb cloche.Sandbox, err error) {
	err = s.lifetime(ctx, caller, policy.VerbKill, ref, func(id string) error {
		sb, err = s.opts.Sandboxes.Kill(ctx, caller, id)
		return err
	})
	return sb, err
}

// lifetime does one verb that ends a sandbox. An end is never held up by an
// audit log that cannot be written: that is logged, and the sandbox ends.
func (s *Service) lifetime(ctx context.Context, caller Caller, verb policy.Verb, ref string, do func(id string) error) error {
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return s.refused(ctx, caller, verb, "", nil, err)
	}
	return s.done(context.WithoutCancel(ctx), caller, verb, sb.ID, nil, do(sb.ID))
}
