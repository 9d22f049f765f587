package sandbox

import (
	"context"
	"errors"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/tombstone"
)

// claims are the idempotency keys that stand for a sandbox on record, or for one that
// is being made. Those of removed ones are in the store of tombstones.
type claims struct {
	m     *Manager
	mu    sync.Mutex
	byKey map[nameKey]*claim
}

// claim is one key. Its fields are guarded by the table's mu.
type claim struct {
	digest string
	// sandbox is the id of what was made.
	sandbox string
	// creating is nil when that is over.
	creating *keyedCreate
}

// keyedCreate is a creation that callers wait for. It belongs to none of them.
type keyedCreate struct {
	waiters int
	// stop ends it.
	stop context.CancelCauseFunc
	// deleted means that a caller deleted the key.
	deleted bool
	// done is closed when it is over; err is set before.
	done chan struct{}
	err  error
}

// errUnwanted ends a creation that no caller waits for any more.
var errUnwanted = errors.New("no caller waits for it any more")

// digestOf is the digest of the request that a key stands for; empty where there is
// no such claim.
func (c *claims) digestOf(tenant, key string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cl := c.byKey[nameKey{tenant, key}]; key != "" && cl != nil {
		return cl.digest
	}
	return ""
}

// adopt takes in the key of a sandbox that an earlier daemon made.
func (c *claims) adopt(s *live) {
	s.mu.Lock()
	key, digest := s.info.IdempotencyKey, s.digest
	s.mu.Unlock()
	if key == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byKey[nameKey{s.tenant, key}] = &claim{digest: digest, sandbox: s.id}
}

// drop forgets the key of a sandbox that is removed, or never was.
func (c *claims) drop(tenant, key, sandbox string) {
	if key == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := nameKey{tenant, key}
	if cl := c.byKey[k]; cl != nil && cl.creating == nil && cl.sandbox == sandbox {
		delete(c.byKey, k)
	}
}

// Keyed returns the sandbox of the caller's idempotency key. If it does not exist, the make function of
// one caller creates it, and all callers that ask in the meantime wait for it. The context of make
// has the values of that caller's context and ends when no caller waits any more. In that case
// nothing is left of the sandbox. digest identifies the request. made is true for the caller whose
// make was used.
func (m *Manager) Keyed(ctx context.Context, caller policy.Caller, key, digest string, create func(context.Context) (api.Sandbox, error)) (sb api.Sandbox, made bool, err error) {
	for {
		cl, mk, made, err := m.claims.claim(ctx, caller.Tenant, key, digest, create)
		if err != nil {
			return sb, false, err
		}
		if cl == nil {
			// The previous creation is being undone, because no caller waited for it. A new one
			// begins after that.
			select {
			case <-mk.done:
				continue
			case <-ctx.Done():
				return sb, false, leftWaiting(ctx)
			}
		}
		if mk != nil {
			if err := m.claims.await(ctx, mk); err != nil {
				return sb, made, err
			}
		}
		sb, err = m.Get(caller, m.claims.claimed(cl))
		if err == nil || !errors.Is(err, api.ErrNotFound) {
			return sb, made, err
		}
		// It was removed in between: what became of the key is known now.
		if m.tombstones.Key(caller.Tenant, key) == nil {
			return sb, made, err
		}
	}
}

// claimed is the id of the sandbox of a claim.
func (c *claims) claimed(cl *claim) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cl.sandbox
}

// claim finds what a key stands for, or begins to make it. mk is what is to be waited
// for; nil is nothing. A nil cl is that mk must be over before anything begins.
func (c *claims) claim(ctx context.Context, tenant, key, digest string, create func(context.Context) (api.Sandbox, error)) (cl *claim, mk *keyedCreate, made bool, err error) {
	k := nameKey{tenant, key}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.m.tombstones.Key(tenant, key); e != nil {
		if e.Digest != "" && e.Digest != digest {
			return nil, nil, false, otherRequest()
		}
		return nil, nil, false, buried(e)
	}
	cl = c.byKey[k]
	switch {
	case cl == nil:
	case cl.digest != digest:
		return nil, nil, false, otherRequest()
	case cl.creating == nil:
		return cl, nil, false, nil
	case cl.creating.waiters == 0:
		return nil, cl.creating, false, nil
	default:
		cl.creating.waiters++
		return cl, cl.creating, false, nil
	}
	mctx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	mk = &keyedCreate{waiters: 1, stop: stop, done: make(chan struct{})}
	cl = &claim{digest: digest, creating: mk}
	if !c.m.background(func() { c.fulfil(mctx, k, cl, mk, create) }) {
		stop(nil)
		return nil, nil, false, api.Errorf(api.CodeUnavailable, "the daemon is shutting down")
	}
	c.byKey[k] = cl
	return cl, mk, true, nil
}

