package egress

import (
	"fmt"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// grantList is one of the operator's lists from which callers can request rules.
type grantList struct {
	field string
	items []rules.EgressItem
}

// grants returns all lists that apply to the request.
func (w Request) grants() []grantList {
	out := []grantList{{"egress.allow", w.Rules.Egress.Allow}}
	if t := w.Rules.Tenants[w.Tenant].Egress.Allow; t != nil {
		out = append(out, grantList{"tenants." + w.Tenant + ".egress.allow", *t})
	}
	return append(out, grantList{w.Profile.EgressBy(), w.Profile.Egress})
}

// grantFor returns the operator's rule that covers all of r.
func (w Request) grantFor(r rule.Rule) (string, bool) {
	book := w.Rules.Egress.Book()
	for _, l := range w.grants() {
		for i, item := range l.items {
			if item.Bundle == "" {
				if item.Rule.Covers(r) {
					return rules.ElementAt(l.field, i), true
				}
				continue
			}
			set, err := book.Expand(item.Item)
			if err == nil && slices.ContainsFunc(set, func(o rule.Rule) bool { return o.Covers(r) }) {
				return rules.ElementAt(l.field, i), true
			}
		}
	}
	return "", false
}

// items parses a list of rules from a caller: without duplicates, expanded, and with the shown
// text.
func (w Request) items(field string, texts []string, deny bool, each func(field string, item rule.Item, set []rule.Rule) *api.Error) (all []rule.Rule, shown []string, _ *api.Error) {
	if len(texts) > maxRules {
		return nil, nil, rules.TooLarge(field, "there are %d rules", len(texts)).WithHint("at most %d; a bundle of the operator's holds more", maxRules)
	}
	shown = []string{}
	book := w.Rules.Egress.Book()
	for i, text := range texts {
		one := rules.ElementAt(field, i)
		if len(text) > maxRuleBytes {
			return nil, nil, rules.TooLarge(one, "the rule has %d bytes", len(text)).WithHint("at most %d", maxRuleBytes)
		}
		item, err := rule.ParseItem(text)
		if err != nil {
			return nil, nil, rules.RuleError(one, err)
		}
		if slices.Contains(shown, item.String()) {
			continue
		}
		set, err := rules.ExpandItem(book, item, deny)
		if err != nil {
			return nil, nil, rules.RuleError(one, err)
		}
		for i, r := range set {
			if r.ID == "" || deny && item.Bundle == "" {
				set[i].ID = r.String()
			}
		}
		if err := each(one, item, set); err != nil {
			return nil, nil, err
		}
		all, shown = append(all, set...), append(shown, item.String())
	}
	if len(all) > maxGranted {
		return nil, nil, rules.TooLarge(field, "these are %d rules, with bundles written out", len(all)).WithHint("at most %d", maxGranted)
	}
	return all, shown, nil
}

// maxGranted is the maximum number of rules of one sandbox.
const maxGranted = 4096

// allow judges allow rules.
func (w Request) allow(field string, texts []string) ([]rule.Rule, []string, *api.Error) {
	demanded, err := rule.CompileRequests(requestsOf(w.demanded()))
	if err != nil {
		return nil, nil, rules.RuleError("egress.requests", err)
	}
	held := w.operatorsDenies()
	return w.items(field, texts, false, func(field string, item rule.Item, set []rule.Rule) *api.Error {
		for _, r := range set {
			by, ok := w.grantFor(r)
			switch {
			case ok:
			case w.Caller.Operator:
				by = rules.ByOperator
			default:
				return w.notGranted(field, item, r)
			}
			if demanded.Opaque(r) {
				return rules.Denied("egress.requests", field, "%s was asked for, which is any protocol, and the operator lets only some requests reach this host", rules.Quote(r.String())).
					WithHint("ask for %s without port, which is HTTP and TLS on 80 and 443", rules.Quote(r.Host))
			}
			if item.Bundle == "" {
				if i := slices.IndexFunc(held, func(d rule.Rule) bool { return d.HoldsBack(r) }); i >= 0 {
					return rules.Denied(held[i].ID, field, "%s was asked for, and a rule of the operator's holds it back: %s", rules.Quote(item.String()), held[i].ID).
						WithHint("leave it out; only the operator can lift that rule")
				}
			}
			if r.ID == set[0].ID {
				w.Because(field, by)
			}
		}
		return nil
	})
}

func (w Request) notGranted(field string, item rule.Item, r rule.Rule) *api.Error {
	what := rules.Quote(item.String())
	if item.Bundle != "" {
		what += fmt.Sprintf(", which holds %s,", rules.Quote(r.String()))
	}
	e := rules.Denied("egress.allow", field, "%s was asked for, and nothing that the operator lets tenant %s reach has all of it", what, w.Tenant)
	return e.WithHint("the smallest rule that would allow it is `egress: {allow: [%s]}`", rules.Quote(item.String()))
}

// deny judges deny rules, which every caller can request.
func (w Request) deny(field string, texts []string) ([]rule.Rule, []string, *api.Error) {
	set, shown, err := w.items(field, texts, true, func(string, rule.Item, []rule.Rule) *api.Error { return nil })
	if len(shown) == 0 {
		shown = nil
	}
	return set, shown, err
}

// operatorsDenies returns the deny rules that apply whatever is requested.
func (w Request) operatorsDenies() []rule.Rule {
	book := w.Rules.Egress.Book()
	var out []rule.Rule
	for _, list := range [][]rules.EgressItem{w.Rules.Egress.Deny, w.Rules.Tenants[w.Tenant].Egress.Deny, w.Profile.EgressDeny} {
		for _, item := range list {
			set, err := rules.ExpandItem(book, item.Item, true)
			if err != nil {
				continue // ParseRules allows none
			}
			for _, r := range set {
				r.ID = ""
				r.Deny = false
				text := r.String()
				r.ID, r.Deny = operatorsDeny+text, true
				out = append(out, r)
			}
		}
	}
	return out
}

// demanded returns the operator's request rules.
func (w Request) demanded() []api.RequestRule {
	var out []api.RequestRule
	for _, l := range w.Rules.Egress.Requests {
		out = append(out, api.RequestRule(l.Request))
	}
	return out
}

// requests judges request rules. Each must be about an allowed host whose requests can be read.
func (w Request) requests(asked []api.RequestRule, allowed []rule.Rule) ([]api.RequestRule, *api.Error) {
	const field = "egress.requests"
	if len(asked) > maxRequests {
		return nil, rules.TooLarge(field, "there are %d rules on requests", len(asked)).WithHint("at most %d", maxRequests)
	}
	var out []api.RequestRule
	for i, q := range asked {
		one := rules.ElementAt(field, i)
		if len(q.Methods) > maxParts || len(q.Paths) > maxParts {
			return nil, rules.TooLarge(one, "the rule has %d methods and %d paths", len(q.Methods), len(q.Paths)).WithHint("at most %d each", maxParts)
		}
		r, err := rule.Request(q).Canonical()
		if err != nil {
			return nil, rules.RuleError(one, err)
		}
		if !slices.ContainsFunc(allowed, func(a rule.Rule) bool { return a.Port == 0 && r.About(a) }) {
			return nil, api.Invalid(one, "requests to %s are narrowed, and nothing lets them out", rules.Quote(r.Host)).
				WithHint("add %s to egress.allow, without port", rules.Quote(r.Host))
		}
		out = append(out, api.RequestRule(r))
	}
	compiled, err := rule.CompileRequests(requestsOf(out))
	if err != nil {
		return nil, rules.RuleError(field, err)
	}
	if i := slices.IndexFunc(allowed, compiled.Opaque); i >= 0 {
		return nil, api.Invalid(field, "requests to a host are narrowed, and %s lets any protocol reach it", rules.Quote(allowed[i].String())).
			WithHint("write %s without port, which is HTTP and TLS on 80 and 443", rules.Quote(allowed[i].Host))
	}
	return out, nil
}

// limits returns the limits in force.
func (w Request) limits(asked api.EgressLimits) (api.EgressLimits, *api.Error) {
	for _, l := range rules.EgressLimits() {
		v := l.Of(&asked)
		field := "egress.limits." + l.Key
		if *v < 0 || *v > rules.MaxEgressLimit {
			return asked, api.Invalid(field, "%s is %d", field, *v).WithHint("ask for a positive number, or leave it out for the most that there is")
		}
		most, by := w.most(l)
		switch {
		case most == 0 || *v > 0 && *v <= most:
		case *v == 0:
			*v = most
		default:
			return asked, rules.Denied(by, field, "%s is %d, and the most is %d", field, *v, most).
				WithHint("ask for at most %d; the rule that says so is %s", most, by)
		}
	}
	return asked, nil
}

// most returns a limit of the operator with its rule; 0 is no limit.
func (w Request) most(l rules.EgressLimit) (int64, string) {
	most, by := int64(0), ""
	if v, ok := l.Ruled(w.Rules.Egress.Limits); ok {
		most, by = v, "egress.limits."+l.Key
	}
	if v, ok := l.Ruled(w.Rules.Tenants[w.Tenant].Egress.Limits); ok {
		most, by = v, "tenants."+w.Tenant+".egress.limits."+l.Key
	}
	if v, ok := l.Ruled(w.Profile.EgressLimits); ok && v > 0 && (most == 0 || v < most) {
		most, by = v, rules.KeyPath(w.Profile.Name, "egress", "limits", l.Key)
	}
	return most, by
}

// route returns the route of the traffic, which callers cannot choose.
func (w Request) route(g *Grant) *api.Error {
	var err *api.Error
	if g.Hosts, err = w.Rules.Egress.HostAddrs(); err != nil {
		return err
	}
	g.Upstream, err = w.Rules.Egress.Upstream.Read()
	return err
}
