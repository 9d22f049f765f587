package mockcore

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// keyring is the keys of a Core.
type keyring struct {
	mu   sync.Mutex
	keys []api.Key
	// live and end, by id.
	live map[string]context.Context
	end  map[string]context.CancelCauseFunc
}

// Authenticate takes "clk_" and the id of a key.
func (c *Core) Authenticate(token string) (core.Caller, context.Context, error) {
	c.ring.mu.Lock()
	defer c.ring.mu.Unlock()
	for _, k := range c.ring.keys {
		if token != "clk_"+k.ID {
			continue
		}
		live := c.ring.live[k.ID]
		if err := context.Cause(live); err != nil {
			return core.Caller{}, nil, err
		}
		return core.KeyCaller(k), live, nil
	}
	return core.Caller{}, nil, api.Errorf(api.CodeUnauthenticated, "the request shows no valid token").WithHint("show one")
}

// Admit keeps a key to its verbs, and tenant "hasty" to one request at all.
func (c *Core) Admit(_ context.Context, caller core.Caller, verb core.Verb) error {
	if caller.Tenant == "hasty" {
		e := api.Errorf(api.CodeTooMany, "this tenant asks too often").WithHint("wait")
		e.Rule, e.Retryable, e.RetryAfterMS = "rate", true, 1200
		return e
	}
	return core.AuthorizeVerb(caller, verb)
}

// CreateKey makes key-1, key-2, …
func (c *Core) CreateKey(_ context.Context, _ core.Caller, spec api.KeySpec) (api.NewKey, error) {
	c.ring.mu.Lock()
	defer c.ring.mu.Unlock()
	k := api.Key{
		ID: fmt.Sprintf("key-%d", len(c.ring.keys)+1), Tenant: spec.Tenant, Name: spec.Name, Verbs: spec.Verbs, Profiles: spec.Profiles, CreatedAt: Epoch(),
	}
	at := Epoch()
	k.ExpiresAt, k.LastUsedAt = &at, &at
	if c.ring.live == nil {
		c.ring.live, c.ring.end = map[string]context.Context{}, map[string]context.CancelCauseFunc{}
	}
	c.ring.live[k.ID], c.ring.end[k.ID] = context.WithCancelCause(context.Background())
	c.ring.keys = append(c.ring.keys, k)
	return api.NewKey{Key: k, Secret: "clk_" + k.ID}, nil
}

// Keys lists them.
func (c *Core) Keys(context.Context, core.Caller) (api.KeyList, error) {
	c.ring.mu.Lock()
	defer c.ring.mu.Unlock()
	return api.KeyList{Keys: slices.Clone(c.ring.keys)}, nil
}

// RevokeKey ends one.
func (c *Core) RevokeKey(_ context.Context, _ core.Caller, id string) (api.Key, error) {
	c.ring.mu.Lock()
	defer c.ring.mu.Unlock()
	for i, k := range c.ring.keys {
		if k.ID == id {
			at := Epoch()
			c.ring.keys[i].RevokedAt = &at
			c.ring.end[id](api.Errorf(api.CodeUnauthenticated, "the key %s was revoked", id).WithHint("ask for another"))
			return c.ring.keys[i], nil
		}
	}
	return api.Key{}, api.Errorf(api.CodeNotFound, "there is no key %.20q", id).WithHint("list them")
}

// ExplainPolicy allows everything but profile "forbidden".
func (c *Core) ExplainPolicy(_ context.Context, caller core.Caller, q api.PolicyQuestion) (api.PolicyAnswer, error) {
	a := api.PolicyAnswer{
		Allowed: q.Spec.Profile != "forbidden", Verb: "create", Tenant: caller.Tenant, Operator: caller.Operator,
		Steps: []api.PolicyStep{{Name: "verb"}, {Name: "profile", Refused: q.Spec.Profile == "forbidden"}}, Grants: []api.PolicyGrant{{Field: "image", Rule: "builtin"}},
	}
	if !a.Allowed {
		a.Refusal = api.Errorf(api.CodeDenied, "profile %q is not for this caller", q.Spec.Profile).WithHint("choose another")
		a.Refusal.Rule = "profiles"
	}
	return a, nil
}
