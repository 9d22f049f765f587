package policy

import (
	"encoding/json"

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
