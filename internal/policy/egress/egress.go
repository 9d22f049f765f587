package egress

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// Grant is the granted egress of a sandbox. It is plain data, so that the enforcing component
// can keep it over a restart. The zero value allows nothing.
type Grant struct {
	// Rules are all permanent rules, including the operator's deny rules. Bundles are expanded.
	// An ID is the name of the rule in records.
	Rules []rule.Rule `json:"rules,omitempty"`
	// Temporary are rules that expire. RulesAt combines both.
	Temporary []TemporaryRule `json:"temporary,omitempty"`
	// Requests limit HTTP to hosts of Rules. Demanded does the same by the operator's rules.
	// RequestRules combines both.
	Requests []api.RequestRule `json:"requests,omitempty"`
	Demanded []api.RequestRule `json:"demanded,omitempty"`
	// Limits apply to the sandbox's whole lifetime. Zero is no limit.
	Limits api.EgressLimits `json:"limits,omitzero"`
	// Ask holds a connection that no rule covers until it is approved.
	Ask bool `json:"ask,omitempty"`
	// Hosts are the operator's addresses of names, by canonical name. No resolver is asked for
	// them, and the rules apply to them as to other addresses.
	Hosts map[string][]netip.Addr `json:"hosts,omitempty"`
	// Upstream is the proxy that all connections use. Nil is no proxy.
	Upstream *rules.EgressUpstream `json:"upstream,omitempty"`
	// Shown is the permanent part as a record shows it: rules as they were requested, without the
	// operator's.
	Shown api.Egress `json:"shown,omitzero"`
	// Generation counts the changes since the sandbox was created.
	Generation int64 `json:"generation,omitempty"`
	// Closed means that the link exists but allows nothing, as if there were no network.
	Closed bool `json:"closed,omitempty"`
	// Base is what had been used when Limits began to count.
	Base api.EgressLimits `json:"base,omitzero"`
	// Locked are deny rules that the operator added to another tenant's sandbox.
	Locked []string `json:"held,omitempty"`
}

// TemporaryRule is a rule that expires.
type TemporaryRule struct {
	Rule rule.Rule `json:"rule"`
	// Shown is the rule as it was requested. The rules of one bundle share it.
	Shown     string    `json:"shown"`
	ExpiresAt time.Time `json:"expires_at"`
	// Locked is as in Grant.
	Locked bool `json:"held,omitempty"`
}

// RulesAt returns the rules in force at a time.
func (g Grant) RulesAt(now time.Time) []rule.Rule {
	out := slices.Clone(g.Rules)
	for _, t := range g.Temporary {
		if now.Before(t.ExpiresAt) {
			out = append(out, t.Rule)
		}
	}
	return out
}

// Budget returns the total that can be used over the sandbox's lifetime. Zero is no limit.
func (g Grant) Budget() api.EgressLimits {
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

// NextEnd returns when the next temporary rule expires, or false if no rule expires.
func (g Grant) NextEnd(now time.Time) (time.Time, bool) {
	var next time.Time
	for _, t := range g.Temporary {
		if now.Before(t.ExpiresAt) && (next.IsZero() || t.ExpiresAt.Before(next)) {
			next = t.ExpiresAt
		}
	}
	return next, !next.IsZero()
}

// RequestRules returns the rules on requests. Those of the caller and those of the operator must
// both allow a request. The error is a *rule.Error, which a grant of Decide never causes.
func (g Grant) RequestRules() (*rule.Requests, error) {
	return rule.CompileRequests(requestsOf(g.Demanded), requestsOf(g.Requests))
}

func requestsOf(set []api.RequestRule) []rule.Request {
	out := make([]rule.Request, 0, len(set))
	for _, r := range set {
		out = append(out, rule.Request(r))
	}
	return out
}

// OnRecord returns what the record of a sandbox shows of the grant at a time. It is nil if the sandbox has no network.
func (g Grant) OnRecord(now time.Time) *api.Egress {
	if g.Closed {
		return nil
	}
	return new(g.ShownAt(now))
}

// ShownAt returns what is in force at a time, as the sandbox's record shows it.
func (g Grant) ShownAt(now time.Time) api.Egress {
	e := Clone(g.Shown)
	e.Limits = g.Limits
	for _, t := range g.Temporary {
		list := &e.Allow
		if t.Rule.Deny {
			list = &e.Deny
		}
		if now.Before(t.ExpiresAt) && !t.Locked && !slices.Contains(*list, t.Shown) {
			*list = append(*list, t.Shown)
		}
	}
	return e
}

// InForce returns the rules in force at a time, for callers that ask for the rules.
func (g Grant) InForce(now time.Time) api.EgressRules {
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

// Network returns the network value in the record of a sandbox with this grant.
func (g Grant) Network() string {
	if g.Closed {
		return api.NetworkNone
	}
	return api.NetworkOn
}

// Clone returns a copy of g that can be changed.
func (g Grant) Clone() Grant {
	g.Rules, g.Temporary = slices.Clone(g.Rules), slices.Clone(g.Temporary)
	g.Locked, g.Shown = slices.Clone(g.Locked), Clone(g.Shown)
	return g
}

// Clone copies e.
func Clone(e api.Egress) api.Egress {
	e.Allow, e.Deny, e.Requests = slices.Clone(e.Allow), slices.Clone(e.Deny), slices.Clone(e.Requests)
	for i := range e.Requests {
		r := &e.Requests[i]
		r.Methods, r.Paths = slices.Clone(r.Methods), slices.Clone(r.Paths)
	}
	return e
}

// Limits of a request.
const (
	maxRules     = 256
	maxRuleBytes = 1024
	maxRequests  = 128
	maxParts     = 64

	operatorsDeny = "egress.deny:"
)

// Request is a request for egress, with its caller and sandbox.
type Request struct {
	// tenant owns the sandbox. caller is the present caller.
	Tenant  string
	Caller  Caller
	Profile rules.Profile
	Rules   rules.Rules
	Because func(field, rule string)
}

// Grant returns the grant of a complete request, with defaults filled in.
func (w Request) Grant(asked api.Egress) (Grant, *api.Error) {
	var g Grant
	if asked.Allow == nil {
		asked.Allow = []string{}
		for _, i := range w.Profile.Egress {
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
	if asked.Ask && w.Rules.Egress.Ask != nil && !*w.Rules.Egress.Ask {
		return g, rules.Denied("egress.ask", "egress.ask", "sandboxes do not wait for approval here").
			WithHint("leave ask out; the smallest rule that would allow it is `egress: {ask: true}`")
	}
	g.Ask, g.Shown.Ask = asked.Ask, asked.Ask
	return g, w.route(&g)
}
