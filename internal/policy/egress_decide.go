package policy

import (
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/egress"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// EgressGrant is what a sandbox may reach: see egress.Grant.
type EgressGrant = egress.Grant

// TemporaryRule is a rule that ends: see egress.TemporaryRule.
type TemporaryRule = egress.TemporaryRule

// NoEgress is the error for a sandbox without a network whose rules could change.
func NoEgress() *api.Error { return egress.NoNetwork() }

// egress is the caller as decisions about egress see it.
func (c Caller) egress() egress.Caller {
	return egress.Caller{Tenant: c.Tenant, Operator: c.Operator}
}

func (s Settings) egress() egress.Sandbox {
	return egress.Sandbox{Tenant: s.Tenant, Profile: s.Profile}
}

// DecideEgressChange grants a change of the rules of a running sandbox, or returns why not. Added
// rules are judged as in a create, with the rights of the present caller. Earlier grants stay,
// except for what the operator denies now.
func DecideEgressChange(c api.EgressChange, g EgressGrant, s Settings, caller Caller, set rules.Rules, now time.Time) (EgressGrant, error) {
	return egress.DecideChange(c, g, s.egress(), caller.egress(), set, now)
}

// RefreshEgress updates a grant to the operator's present rules: the deny rules, the route and the
// request rules. What callers requested stays.
func RefreshEgress(g EgressGrant, s Settings, set rules.Rules, now time.Time) (EgressGrant, error) {
	return egress.Refresh(g, s.egress(), set, now)
}

// DecideEgressPolicy grants a new complete policy to a running sandbox with a link, or returns why
// not. All of it is judged as in a create, with the rights of the present caller. What the operator
// added to this sandbox stays, and limits start to count from the present usage.
func DecideEgressPolicy(asked api.EgressPolicy, g EgressGrant, used api.EgressLimits, s Settings, caller Caller, set rules.Rules, now time.Time) (EgressGrant, error) {
	return egress.DecidePolicy(asked, g, used, s.egress(), caller.egress(), set, now)
}

// SucceedEgress updates an earlier decision for a sandbox in which g is in force, with the
// operator's present rules and those added to this sandbox.
func SucceedEgress(next, g EgressGrant, used api.EgressLimits, s Settings, set rules.Rules, now time.Time) (EgressGrant, error) {
	return egress.Succeed(next, g, used, s.egress(), set, now)
}
