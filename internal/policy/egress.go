package policy

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// EgressGrant is what may leave a sandbox. It is plain data, so that who enforces
// it can keep it over a restart; the zero value lets nothing out.
type EgressGrant struct {
	// Rules are all that hold for good, the operator's that deny among them. Bundles
	// are written out, and an ID is how records name the rule.
	Rules []rule.Rule `json:"rules,omitempty"`
	// Temporary end by themselves; RulesAt puts both together.
	Temporary []TemporaryRule `json:"temporary,omitempty"`
	// Requests narrow HTTP to hosts of Rules, and Demanded does so beside them, by the
	// operator's rule; RequestRules puts both together.
	Requests []api.RequestRule `json:"requests,omitempty"`
	Demanded []api.RequestRule `json:"demanded,omitempty"`
	// Limits are over the sandbox's life; zero is none.
	Limits api.EgressLimits `json:"limits,omitzero"`
	// Ask lets a connection of which no rule speaks wait for approval.
	Ask bool `json:"ask,omitempty"`
	// Hosts are the operator's own addresses of names, by canonical name: no resolver
	// is asked for them, and they are judged like any other.
	Hosts map[string][]netip.Addr `json:"hosts,omitempty"`
	// Upstream is the proxy that connects for us; nil is none.
	Upstream *EgressUpstream `json:"upstream,omitempty"`
	// Shown is what holds for good as a record shows it: rules as they were asked for,
	// without those of the operator.
	Shown api.Egress `json:"shown,omitzero"`
	// Generation counts the changes since the sandbox was made.
	Generation int64 `json:"generation,omitempty"`
	// Closed: the link is there and nothing leaves over it, as if there were none.
	Closed bool `json:"closed,omitempty"`
	// Base is what had been used when Limits began to count.
	Base api.EgressLimits `json:"base,omitzero"`
	// Held are rules that deny and that the operator put on somebody else's sandbox.
	Held []string `json:"held,omitempty"`
}

// TemporaryRule is a rule that ends by itself.
type TemporaryRule struct {
	Rule rule.Rule `json:"rule"`
	// Shown is the rule as it was asked for; those of one bundle share it.
	Shown     string    `json:"shown"`
	ExpiresAt time.Time `json:"expires_at"`
	// Held is as in EgressGrant.
	Held bool `json:"held,omitempty"`
}

// EgressUpstream is an HTTP proxy that is asked to CONNECT by name.
type EgressUpstream struct {
	// Address is HOST:PORT.
	Address string `json:"address"`
	// TLS says that the proxy itself is spoken to over TLS.
	TLS bool `json:"tls,omitempty"`
	// Except are names that are connected to directly, and all below those that
	// begin with a dot; ExceptAddrs are the same for listed addresses.
	Except      []string       `json:"except,omitempty"`
	ExceptAddrs []netip.Prefix `json:"except_addrs,omitempty"`
}

// RulesAt are the rules in force at a time.
func (g EgressGrant) RulesAt(now time.Time) []rule.Rule {
	out := slices.Clone(g.Rules)
	for _, t := range g.Temporary {
		if now.Before(t.ExpiresAt) {
			out = append(out, t.Rule)
		}
	}
	return out
}

// Budget is how much may be used in all, from the sandbox's beginning; zero is no
// bound.
func (g EgressGrant) Budget() api.EgressLimits {
	most := g.Limits
	for _, b := range []struct {
		limit *int64
		base  int64
	}{{&most.Connections, g.Base.Connections}, {&most.BytesOut, g.Base.BytesOut}, {&most.BytesIn, g.Base.BytesIn}} {
		if *b.limit > 0 {
			*b.limit += b.base
		}
	}
	return most
}

// NextEnd is when the next temporary rule ends; false when none does.
func (g EgressGrant) NextEnd(now time.Time) (time.Time, bool) {
	var next time.Time
	for _, t := range g.Temporary {
		if now.Before(t.ExpiresAt) && (next.IsZero() || t.ExpiresAt.Before(next)) {
			next = t.ExpiresAt
		}
	}
	return next, !next.IsZero()
}

