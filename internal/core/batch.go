package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
)

// maxBatchDeletes is the number of parallel removals of one batch.
const maxBatchDeletes = 64

// part is one part of a batch: its index, its ID or name in the request, and its function.
type part struct {
	index int
	id    string
	do    func() (api.Sandbox, error)
}

// batch runs parts with limited parallelism and returns the result of each, in their order.
func batch(parts []part, parallel int) api.BatchResult {
	type outcome struct {
		sb  api.Sandbox
		err error
	}
	outcomes := make([]outcome, len(parts))
	limit := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, p := range parts {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			outcomes[i].sb, outcomes[i].err = p.do()
		})
	}
	wg.Wait()
	out := api.BatchResult{Succeeded: []api.Sandbox{}, Failed: []api.BatchFailure{}}
	for i, o := range outcomes {
		if o.err == nil {
			out.Succeeded = append(out.Succeeded, o.sb)
			continue
		}
		e, ok := errors.AsType[*api.Error](o.err)
		if !ok {
			e = api.Errorf(api.CodeInternal, "%w", o.err)
		}
		out.Failed = append(out.Failed, api.BatchFailure{ID: parts[i].id, Index: parts[i].index, Error: e})
	}
	return out
}

// CreateMany creates many sandboxes. Each succeeds or fails independently. If ctx ends before the
// answer, the sandboxes without an idempotency key are removed, because no caller knows their IDs.
func (s *Service) CreateMany(ctx context.Context, caller Caller, b api.BatchCreate) (api.BatchResult, error) {
	count := max(b.Count, 1)
	switch {
	case b.Count < 0:
		return api.BatchResult{}, api.Invalid("count", "count is %d", b.Count).WithHint("0, which is once, or more")
	case len(b.Specs) == 0:
		return api.BatchResult{}, api.Invalid("specs", "there is nothing to make").WithHint("give at least one spec; {} is the daemon's defaults")
	case len(b.Specs) > api.MaxBatchCreate || count > api.MaxBatchCreate || len(b.Specs)*count > api.MaxBatchCreate:
		return api.BatchResult{}, api.Errorf(api.CodeTooLarge, "%d specs, each %d times, are too many for one batch", len(b.Specs), count).
			WithHint("make at most %d sandboxes in one call", api.MaxBatchCreate)
	}
	var parts []part
	for i, spec := range b.Specs {
		for n := range count {
			index := i*count + n
			parts = append(parts, part{index: index, do: func() (api.Sandbox, error) {
				if index > 0 { // the first one was admitted with the request
					if err := s.Admit(ctx, caller, policy.VerbCreate); err != nil {
						return api.Sandbox{}, err
					}
				}
				return s.Create(ctx, caller, numbered(spec, n), nil)
			}})
		}
	}
	out := batch(parts, len(parts)) // the manager's gate limits the parallelism
	if err := s.discardUnknown(ctx, caller, out.Succeeded, "batch"); err != nil {
		return api.BatchResult{}, err
	}
	return out, nil
}

// discardUnknown returns an error if the caller has gone who waited for what, and removes the sandboxes that it cannot find
// then: those without an idempotency key.
func (s *Service) discardUnknown(ctx context.Context, caller Caller, made []api.Sandbox, what string) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	for _, sb := range made {
		if sb.IdempotencyKey == "" {
			s.discard(ctx, caller, sb)
		}
	}
	return api.Errorf(api.CodeCanceled, "the caller of the %s went away", what).WithCause(err)
}

// numbered returns the spec of the n-th sandbox of one spec.
func numbered(spec api.SandboxSpec, n int) api.SandboxSpec {
	if n == 0 {
		return spec
	}
	for _, name := range []*string{&spec.Name, &spec.IdempotencyKey} {
		if *name != "" {
			*name = fmt.Sprintf("%s-%d", *name, n+1)
		}
	}
	return spec
}

