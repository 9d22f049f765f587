package sandbox

import (
	"context"
	"errors"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/idempotency"
	"github.com/cloche-dev/cloche/internal/sandbox/tombstone"
)

// newKeys makes the keys of a Manager.
func newKeys(m *Manager) *idempotency.Keys {
	return idempotency.New(idempotency.Options{
		Context: m.ctx, Background: m.background, Tombstones: m.tombstones,
		Discard: func(id string, deleted bool) { m.reaper.discard(id, deleted) },
	})
}

// Keyed returns the sandbox of the caller's idempotency key, see [idempotency.Keys.Create].
func (m *Manager) Keyed(ctx context.Context, caller policy.Caller, key, digest string, create func(context.Context) (api.Sandbox, error)) (sb api.Sandbox, made bool, err error) {
	for {
		id, made, err := m.keys.Create(ctx, caller.Tenant, key, digest, func(ctx context.Context) (string, error) {
			sb, err := create(ctx)
			return sb.ID, err
		})
		if err != nil {
			return sb, made, err
		}
		sb, err = m.Get(caller, id)
		if err == nil || !errors.Is(err, api.ErrNotFound) {
			return sb, made, err
		}
		// It was removed in between: what became of the key is known now.
		if m.tombstones.Key(caller.Tenant, key) == nil {
			return sb, made, err
		}
	}
}

// adoptKey takes in the key of a sandbox that an earlier daemon made.
func (rc recovery) adoptKey(s *live) {
	s.mu.Lock()
	key, digest := s.info.IdempotencyKey, s.digest
	s.mu.Unlock()
	rc.m.keys.Adopt(s.tenant, key, digest, s.id)
}

// discard removes a sandbox that no caller waits for. Its key is free again, unless it was deleted
// by key.
func (r reaper) discard(id string, deleted bool) {
	r.m.mu.Lock()
	s := r.m.byID[id]
	r.m.mu.Unlock()
	if s == nil {
		return
	}
	w := why{cause: api.EndedDeleted}
	if !deleted {
		w = why{cause: api.EndedLease, text: "no caller waited for it any more"}
		s.mu.Lock()
		s.info.IdempotencyKey, s.digest = "", ""
		s.mu.Unlock()
	}
	if _, err := r.m.remove(r.m.ctx, s, w); err != nil {
		r.m.log.Error("remove an abandoned sandbox; it is being retried", "sandbox", id, "error", err)
	}
}

// DeleteKeyed deletes what an idempotency key of the caller's tenant stands for, also
// what is being made and what is yet to come: for 24 hours no create with the key
// makes anything. Repeating it changes nothing.
func (m *Manager) DeleteKeyed(ctx context.Context, caller policy.Caller, key string) (api.Sandbox, error) {
	d, err := m.keys.Delete(caller.Tenant, key, func() *tombstone.Record {
		return &tombstone.Record{At: now(), Sandbox: api.Sandbox{
			State: api.StateDeleted, TerminalReason: api.EndedDeleted, IdempotencyKey: key, Tenant: caller.Tenant, CreatedAt: now(),
		}}
	})
	switch {
	case err != nil:
		return api.Sandbox{}, err
	case d.Sandbox != "":
		return m.Delete(ctx, caller, d.Sandbox)
	case d.Undone == nil:
		if id := d.Record.Sandbox.ID; m.listed(id) {
			return m.Delete(ctx, caller, id) // its removal goes on
		}
		return d.Record.Sandbox, nil
	}
	m.reaper.poke()
	select {
	case <-d.Undone:
		return d.Record.Sandbox, nil
	case <-ctx.Done():
		return d.Record.Sandbox, api.Errorf(api.CodeTimeout, "the creation is still being undone").WithCause(ctx.Err())
	}
}
