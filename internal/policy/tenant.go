package policy

import (
	"math"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Rate is a tenant's request rate.
type Rate struct {
	// PerSecond is the number of requests per second.
	PerSecond float64
	// Burst is the maximum burst.
	Burst int
	// Rule is the rule that sets it.
	Rule string
}

// RateOf returns the request rate of a caller, or false if it has no limit. The operator has no
// limit, because it must always be able to stop an overload.
func RateOf(caller Caller, set rules.Rules) (Rate, bool) {
	if caller.Operator {
		return Rate{}, false
	}
	r, rule := set.Rate, "rate"
	if own := set.Tenants[caller.Tenant].Rate; own != nil {
		r, rule = own, "tenants."+caller.Tenant+".rate"
	}
	if r == nil || r.Requests <= 0 {
		return Rate{}, false
	}
	per := time.Duration(r.Per)
	if per <= 0 {
		per = time.Second
	}
	burst := r.Burst
	if burst <= 0 {
		burst = r.Requests
	}
	return Rate{PerSecond: float64(r.Requests) / per.Seconds(), Burst: burst, Rule: rule}, true
}

// TooFast is the error for a caller that exceeded its rate and must wait.
func TooFast(rate Rate, wait time.Duration) *api.Error {
	e := tooMany(rate.Rule, "this tenant asks too often: %s allows %g requests a second", rate.Rule, math.Round(rate.PerSecond*1000)/1000)
	e.RetryAfterMS = max(1, int64(math.Ceil(float64(wait)/float64(time.Millisecond))))
	return e.WithHint("ask again after the time in Retry-After, and less often; the operator's rule is %s", rate.Rule)
}

// tooMany returns the error for a limit of the caller's own tenant.
func tooMany(rule, format string, args ...any) *api.Error {
	e := api.Errorf(api.CodeTooMany, format, args...)
	e.Rule, e.Retryable, e.RetryAfterMS = rule, true, retryAfterMS
	return e
}

// quota returns the maximum number of live sandboxes.
func quotaOf(r rules.Rules, tenant string) Quota {
	n, rule := rules.LimitFor(r, tenant, r.MaxSandboxesPerTenant, "max_sandboxes_per_tenant", "max_sandboxes", func(t rules.TenantRule) *int { return t.MaxSandboxes })
	return Quota{Total: max(r.MaxSandboxes, 0), Tenant: max(n, 0), rule: rule}
}

// Check returns an error if there is no capacity for another sandbox. Only the operator is told the
// total. The error for the total is not returned to a tenant that is at its own limit.
func (q Quota) Check(own, all int, operator bool) error {
	if err := q.check(own, all, operator); err != nil {
		return err
	}
	return nil
}

func (q Quota) check(own, all int, operator bool) *api.Error {
	if q.Tenant > 0 && own >= q.Tenant {
		return tooMany(q.rule, "too many sandboxes: %d are live and %s is %d", own, q.rule, q.Tenant).
			WithHint("remove one, or retry later")
	}
	if q.Total <= 0 || all < q.Total {
		return nil
	}
	e := api.Errorf(api.CodeNoCapacity, "no capacity for another sandbox: the server is full").WithHint("retry later")
	if operator {
		e = api.Errorf(api.CodeNoCapacity, "no capacity for another sandbox: %d are live and max_sandboxes is %d", all, q.Total).
			WithHint("remove one, or retry later")
	}
	e.Rule, e.Retryable, e.RetryAfterMS = "max_sandboxes", true, retryAfterMS
	return e
}

// retryAfterMS is the retry delay that a caller gets when there is no capacity.
const retryAfterMS = 5000
