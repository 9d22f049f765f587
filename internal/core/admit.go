package core

import (
	"context"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Authenticate names the caller who showed an API key. live ends when the key does,
// with the error that the caller then gets as its cause; it is nil where the key is
// none.
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

// Admit is what an API server asks once for each request, before it calls the verb: whether
// the caller's key is for that verb, and whether its tenant may ask again yet.
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
		// One record says that it began: one for each would be a flood of its own.
		return s.refused(ctx, caller, verb, "", nil, err)
	}
	return err
}

// rates count how often each tenant asks. The zero value has counted nothing.
type rates struct {
	mu      sync.Mutex
	buckets map[string]*bucket
}

// bucket holds what a tenant has saved up of its rate.
type bucket struct {
	tokens float64
	at     time.Time
	// dry: the last request was refused.
	dry bool
}

// maxBuckets is when those that are full again are forgotten.
const maxBuckets = 1024

// take takes one request of a tenant's, or says how long it must wait for it. first
// is true for the first refusal after a request that was granted.
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
	// A clock that goes backwards takes nothing away.
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

// forget drops tenants that have not asked for a day, the longest time over which a
// rate counts. It needs r.mu.
func (r *rates) forget(now time.Time) {
	for tenant, b := range r.buckets {
		if now.Sub(b.at) > 24*time.Hour {
			delete(r.buckets, tenant)
		}
	}
}
