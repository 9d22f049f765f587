package core

import (
	"context"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Authenticate returns the caller of an API key. live ends when the key is revoked or expires, and
// its cause is the error for the caller. It is nil if the token is not a key.
func (s *Service) Authenticate(token string) (caller Caller, live context.Context, err error) {
	if s.opts.Keys == nil {
		return Caller{}, nil, api.Errorf(api.CodeUnauthenticated, "the request shows no valid token").
			WithHint("keys are for callers of a daemon")
	}
	k, live, err := s.opts.Keys.Verify(token)
	if err != nil {
		return Caller{}, nil, err
	}
	return policy.KeyCaller(k), live, nil
}

// CallerOfKey returns the caller of an API key by the ID of the key, for an API server that keeps which
// key created a sandbox. A key that is revoked or expired is api.CodeUnauthenticated.
func (s *Service) CallerOfKey(id string) (Caller, error) {
	if s.opts.Keys == nil {
		return Caller{}, api.Errorf(api.CodeUnauthenticated, "this daemon has no keys")
	}
	k, err := s.opts.Keys.Live(id)
	if err != nil {
		return Caller{}, err
	}
	return policy.KeyCaller(k), nil
}

// Admit must be called once for each request, before the operation. It checks that the caller's key
// allows the operation, and that its tenant is within its request rate.
func (s *Service) Admit(ctx context.Context, caller Caller, verb Verb) error {
	if err := policy.AuthorizeVerb(caller, verb); err != nil {
		return s.refused(ctx, caller, verb, "", nil, err)
	}
	rate, bounded := policy.RateOf(caller, s.rules())
	if !bounded {
		return nil
	}
	wait, first := s.rates.take(caller.Tenant, rate, time.Now())
	if wait == 0 {
		return nil
	}
	err := policy.TooFast(rate, wait)
	if first {
		// One record says that refusals began. A record for each refusal would be a flood too.
		return s.refused(ctx, caller, verb, "", nil, err)
	}
	return err
}

// rates counts the requests of each tenant. The zero value is ready to use.
type rates struct {
	mu      sync.Mutex
	buckets map[string]*bucket
}

// bucket holds the unused requests of a tenant.
type bucket struct {
	tokens float64
	at     time.Time
	// dry means that the last request was refused.
	dry bool
}

// maxBuckets is the number of buckets above which full ones are dropped.
const maxBuckets = 1024

// take takes one request of a tenant, or returns how long the tenant must wait. first is true for
// the first refusal after a granted request.
func (r *rates) take(tenant string, rate policy.Rate, now time.Time) (wait time.Duration, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.buckets[tenant]
	if b == nil {
		if len(r.buckets) >= maxBuckets {
			r.forget(now)
		}
		if r.buckets == nil {
			r.buckets = map[string]*bucket{}
		}
		b = &bucket{tokens: float64(rate.Burst), at: now}
		r.buckets[tenant] = b
	}
	// A clock that goes backwards removes nothing.
	b.tokens = min(float64(rate.Burst), b.tokens+max(0, now.Sub(b.at).Seconds())*rate.PerSecond)
	b.at = now
	if b.tokens >= 1 {
		b.tokens--
		b.dry = false
		return 0, false
	}
	first, b.dry = !b.dry, true
	wait = time.Duration((1 - b.tokens) / rate.PerSecond * float64(time.Second))
	return max(wait, time.Millisecond), first
}

// forget drops tenants without a request for a day, which is the longest period of a rate. The
// caller holds r.mu.
func (r *rates) forget(now time.Time) {
	for tenant, b := range r.buckets {
		if now.Sub(b.at) > 24*time.Hour {
			delete(r.buckets, tenant)
		}
	}
}
