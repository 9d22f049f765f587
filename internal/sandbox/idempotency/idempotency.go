// Package idempotency has the idempotency keys of creates: one key is one sandbox, for all callers that ask at once. Keys of
// removed sandboxes are in the store of tombstones.
package idempotency

import (
	"context"
	"errors"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox/tombstone"
)

// Options are what Keys need from their owner.
type Options struct {
	// Context ends all creations.
	Context context.Context
	// Background runs a function that the owner waits for, or returns false if it has closed.
	Background func(func()) (runs bool)
	// Tombstones have the keys of removed sandboxes.
	Tombstones *tombstone.Store
	// Discard removes a sandbox that no caller waits for, or whose key was deleted meanwhile.
	Discard func(id string, deleted bool)
}

// Keys are the keys that stand for a sandbox on record, or for one that is being created. They are safe for concurrent use.
type Keys struct {
	o     Options
	mu    sync.Mutex
	byKey map[place]*claim
}

// place is a key in its tenant.
type place struct{ tenant, key string }

// claim is one key. Its fields are guarded by the mu of Keys.
type claim struct {
	digest string
	// sandbox is the ID of what was created.
	sandbox string
	// creating is nil when that is over.
	creating *creation
}

// creation is a create that callers wait for. It belongs to none of them.
type creation struct {
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

// ErrDeleted is the cause of the end of a creation whose key or sandbox was deleted.
var ErrDeleted = errors.New("it was deleted while it was being created")

// DeletedError is the error of a create whose sandbox was deleted meanwhile.
func DeletedError() *api.Error {
	err := api.Errorf(api.CodeConflict, "the sandbox was deleted while it was being created")
	err.TerminalReason = api.EndedDeleted
	return err
}

// New returns Keys without any.
func New(o Options) *Keys { return &Keys{o: o, byKey: map[place]*claim{}} }

// Digest returns the digest of the request that a key stands for, or an empty string.
func (k *Keys) Digest(tenant, key string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if cl := k.byKey[place{tenant, key}]; key != "" && cl != nil {
		return cl.digest
	}
	return ""
}

// Waiters returns how many callers wait for the creation of a key.
func (k *Keys) Waiters(tenant, key string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if cl := k.byKey[place{tenant, key}]; cl != nil && cl.creating != nil {
		return cl.creating.waiters
	}
	return 0
}

// Adopt adds the key of a sandbox that an earlier daemon created. An empty key does nothing.
func (k *Keys) Adopt(tenant, key, digest, sandbox string) {
	if key == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.byKey[place{tenant, key}] = &claim{digest: digest, sandbox: sandbox}
}

// Drop removes the key of a sandbox that is removed, or never was created. An empty key does nothing.
func (k *Keys) Drop(tenant, key, sandbox string) {
	if key == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	at := place{tenant, key}
	if cl := k.byKey[at]; cl != nil && cl.creating == nil && cl.sandbox == sandbox {
		delete(k.byKey, at)
	}
}

// Create returns the ID of the sandbox of a key. If it does not exist, the create function of one caller creates it, and
// all callers that ask in the meantime wait for it. The context of create has the values of that caller's context and
// ends when no caller waits any more. In that case nothing is left of the sandbox. digest identifies the request. made is
// true for the caller whose create was used.
func (k *Keys) Create(ctx context.Context, tenant, key, digest string, create func(context.Context) (id string, err error)) (id string, made bool, err error) {
	for {
		cl, c, made, err := k.claim(ctx, place{tenant, key}, digest, create)
		if err != nil {
			return "", false, err
		}
		if cl == nil {
			// The previous creation is being undone, because no caller waited for it. A new one
			// begins after that.
			select {
			case <-c.done:
				continue
			case <-ctx.Done():
				return "", false, leftWaiting(ctx)
			}
		}
		if c != nil {
			if err := k.await(ctx, c); err != nil {
				return "", made, err
			}
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		return cl.sandbox, made, nil
	}
}

// claim finds what a key stands for, or begins to create it. The creation is to be waited for; nil is nothing. A nil
// claim is that the creation must be over before anything begins.
func (k *Keys) claim(ctx context.Context, at place, digest string, create func(context.Context) (string, error)) (cl *claim, c *creation, made bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.o.Tombstones.Key(at.tenant, at.key); e != nil {
		if e.Digest != "" && e.Digest != digest {
			return nil, nil, false, otherRequest()
		}
		return nil, nil, false, buried(e)
	}
	cl = k.byKey[at]
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
	creating, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	c = &creation{waiters: 1, stop: stop, done: make(chan struct{})}
	cl = &claim{digest: digest, creating: c}
	if !k.o.Background(func() { k.fulfil(creating, at, cl, c, create) }) {
		stop(nil)
		return nil, nil, false, api.Errorf(api.CodeUnavailable, "the daemon is shutting down")
	}
	k.byKey[at] = cl
	return cl, c, true, nil
}

// fulfil creates the sandbox of a claim.
func (k *Keys) fulfil(ctx context.Context, at place, cl *claim, c *creation, create func(context.Context) (string, error)) {
	defer c.stop(nil)
	end := context.AfterFunc(k.o.Context, func() { c.stop(k.o.Context.Err()) })
	defer end()
	id, err := create(ctx)
	k.mu.Lock()
	unwanted, deleted := c.waiters == 0, c.deleted
	if err == nil && !unwanted && !deleted {
		cl.sandbox, cl.creating = id, nil
		close(c.done)
		k.mu.Unlock()
		return
	}
	k.mu.Unlock()
	if err == nil {
		k.o.Discard(id, deleted)
		err = api.Errorf(api.CodeCanceled, "the create was canceled at step key").WithCause(errUnwanted)
	}
	if deleted {
		err = DeletedError()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.byKey[at] == cl {
		delete(k.byKey, at)
	}
	c.err = err
	close(c.done)
}

// await waits for a creation. The last one to leave ends it.
func (k *Keys) await(ctx context.Context, c *creation) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	default:
	}
	if c.waiters--; c.waiters == 0 {
		c.stop(errUnwanted)
	}
	return leftWaiting(ctx)
}

// Deletion is what Delete found.
type Deletion struct {
	// Sandbox is the ID of the sandbox of the key, which the caller deletes; it is empty for none.
	Sandbox string
	// Record is what stays known of the key.
	Record *tombstone.Record
	// Undone is closed when the creation that was ended is undone; nil is no creation.
	Undone <-chan struct{}
}

// Delete deletes a key: for 24 hours no create with the key makes anything. Repeating it changes nothing. A creation that is
// under way ends.
func (k *Keys) Delete(tenant, key string, at func() *tombstone.Record) (Deletion, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.o.Tombstones.Key(tenant, key); e != nil {
		return Deletion{Record: e}, nil
	}
	cl := k.byKey[place{tenant, key}]
	if cl != nil && cl.creating == nil {
		return Deletion{Sandbox: cl.sandbox}, nil
	}
	e := at()
	if cl != nil {
		e.Digest = cl.digest
	}
	// Its word is what the caller relies on: without it nothing is promised.
	if err := k.o.Tombstones.Add(e); err != nil {
		return Deletion{}, api.Errorf(api.CodeInternal, "that the key is deleted could not be put on record").WithCause(err)
	}
	if cl == nil {
		return Deletion{Record: e}, nil
	}
	cl.creating.deleted = true
	cl.creating.stop(ErrDeleted)
	return Deletion{Record: e, Undone: cl.creating.done}, nil
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