// fulfil makes the sandbox of a claim.
func (c *claims) fulfil(ctx context.Context, k nameKey, cl *claim, mk *keyedCreate, create func(context.Context) (api.Sandbox, error)) {
	defer mk.stop(nil)
	end := context.AfterFunc(c.m.ctx, func() { mk.stop(c.m.ctx.Err()) })
	defer end()
	sb, err := create(ctx)
	c.mu.Lock()
	unwanted, deleted := mk.waiters == 0, mk.deleted
	if err == nil && !unwanted && !deleted {
		cl.sandbox, cl.creating = sb.ID, nil
		close(mk.done)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	if err == nil {
		c.unmake(sb.ID, deleted)
		err = canceled(ctx, "key", errUnwanted)
	}
	if deleted {
		err = forestalledError()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey[k] == cl {
		delete(c.byKey, k)
	}
	mk.err = err
	close(mk.done)
}

// unmake removes a sandbox that no caller waits for. Its key is free again, unless it was deleted
// by key.
func (c *claims) unmake(id string, deleted bool) {
	c.m.mu.Lock()
	s := c.m.byID[id]
	c.m.mu.Unlock()
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
	if _, err := c.m.remove(c.m.ctx, s, w); err != nil {
		c.m.log.Error("remove an abandoned sandbox; it is being retried", "sandbox", id, "error", err)
	}
}

// await waits for a creation. The last one to leave ends it.
func (c *claims) await(ctx context.Context, mk *keyedCreate) error {
	select {
	case <-mk.done:
		return mk.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-mk.done:
		return mk.err
	default:
	}
	if mk.waiters--; mk.waiters == 0 {
		mk.stop(errUnwanted)
	}
	return leftWaiting(ctx)
}

// leftWaiting is the error of a caller that did not wait for its sandbox.
func leftWaiting(ctx context.Context) *api.Error {
	return api.Errorf(api.CodeCanceled, "the create was canceled while it waited for its sandbox").WithCause(ctx.Err())
}

// otherRequest is the error for a key that stands for something else.
func otherRequest() *api.Error {
	err := api.Errorf(api.CodeConflict, "the idempotency key stands for another request")
	err.Field = "idempotency_key"
	return err.WithHint("repeat a request as it was, or give another one another key")
}

// buried is the error for a key that no longer creates a sandbox.
func buried(e *tombstone.Record) *api.Error {
	err := api.Errorf(api.CodeConflict, "what the idempotency key stands for was deleted")
	err.Field, err.TerminalReason = "idempotency_key", e.Sandbox.TerminalReason
	return err.WithHint("a new sandbox needs a new key; this one is free again 24 hours after the delete")
}

// DeleteKeyed deletes what an idempotency key of the caller's tenant stands for, also
// what is being made and what is yet to come: for 24 hours no create with the key
// makes anything. Repeating it changes nothing.
func (m *Manager) DeleteKeyed(ctx context.Context, caller policy.Caller, key string) (api.Sandbox, error) {
	k := nameKey{caller.Tenant, key}
	m.claims.mu.Lock()
	if e := m.tombstones.Key(caller.Tenant, key); e != nil {
		m.claims.mu.Unlock()
		if id := e.Sandbox.ID; m.listed(id) {
			return m.Delete(ctx, caller, id) // its removal goes on
		}
		return e.Sandbox, nil
	}
	cl := m.claims.byKey[k]
	if cl != nil && cl.creating == nil {
		id := cl.sandbox
		m.claims.mu.Unlock()
		return m.Delete(ctx, caller, id)
	}
	e := &tombstone.Record{At: now(), Sandbox: api.Sandbox{
		State: api.StateDeleted, TerminalReason: api.EndedDeleted, IdempotencyKey: key, Tenant: caller.Tenant, CreatedAt: now(),
	}}
	if cl != nil {
		e.Digest = cl.digest
	}
	// Its word is what the caller relies on: without it nothing is promised.
	if err := m.tombstones.Add(e); err != nil {
		m.claims.mu.Unlock()
		return api.Sandbox{}, api.Errorf(api.CodeInternal, "that the key is deleted could not be put on record").WithCause(err)
	}
	if cl == nil {
		m.claims.mu.Unlock()
		return e.Sandbox, nil
	}
	mk := cl.creating
	mk.deleted = true
	mk.stop(errForestalled)
	m.claims.mu.Unlock()
	m.reaper.poke()
	select {
	case <-mk.done:
		return e.Sandbox, nil
	case <-ctx.Done():
		return e.Sandbox, api.Errorf(api.CodeTimeout, "the creation is still being undone").WithCause(ctx.Err())
	}
}
