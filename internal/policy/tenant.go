package policy

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// TenantRule has the limits of one tenant. Each overrides the limit for all tenants.
type TenantRule struct {
	// MaxSandboxes limits its live sandboxes; 0 is unlimited.
	MaxSandboxes *int `yaml:"max_sandboxes"`
	// MaxSnapshots and MaxSnapshotBytes limit its snapshots; 0 is the default.
	MaxSnapshots     *int  `yaml:"max_snapshots"`
	MaxSnapshotBytes *Size `yaml:"max_snapshot_bytes"`
	// MaxWorkspaces limits its named workspaces; 0 is the default.
	MaxWorkspaces *int `yaml:"max_workspaces"`
	// Rate limits its requests.
	Rate *RateRule `yaml:"rate"`
	// Egress is what it can request in addition to what all tenants can, and its limits.
	Egress EgressPart `yaml:"egress"`
}

// RateRule limits requests: a number in a period, and a burst after a pause.
type RateRule struct {
	// Requests is the number of requests in each Per; 0 is unlimited.
	Requests int `yaml:"requests"`
	// Per is the period. The default is one second.
	Per Duration `yaml:"per"`
	// Burst is the maximum burst; 0 is Requests.
	Burst int `yaml:"burst"`
}

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
func RateOf(caller Caller, rules Rules) (Rate, bool) {
	if caller.Operator {
		return Rate{}, false
	}
	r, rule := rules.Rate, "rate"
	if own := rules.Tenants[caller.Tenant].Rate; own != nil {
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
func quotaOf(r Rules, tenant string) Quota {
	n, rule := limitFor(r, tenant, r.MaxSandboxesPerTenant, "max_sandboxes_per_tenant", "max_sandboxes", func(t TenantRule) *int { return t.MaxSandboxes })
	return Quota{Total: max(r.MaxSandboxes, 0), Tenant: max(n, 0), rule: rule}
}

// limitFor returns a limit for all tenants, or one tenant's own, with its rule.
func limitFor[T int | Size](r Rules, tenant string, all T, allKey, ownKey string, own func(TenantRule) *T) (T, string) {
	if t, ok := r.Tenants[tenant]; ok {
		if v := own(t); v != nil {
			return *v, "tenants." + tenant + "." + ownKey
		}
	}
	return all, allKey
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

// maxPer is the longest period of a rate.
const maxPer = Duration(24 * time.Hour)

func ruleTenants(r Rules, report reporter) {
	ruleRate("rate", r.Rate, report)
	for _, name := range slices.Sorted(maps.Keys(r.Tenants)) {
		field, t := "tenants."+bounded(name), r.Tenants[name]
		if !api.ValidName(name) {
			report(api.Invalid(field, "tenant %s is not valid", show(name)).WithHint("%s", nameHint()))
		}
		for _, c := range []struct {
			key string
			n   *int
		}{{"max_sandboxes", t.MaxSandboxes}, {"max_snapshots", t.MaxSnapshots}, {"max_workspaces", t.MaxWorkspaces}} {
			if c.n != nil && *c.n < 0 {
				report(api.Invalid(field+"."+c.key, "%s.%s is %d", field, c.key, *c.n).WithHint("write a positive number, or 0 for the default"))
			}
		}
		ruleRate(field+".rate", t.Rate, report)
	}
}

func ruleRate(field string, r *RateRule, report reporter) {
	if r == nil {
		return
	}
	const most = 1 << 20
	for _, c := range []struct {
		key string
		n   int
	}{{"requests", r.Requests}, {"burst", r.Burst}} {
		if c.n < 0 || c.n > most {
			report(api.Invalid(field+"."+c.key, "%s.%s is %d", field, c.key, c.n).WithHint("write a number of requests, at most %d", most))
		}
	}
	if r.Per < 0 || r.Per > maxPer {
		report(api.Invalid(field+".per", "%s.per is %s", field, time.Duration(r.Per)).WithHint("write a time such as 1s or 1m, at most 24h"))
	}
}