// RequestRules are the rules on requests; those of the caller and of the operator
// must both allow one. The error is a *rule.Error, which no grant of Decide gives.
func (g EgressGrant) RequestRules() (*rule.Requests, error) {
	return rule.CompileRequests(requestsOf(g.Demanded), requestsOf(g.Requests))
}

func requestsOf(rules []api.RequestRule) []rule.Request {
	out := make([]rule.Request, 0, len(rules))
	for _, r := range rules {
		out = append(out, rule.Request(r))
	}
	return out
}

// ShownAt is what is in force at a time, as the sandbox's record shows it.
func (g EgressGrant) ShownAt(now time.Time) api.Egress {
	e := cloneEgress(g.Shown)
	e.Limits = g.Limits
	for _, t := range g.Temporary {
		list := &e.Allow
		if t.Rule.Deny {
			list = &e.Deny
		}
		if now.Before(t.ExpiresAt) && !t.Held && !slices.Contains(*list, t.Shown) {
			*list = append(*list, t.Shown)
		}
	}
	return e
}

// InForce is what is in force at a time, for who asks for the rules.
func (g EgressGrant) InForce(now time.Time) api.EgressRules {
	r := api.EgressRules{Network: g.Network(), Egress: g.ShownAt(now), Generation: g.Generation}
	for _, t := range g.Temporary {
		if now.Before(t.ExpiresAt) && !slices.ContainsFunc(r.Temporary, func(o api.TemporaryRule) bool { return o.Rule == t.Shown && o.Deny == t.Rule.Deny }) {
			r.Temporary = append(r.Temporary, api.TemporaryRule{Rule: t.Shown, Deny: t.Rule.Deny, ExpiresAt: t.ExpiresAt})
		}
	}
	for _, o := range g.Rules {
		if _, operators := strings.CutPrefix(o.ID, operatorsDeny); operators {
			r.Operator = append(r.Operator, o.ID)
		}
	}
	for _, d := range g.Demanded {
		r.Operator = append(r.Operator, "egress.requests:"+rule.Request(d).String())
	}
	return r
}

// Network is what the record of a sandbox with this grant says.
func (g EgressGrant) Network() string {
	if g.Closed {
		return api.NetworkNone
	}
	return api.NetworkOn
}

// Egress is what may leave at first; false when the sandbox has no link at all.
func (p Permit) Egress() (EgressGrant, bool) {
	if p.first != nil {
		return p.first.clone(), true
	}
	return p.LaterEgress()
}

// LaterEgress is what may leave once a setup with a network of its own is done; the
// same as Egress where there is none.
func (p Permit) LaterEgress() (EgressGrant, bool) {
	if p.egress == nil {
		return EgressGrant{}, false
	}
	return p.egress.clone(), true
}

// Opens says whether the TLS of some hosts is opened, at first or later.
func (p Permit) Opens() bool {
	opens := func(g *EgressGrant) bool { return g != nil && len(g.Requests)+len(g.Demanded) > 0 }
	return opens(p.first) || opens(p.egress)
}

// clone is g for a caller that may change it.
func (g EgressGrant) clone() EgressGrant {
	g.Rules, g.Temporary = slices.Clone(g.Rules), slices.Clone(g.Temporary)
	g.Held, g.Shown = slices.Clone(g.Held), cloneEgress(g.Shown)
	return g
}

func cloneEgress(e api.Egress) api.Egress {
	e.Allow, e.Deny, e.Requests = slices.Clone(e.Allow), slices.Clone(e.Deny), slices.Clone(e.Requests)
	for i := range e.Requests {
		r := &e.Requests[i]
		r.Methods, r.Paths = slices.Clone(r.Methods), slices.Clone(r.Paths)
	}
	return e
}

