package policy

import (
	"encoding/json"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/egress"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Egress returns the initial egress. It returns false if the sandbox has no link.
func (p Permit) Egress() (EgressGrant, bool) {
	if p.first != nil {
		return p.first.Clone(), true
	}
	return p.LaterEgress()
}

// LaterEgress returns the egress after a setup with its own network. It is the same as Egress if
// there is no such setup.
func (p Permit) LaterEgress() (EgressGrant, bool) {
	if p.egress == nil {
		return EgressGrant{}, false
	}
	return p.egress.Clone(), true
}

// Opens reports whether the TLS of some hosts is intercepted, initially or later.
func (p Permit) Opens() bool {
	opens := func(g *EgressGrant) bool { return g != nil && len(g.Requests)+len(g.Demanded) > 0 }
	return opens(p.first) || opens(p.egress)
}

// checkNetwork decides whether there is a network, before its rules.
func checkNetwork(d *decision) *api.Error {
	asked := d.spec.Egress != nil
	switch d.spec.Network {
	case "":
		d.spec.Network = d.profile.Network
		if asked {
			d.spec.Network = rules.NetworkOn
		}
	case rules.NetworkNone:
		if !asked {
			break
		}
		if !d.profile.Locks(rules.FieldNetwork) {
			return api.Invalid(rules.FieldEgress, "egress was asked for, and network is %q", rules.NetworkNone).
				WithHint("leave network out, or write %q; or leave egress out", rules.NetworkOn)
		}
	case rules.NetworkOn:
	default:
		return api.Invalid("network", "network %s is not known", rules.Quote(d.spec.Network)).
			WithHint("write %q or %q, or leave network out for the profile's", rules.NetworkNone, rules.NetworkOn)
	}
	if d.spec.Network == rules.NetworkNone && asked {
		// The lock removed the network and its egress.
		data, err := json.Marshal(d.spec.Egress)
		if err != nil {
			return api.Errorf(api.CodeInternal, "show what was asked for: %w", err)
		}
		d.adjust(rules.FieldEgress, rules.Shorten(string(data)), "", rules.KeyPath(d.profile.Name, "locked", rules.FieldNetwork))
		d.spec.Egress = nil
	}
	return nil
}

// checkEgress decides the egress.
func checkEgress(d *decision) *api.Error {
	if d.spec.Network != rules.NetworkOn {
		return nil
	}
	asked := api.Egress{}
	if d.spec.Egress != nil {
		asked = *d.spec.Egress
	}
	w := egress.Request{Tenant: d.caller.Tenant, Caller: d.caller.egress(), Profile: d.profile, Rules: d.rules, Because: d.because}
	g, err := w.Grant(asked)
	if err != nil {
		return err
	}
	d.egress = &g
	d.spec.Egress = new(egress.Clone(g.Shown))
	return nil
}

// checkLink checks that the engine and this build support what was granted.
func checkLink(d *decision) *api.Error {
	if d.egress == nil && d.first == nil {
		return nil
	}
	if can := d.engine.Enforces["egress"]; !can.OK {
		reason := can.Reason
		switch {
		case !d.caller.Operator:
			reason = "the operator sees why"
		case reason == "":
			reason = "the engine reports no support for it"
		}
		return unsupported("network", "network %q was asked for, and engine %s cannot hold a sandbox to rules of egress here: %s", rules.NetworkOn, d.engine.Name, reason).
			WithHint("run without a network, or choose another engine")
	}
	for _, g := range []*EgressGrant{d.first, d.egress} {
		if g == nil {
			continue
		}
		if d.facts.NoApproval != nil && g.Ask {
			return new(*d.facts.NoApproval)
		}
		if d.facts.NoInterception != nil && len(g.Requests)+len(g.Demanded) > 0 {
			return new(*d.facts.NoInterception)
		}
	}
	return nil
}

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

// checkSetupEgress decides the egress during setup, before the request's own egress takes effect.
// Both are judged before anything begins.
func checkSetupEgress(d *decision) *api.Error {
	if d.setup == nil {
		return nil
	}
	w := egress.Request{Tenant: d.caller.Tenant, Caller: d.caller.egress(), Profile: d.profile, Rules: d.rules, Because: d.because}
	first, err := w.Whole("setup.", *d.setup)
	if err != nil {
		return err
	}
	if first.Closed && d.egress == nil {
		return nil // there is never a link
	}
	if d.egress == nil {
		later := w.Closed()
		d.egress = &later
	}
	d.first = &first
	return nil
}
