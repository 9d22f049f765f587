package policy

import (
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// ruleKey is the rule of idempotency keys.
const ruleKey = "idempotency_key"

// CheckKey validates an idempotency key.
func CheckKey(key string) error {
	if api.ValidIdempotencyKey(key) {
		return nil
	}
	return badKey(key)
}

// checkKey validates the key of a create.
func checkKey(d *decision) *api.Error {
	if key := d.spec.IdempotencyKey; key != "" && !api.ValidIdempotencyKey(key) {
		return badKey(key)
	}
	return nil
}

func badKey(key string) *api.Error {
	return api.Invalid(ruleKey, "the idempotency key %s is not valid", rules.Quote(key)).
		WithHint("use 1 to %d printable ASCII characters without spaces", api.MaxIdempotencyKey)
}

// NoKey refuses an idempotency key in a request whose sandbox ends with the call.
func NoKey(spec api.SandboxSpec) error {
	if spec.IdempotencyKey == "" {
		return nil
	}
	return api.Invalid("spec."+ruleKey, "a call whose sandbox ends with it cannot be repeated by a key").
		WithHint("create the sandbox with the key, and run the program with an exec_id of yours")
}

// ExtendPermit grants a longer lifetime to a sandbox. Only DecideExtend returns a valid one.
type ExtendPermit struct {
	valid    bool
	lifetime time.Duration
	exact    bool
	profile  rules.Profile
	field    string
}

// Valid reports whether DecideExtend returned p.
func (p ExtendPermit) Valid() bool { return p.valid }

// Exact reports whether the lifetime may become shorter.
func (p ExtendPermit) Exact() bool { return p.exact }

// Total returns the lifetime of a sandbox that has run for some time, or why it would be too long.
// A ceiling limits the whole lifetime, however often it is extended.
func (p ExtendPermit) Total(ran time.Duration) (time.Duration, *api.Adjustment, error) {
	total := float64((ran + p.lifetime).Milliseconds())
	for _, l := range rules.TimeLimits() {
		if l.Field != rules.FieldLifetime {
			continue
		}
		fitted, adjusted, err := l.Fit(&p.profile, p.field, total, false)
		if err != nil {
			return 0, nil, err
		}
		return time.Duration(fitted) * time.Millisecond, adjusted, nil
	}
	return 0, nil, api.Errorf(api.CodeInternal, "there is no limit %s", rules.FieldLifetime)
}

// DecideExtend grants an extension of a sandbox with these settings, or returns why not.
func DecideExtend(x api.Extension, in Settings, caller Caller, set rules.Rules) (ExtendPermit, error) {
	if err := Authorize(caller, VerbExtend, in.Ref, in.Tenant, in.Profile); err != nil {
		return ExtendPermit{}, err
	}
	p, ok := rules.ResolveProfile(in.Profile, set)
	if !ok {
		return ExtendPermit{}, profileGone(in.Profile, set)
	}
	const field = "lifetime_ms"
	if slices.Contains(p.Locked, rules.FieldLifetime) {
		rule := rules.KeyPath(p.Name, "locked", rules.FieldLifetime)
		return ExtendPermit{}, rules.Denied(rule, field, "profile %s locks how long a sandbox lives", rules.Quote(p.Name)).WithHint("make another sandbox")
	}
	for _, l := range rules.TimeLimits() {
		if l.Field != rules.FieldLifetime {
			continue
		}
		if x.LifetimeMS == 0 {
			return ExtendPermit{}, api.Invalid(field, "no lifetime was asked for").WithHint("say for how long it may live from now on, in milliseconds")
		}
		if err := l.Check(field, float64(x.LifetimeMS)); err != nil {
			return ExtendPermit{}, err
		}
	}
	return ExtendPermit{valid: true, lifetime: time.Duration(x.LifetimeMS) * time.Millisecond, exact: x.Exact, profile: p, field: field}, nil
}