// What a request may hold.
const (
	maxEgressRules    = 256
	maxEgressRule     = 1024
	maxEgressRequests = 128
	maxEgressParts    = 64

	fieldEgress   = "egress"
	operatorsDeny = "egress.deny:"
)

// checkNetwork settles whether there is a network, before what may leave over it.
func checkNetwork(d *decision) *api.Error {
	asked := d.spec.Egress != nil
	switch d.spec.Network {
	case "":
		d.spec.Network = d.profile.network
		if asked {
			d.spec.Network = networkOn
		}
	case networkNone:
		if !asked {
			break
		}
		if !d.profile.locks(fieldNetwork) {
			return api.Invalid(fieldEgress, "egress was asked for, and network is %q", networkNone).
				WithHint("leave network out, or write %q; or leave egress out", networkOn)
		}
	case networkOn:
	default:
		return api.Invalid("network", "network %s is not known", show(d.spec.Network)).
			WithHint("write %q or %q, or leave network out for the profile's", networkNone, networkOn)
	}
	if d.spec.Network == networkNone && asked {
		// The lock took the network away, and with it what was to leave over it.
		data, err := json.Marshal(d.spec.Egress)
		if err != nil {
			return api.Errorf(api.CodeInternal, "show what was asked for: %w", err)
		}
		d.adjust(fieldEgress, bounded(string(data)), "", ruleName(d.profile.name, "locked", fieldNetwork))
		d.spec.Egress = nil
	}
	return nil
}

// checkEgress settles what may leave.
func checkEgress(d *decision) *api.Error {
	if d.spec.Network != networkOn {
		return nil
	}
	asked := api.Egress{}
	if d.spec.Egress != nil {
		asked = *d.spec.Egress
	}
	w := egressWish{tenant: d.caller.Tenant, caller: d.caller, profile: d.profile, rules: d.rules, because: d.because}
	g, err := w.grant(asked)
	if err != nil {
		return err
	}
	d.egress = &g
	d.spec.Egress = new(cloneEgress(g.Shown))
	return nil
}

// checkLink says whether the engine and this build can do what was granted.
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
		return unsupported("network", "network %q was asked for, and engine %s cannot hold a sandbox to rules of egress here: %s", networkOn, d.engine.Name, reason).
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

// egressWish is a wish for egress: of whom, and in which sandbox.
type egressWish struct {
	// tenant owns the sandbox; caller is who asks now.
	tenant  string
	caller  Caller
	profile profile
	rules   Rules
	because func(field, rule string)
}

// grant is the grant of a whole wish, with every default filled in.
func (w egressWish) grant(asked api.Egress) (EgressGrant, *api.Error) {
	var g EgressGrant
	if asked.Allow == nil {
		asked.Allow = []string{}
		for _, i := range w.profile.egress {
			asked.Allow = append(asked.Allow, i.String())
		}
	}
	g.Shown = api.Egress{Allow: []string{}}
	allowed, shown, err := w.allow("egress.allow", asked.Allow)
	if err != nil {
		return g, err
	}
	g.Rules, g.Shown.Allow = allowed, shown
	denies, shown, err := w.deny("egress.deny", asked.Deny)
	if err != nil {
		return g, err
	}
	g.Rules, g.Shown.Deny = slices.Concat(g.Rules, denies, w.operatorsDenies()), shown
	if g.Requests, err = w.requests(asked.Requests, allowed); err != nil {
		return g, err
	}
	g.Shown.Requests = g.Requests
	g.Demanded = w.demanded()
	if g.Limits, err = w.limits(asked.Limits); err != nil {
		return g, err
	}
	g.Shown.Limits = g.Limits
	if asked.Ask && w.rules.Egress.Ask != nil && !*w.rules.Egress.Ask {
		return g, denied("egress.ask", "egress.ask", "sandboxes do not wait for approval here").
			WithHint("leave ask out; the smallest rule that would allow it is `egress: {ask: true}`")
	}
	g.Ask, g.Shown.Ask = asked.Ask, asked.Ask
	return g, w.route(&g)
}
