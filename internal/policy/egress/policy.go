package egress

import (
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Whole returns the grant of a complete policy. at is the prefix of field names.
func (w Request) Whole(at string, asked api.EgressPolicy) (Grant, *api.Error) {
	network := asked.Network
	switch {
	case network == "" && asked.Egress != nil:
		network = rules.NetworkOn
	case network == "":
		network = w.Profile.Network
	case network != rules.NetworkOn && network != rules.NetworkNone:
		return Grant{}, api.Invalid(at+"network", "network %s is not known", rules.Quote(network)).
			WithHint("write %q or %q, or leave it out for the profile's", rules.NetworkNone, rules.NetworkOn)
	case network == rules.NetworkNone && asked.Egress != nil:
		return Grant{}, api.Invalid(at+"egress", "egress was asked for, and network is %q", rules.NetworkNone).
			WithHint("leave network out, or write %q; or leave egress out", rules.NetworkOn)
	}
	if network != w.Profile.Network && network == rules.NetworkOn && w.Profile.Locks(rules.FieldNetwork) {
		by := rules.KeyPath(w.Profile.Name, "locked", rules.FieldNetwork)
		return Grant{}, rules.Denied(by, at+"network", "the sandboxes of profile %s have no network", w.Profile.Name).
			WithHint("make a sandbox of another profile; the operator's rule is %s", by)
	}
	if network == rules.NetworkNone {
		return w.Closed(), nil
	}
	var egress api.Egress
	if asked.Egress != nil {
		egress = *asked.Egress
	}
	if w.Profile.Locks(rules.FieldEgress) && egress.Allow != nil {
		by := rules.KeyPath(w.Profile.Name, "locked", rules.FieldEgress)
		return Grant{}, rules.Denied(by, at+"egress.allow", "the profile %s settles what its sandboxes may reach", w.Profile.Name).
			WithHint("leave allow out, or make a sandbox of another profile; the operator's rule is %s", by)
	}
	return w.Grant(egress)
}

// Closed returns a grant that allows nothing.
func (w Request) Closed() Grant {
	return Grant{Closed: true, Shown: api.Egress{Allow: []string{}}}
}

// DecidePolicy grants a new complete policy to a running sandbox with a link, or returns why
// not. All of it is judged as in a create, with the rights of the present caller. What the operator
// added to this sandbox stays, and limits start to count from the present usage.
func DecidePolicy(asked api.EgressPolicy, g Grant, used api.EgressLimits, s Sandbox, caller Caller, set rules.Rules, now time.Time) (Grant, error) {
	p, known := rules.ResolveProfile(s.Profile, set)
	if !known {
		p = rules.Profile{Name: s.Profile, Network: rules.NetworkNone}
	}
	w := Request{Tenant: s.Tenant, Caller: caller, Profile: p, Rules: set, Because: func(string, string) {}}
	next, err := w.Whole("", asked)
	if err != nil {
		return Grant{}, err
	}
	if len(next.Requests) > 0 && len(g.Requests)+len(g.Demanded) == 0 {
		return Grant{}, api.Errorf(api.CodeState, "requests are narrowed, and the programs of this sandbox trust no authority for opened TLS").
			WithHint("ask for egress.requests when the sandbox is created")
	}
	return Succeed(next, g, used, s, set, now)
}

// Succeed updates an earlier decision for a sandbox in which g is in force, with the
// operator's present rules and those added to this sandbox.
func Succeed(next, g Grant, used api.EgressLimits, s Sandbox, set rules.Rules, now time.Time) (Grant, error) {
	next = next.Clone()
	next.Locked, next.Base = slices.Clone(g.Locked), used
	next.Temporary = slices.DeleteFunc(slices.Clone(g.Temporary), func(t TemporaryRule) bool { return !t.Locked || !now.Before(t.ExpiresAt) })
	if next.Closed {
		return next, nil
	}
	next.Rules = append(slices.DeleteFunc(next.Rules, isOperators), slices.DeleteFunc(slices.Clone(g.Rules), func(r rule.Rule) bool { return !isOperators(r) })...)
	return Refresh(next, s, set, now)
}

// isOperators reports whether a rule is a deny rule of the operator.
func isOperators(r rule.Rule) bool {
	_, operators := strings.CutPrefix(r.ID, operatorsDeny)
	return operators
}