// StatusMany is Get for many sandboxes.
func (s *Service) StatusMany(ctx context.Context, caller Caller, sel api.BatchSelect) (api.BatchResult, error) {
	switch {
	case len(sel.IdempotencyKeys) > 0 || len(sel.Labels) > 0:
		return api.BatchResult{}, api.Invalid("ids", "a status is of ids only").WithHint("GET /v1/sandboxes lists by labels")
	case len(sel.IDs) == 0:
		return api.BatchResult{}, api.Invalid("ids", "no sandbox is named").WithHint("give 1 to %d ids or names", api.MaxBatch)
	case len(sel.IDs) > api.MaxBatch:
		return api.BatchResult{}, tooManyParts(len(sel.IDs))
	}
	var parts []part
	for i, id := range sel.IDs {
		parts = append(parts, part{i, id, func() (api.Sandbox, error) { return s.Get(ctx, caller, id) }})
	}
	return batch(parts, 1), nil
}

// DeleteMany is Delete for many sandboxes. If one does not exist, its part fails, unless it is
// named by its idempotency key.
func (s *Service) DeleteMany(ctx context.Context, caller Caller, sel api.BatchSelect) (api.BatchResult, error) {
	if len(sel.IDs) == 0 && len(sel.IdempotencyKeys) == 0 && len(sel.Labels) == 0 {
		return api.BatchResult{}, api.Invalid("ids", "nothing is named that is to go").WithHint("give ids, idempotency_keys or labels")
	}
	var parts []part
	seen := map[string]bool{}
	add := func(id string, do func() (api.Sandbox, error)) {
		parts = append(parts, part{len(parts), id, do})
	}
	for _, id := range sel.IDs {
		if !seen[id] {
			seen[id] = true
			add(id, func() (api.Sandbox, error) { return s.Delete(ctx, caller, id) })
		}
	}
	for _, key := range slices.Compact(slices.Sorted(slices.Values(sel.IdempotencyKeys))) {
		add(key, func() (api.Sandbox, error) { return s.DeleteKeyed(ctx, caller, key) })
	}
	if len(sel.Labels) > 0 {
		matches, err := s.labelled(caller, sel.Labels)
		if err != nil {
			return api.BatchResult{}, err
		}
		for _, sb := range matches {
			if !seen[sb.ID] && !seen[sb.Name] {
				add(sb.ID, func() (api.Sandbox, error) { return s.Delete(ctx, caller, sb.ID) })
			}
		}
	}
	if len(parts) > api.MaxBatch {
		return api.BatchResult{}, tooManyParts(len(parts))
	}
	return batch(parts, maxBatchDeletes), nil
}

// labelled returns the sandboxes of the caller's own tenant that have all labels. Labels never
// select sandboxes of another tenant, even for the operator.
func (s *Service) labelled(caller Caller, labels map[string]string) ([]api.Sandbox, error) {
	var out []api.Sandbox
	o := api.ListOptions{Labels: labels, Limit: maxPage}
	for {
		page := s.opts.Sandboxes.List(caller, o)
		for _, sb := range page.Sandboxes {
			if sb.Tenant == caller.Tenant {
				out = append(out, sb)
			}
		}
		if len(out) > api.MaxBatch {
			return nil, tooManyParts(len(out))
		}
		if page.Next == "" {
			return out, nil
		}
		o.Cursor = page.Next
	}
}

func tooManyParts(n int) *api.Error {
	return api.Errorf(api.CodeTooLarge, "%d sandboxes or more are too many for one batch", n).WithHint("name at most %d in one call", api.MaxBatch)
}

// maxForks is the number of forks of one parent that are created in parallel.
const maxForks = 4

