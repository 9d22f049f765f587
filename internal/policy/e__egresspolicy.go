package policy

import (
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// whole returns the grant of a complete policy. at is the prefix of field names.
func (w egressWish) whole(at string, asked api.EgressPolicy) (EgressGrant, *api.Error) {
	network := asked.Network
	switch {
	case network == "" && asked.Egress != nil:
		network = rules.NetworkOn
	case network == "":
		network = w.profile.Network
	case network != rules.NetworkOn && network != rules.NetworkNone:
		return EgressGrant{}, api.Invalid(at+"network", "network %s is not known", rules.Quote(network)).
			WithHint("write %q or %q, or leave it out for the profile's", rules.NetworkNone, rules.NetworkOn)
	case network == rules.NetworkNone && asked.Egress != nil:
		return EgressGrant{}, api.Invalid(at+"egress", "egress was asked for, and network is %q", rules.NetworkNone).
			WithHint("leave network out, or write %q; or leave egress out", rules.NetworkOn)
	}
	if network != w.profile.Network && network == rules.NetworkOn && w.profile.Locks(rules.FieldNetwork) {
		by := rules.KeyPath(w.profile.Name, "locked", rules.FieldNetwork)
		return EgressGrant{}, rules.Denied(by, at+"network", "the sandboxes of profile %s have no network", w.profile.Name).
			WithHint("make a sandbox of another profile; the operator's rule is %s", by)
	}
	if network == rules.NetworkNone {
		return w.closed(), nil
	}
	var egress api.Egress
	if asked.Egress != nil {
		egress = *asked.Egress
	}
	if w.profile.Locks(rules.FieldEgress) && egress.Allow != nil {
		by := rules.KeyPath(w.profile.Name, "locked", rules.FieldEgress)
		return EgressGrant{}, rules.Denied(by, at+"egress.allow", "the profile %s settles what its sandboxes may reach", w.profile.Name).
			WithHint("leave allow out, or make a sandbox of another profile; the operator's rule is %s", by)
	}
	return w.grant(egress)
}

// closed returns a grant that allows nothing.
func (w egressWish) closed() EgressGrant {
	return EgressGrant{Closed: true, Shown: api.Egress{Allow: []string{}}}
}

// decidePolicy grants a new complete policy to a running sandbox with a link, or returns why
// not. All of it is judged as in a create, with the rights of the present caller. What the operator
// added to this sandbox stays, and limits start to count from the present usage.
func decidePolicy(asked api.EgressPolicy, g EgressGrant, used api.EgressLimits, s egressSandbox, caller egressCaller, set rules.Rules, now time.Time) (EgressGrant, error) {
	p, known := rules.ResolveProfile(s.profile, set)
	if !known {
		p = rules.Profile{Name: s.profile, Network: rules.NetworkNone}
	}
	w := egressWish{tenant: s.tenant, caller: caller, profile: p, rules: set, because: func(string, string) {}}
	next, err := w.whole("", asked)
	if err != nil {
		return EgressGrant{}, err
	}
	if len(next.Requests) > 0 && len(g.Requests)+len(g.Demanded) == 0 {
		return EgressGrant{}, api.Errorf(api.CodeState, "requests are narrowed, and the programs of this sandbox trust no authority for opened TLS").
			WithHint("ask for egress.requests when the sandbox is created")
	}
	return succeed(next, g, used, s, set, now)
}

// succeed updates an earlier decision for a sandbox in which g is in force, with the
// operator's present rules and those added to this sandbox.
func succeed(next, g EgressGrant, used api.EgressLimits, s egressSandbox, set rules.Rules, now time.Time) (EgressGrant, error) {
	next = next.clone()
	next.Held, next.Base = slices.Clone(g.Held), used
	next.Temporary = slices.DeleteFunc(slices.Clone(g.Temporary), func(t TemporaryRule) bool { return !t.Held || !now.Before(t.ExpiresAt) })
	if next.Closed {
		return next, nil
	}
	next.Rules = append(slices.DeleteFunc(next.Rules, isOperators), slices.DeleteFunc(slices.Clone(g.Rules), func(r rule.Rule) bool { return !isOperators(r) })...)
	return refresh(next, s, set, now)
}

// isOperators reports whether a rule is a deny rule of the operator.
func isOperators(r rule.Rule) bool {
	_, operators := strings.CutPrefix(r.ID, operatorsDeny)
	return operators
}
