package policy

import (
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// egress is the caller as decisions about egress see it.
func (c Caller) egress() egressCaller {
	return egressCaller{tenant: c.Tenant, operator: c.Operator}
}

func (s Settings) egress() egressSandbox { return egressSandbox{tenant: s.Tenant, profile: s.Profile} }

// DecideEgressChange grants a change of the rules of a running sandbox, or returns why not. Added
// rules are judged as in a create, with the rights of the present caller. Earlier grants stay,
// except for what the operator denies now.
func DecideEgressChange(c api.EgressChange, g EgressGrant, s Settings, caller Caller, set rules.Rules, now time.Time) (EgressGrant, error) {
	return decideChange(c, g, s.egress(), caller.egress(), set, now)
}

// RefreshEgress updates a grant to the operator's present rules: the deny rules, the route and the
// request rules. What callers requested stays.
func RefreshEgress(g EgressGrant, s Settings, set rules.Rules, now time.Time) (EgressGrant, error) {
	return refresh(g, s.egress(), set, now)
}

// DecideEgressPolicy grants a new complete policy to a running sandbox with a link, or returns why
// not. All of it is judged as in a create, with the rights of the present caller. What the operator
// added to this sandbox stays, and limits start to count from the present usage.
func DecideEgressPolicy(asked api.EgressPolicy, g EgressGrant, used api.EgressLimits, s Settings, caller Caller, set rules.Rules, now time.Time) (EgressGrant, error) {
	return decidePolicy(asked, g, used, s.egress(), caller.egress(), set, now)
}

// SucceedEgress updates an earlier decision for a sandbox in which g is in force, with the
// operator's present rules and those added to this sandbox.
func SucceedEgress(next, g EgressGrant, used api.EgressLimits, s Settings, set rules.Rules, now time.Time) (EgressGrant, error) {
	return succeed(next, g, used, s.egress(), set, now)
}