// Fork creates sandboxes that continue from the memory of another, which is captured once, and runs on if it ran. Policy decides
// about each, as about a start of the parent. If ctx ends before the answer, the forks are removed, because no caller knows their IDs.
func (s *Service) Fork(ctx context.Context, caller Caller, ref string, req api.ForkRequest) (api.ForkResult, error) {
	const verb = policy.VerbFork
	out := api.ForkResult{}
	names, err := forkNames(req)
	if err != nil {
		return out, s.refused(ctx, caller, verb, "", details{"ref": clip(ref)}, err)
	}
	sb, spec, err := s.opts.Sandboxes.ForkSpec(ctx, caller, ref)
	if err != nil {
		return out, s.refused(ctx, caller, verb, sb.ID, details{"ref": clip(ref)}, err)
	}
	d := audit.SpecDetails(spec)
	d["forks"] = strconv.Itoa(len(names))
	options, err := s.decideForks(ctx, caller, sb, spec, names)
	if err != nil {
		return out, s.refused(ctx, caller, verb, sb.ID, d, err)
	}
	if err := s.intend(ctx, caller, verb, sb.ID, d); err != nil {
		return out, err
	}
	template, err := s.opts.Sandboxes.Capture(ctx, caller, sb.ID)
	if err == nil {
		defer template.Release()
		d["memory_sum"], d["memory_bytes"] = template.Memory.Sum(), strconv.FormatInt(template.Memory.Bytes, 10)
	}
	if err := s.done(ctx, caller, verb, sb.ID, d, err); err != nil {
		return out, err
	}
	out.PausedMS, out.MemoryBytes, out.MemorySum = template.Paused.Milliseconds(), template.Memory.Bytes, template.Memory.Sum()
	var parts []part
	for i, name := range names {
		parts = append(parts, part{i, name, func() (api.Sandbox, error) { return s.createFork(ctx, caller, sb, template, options[i]) }})
	}
	out.BatchResult = batch(parts, maxForks)
	if err := s.discardUnknown(ctx, caller, out.Succeeded, "fork"); err != nil {
		return api.ForkResult{}, err
	}
	return out, nil
}

// forkNames returns the names of the requested forks, which are empty where they are to be their IDs.
func forkNames(req api.ForkRequest) ([]string, error) {
	names := slices.Clone(req.Names)
	if len(names) == 0 {
		names = make([]string, max(0, min(req.Count, api.MaxForks+1)))
	}
	switch {
	case len(names) == 0:
		return nil, api.Invalid("count", "no fork is asked for").WithHint("give count, 1 to %d, or names", api.MaxForks)
	case len(names) > api.MaxForks:
		return nil, api.Errorf(api.CodeTooLarge, "more than %d forks are asked for", api.MaxForks).WithHint("fork the sandbox again for the rest")
	case len(req.Names) > 0 && req.Count != 0 && req.Count != len(req.Names):
		return nil, api.Invalid("count", "count is %d, and there are %d names", req.Count, len(req.Names)).WithHint("leave count out")
	}
	for i, name := range req.Names {
		if name == "" || slices.Contains(req.Names[:i], name) {
			return nil, api.Invalid(fmt.Sprintf("names[%d]", i), "the name %.80q is empty or occurs twice", name)
		}
	}
	return names, nil
}

// decideForks decides whether the caller can create sandboxes like the parent with these names.
func (s *Service) decideForks(ctx context.Context, caller Caller, parent api.Sandbox, spec api.SandboxSpec, names []string) ([]sandbox.StartOptions, error) {
	if err := policy.AuthorizeSpec(caller, spec); err != nil {
		return nil, err
	}
	var out []sandbox.StartOptions
	for _, name := range names {
		spec.Name = name
		o, err := s.decideStart(ctx, caller, parent, spec)
		if err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, nil
}

// createFork creates one fork of a captured sandbox.
func (s *Service) createFork(ctx context.Context, caller Caller, parent api.Sandbox, t *sandbox.Template, o sandbox.StartOptions) (api.Sandbox, error) {
	const verb = policy.VerbFork
	d := details{"forked_from": parent.ID, "memory_sum": t.Memory.Sum(), "name": o.Permit.Spec().Name}
	if err := s.intend(ctx, caller, verb, "", d); err != nil {
		return api.Sandbox{}, err
	}
	begun := time.Now()
	sb, err := s.opts.Sandboxes.CreateFork(ctx, t, o, nil)
	s.metrics.Created(cmp.Or(sb.Engine, o.Permit.Engine()), time.Since(begun), err)
	return sb, s.done(ctx, caller, verb, sb.ID, createdDetails(sb, d), err)
}
