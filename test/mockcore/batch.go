package mockcore

import (
	"context"
	"errors"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// DeleteKeyed forgets the sandbox that was made with a key.
func (c *Core) DeleteKeyed(ctx context.Context, caller core.Caller, key string) (api.Sandbox, error) {
	c.mu.Lock()
	var id string
	for _, sb := range c.sandboxes {
		if sb.record.IdempotencyKey == key && sb.record.Tenant == caller.Tenant {
			id = sb.record.ID
		}
	}
	c.mu.Unlock()
	if id == "" {
		return api.Sandbox{State: api.StateDeleted, TerminalReason: api.EndedDeleted, IdempotencyKey: key, Tenant: caller.Tenant, CreatedAt: Epoch()}, nil
	}
	return c.Delete(ctx, caller, id)
}

// CreateMany makes one after the other.
func (c *Core) CreateMany(ctx context.Context, caller core.Caller, b api.BatchCreate) (api.BatchResult, error) {
	var out api.BatchResult
	for i, spec := range b.Specs {
		sb, err := c.Create(ctx, caller, spec, nil)
		note(&out, i, "", sb, err)
	}
	return out, nil
}

// Fork creates sandboxes that are described as their parent, one after the other.
func (c *Core) Fork(ctx context.Context, caller core.Caller, ref string, req api.ForkRequest) (api.ForkResult, error) {
	out := api.ForkResult{PausedMS: 1, MemoryBytes: 4096, MemorySum: "00"}
	parent, err := c.Get(ctx, caller, ref)
	if err != nil {
		return out, err
	}
	for i := range max(req.Count, len(req.Names)) {
		name := ""
		if i < len(req.Names) {
			name = req.Names[i]
		}
		sb, err := c.Create(ctx, caller, api.SandboxSpec{Name: name, Image: parent.Image}, nil)
		note(&out.BatchResult, i, name, sb, err)
	}
	return out, nil
}

// StatusMany gets one after the other.
func (c *Core) StatusMany(ctx context.Context, caller core.Caller, sel api.BatchSelect) (api.BatchResult, error) {
	var out api.BatchResult
	for i, id := range sel.IDs {
		sb, err := c.Get(ctx, caller, id)
		note(&out, i, id, sb, err)
	}
	return out, nil
}

// DeleteMany deletes one after the other.
func (c *Core) DeleteMany(ctx context.Context, caller core.Caller, sel api.BatchSelect) (api.BatchResult, error) {
	var out api.BatchResult
	for i, id := range sel.IDs {
		sb, err := c.Delete(ctx, caller, id)
		note(&out, i, id, sb, err)
	}
	if sel.Labels == nil {
		return out, nil
	}
	list, err := c.List(ctx, caller, api.ListOptions{Labels: sel.Labels})
	if err != nil {
		return out, err
	}
	for i, found := range list.Sandboxes {
		sb, err := c.Delete(ctx, caller, found.ID)
		note(&out, len(sel.IDs)+i, found.ID, sb, err)
	}
	return out, nil
}

func note(out *api.BatchResult, i int, id string, sb api.Sandbox, err error) {
	if err == nil {
		out.Succeeded = append(out.Succeeded, sb)
		return
	}
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		e = api.Errorf(api.CodeInternal, "%w", err)
	}
	out.Failed = append(out.Failed, api.BatchFailure{ID: id, Index: i, Error: e})
}

// Extend moves the end.
func (c *Core) Extend(_ context.Context, caller core.Caller, ref string, x api.Extension) (api.Sandbox, error) {
	return c.alter(caller, ref, func(sb *sandbox) error {
		sb.record.Limits.LifetimeMS = x.LifetimeMS
		return nil
	})
}

// Remove is Delete for who wants no record.
func (c *Core) Remove(ctx context.Context, caller core.Caller, ref string) error {
	_, err := c.Delete(ctx, caller, ref)
	return err
}
