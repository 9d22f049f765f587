package egress

import (
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// DecideChange grants a change of the rules of a running sandbox, or returns why not. Added
// rules are judged as in a create, with the rights of the present caller. Earlier grants stay,
// except for what the operator denies now.
func DecideChange(c api.EgressChange, g Grant, s Sandbox, caller Caller, set rules.Rules, now time.Time) (Grant, error) {
	p, known := rules.ResolveProfile(s.Profile, set)
	if !known {
		p = rules.Profile{Name: s.Profile}
	}
	w := Request{Tenant: s.Tenant, Caller: caller, Profile: p, Rules: set, Because: func(string, string) {}}
	ch := change{wish: w, g: g.Clone(), c: c, now: now}
	for _, do := range []func() *api.Error{ch.check, ch.prune, ch.remove, ch.add, ch.settle} {
		if err := do(); err != nil {
			return Grant{}, err
		}
	}
	return ch.g, nil
}

// Refresh updates a grant to the operator's present rules: the deny rules, the route and the
// request rules. What callers requested stays.
func Refresh(g Grant, s Sandbox, set rules.Rules, now time.Time) (Grant, error) {
	p, known := rules.ResolveProfile(s.Profile, set)
	if !known {
		p = rules.Profile{Name: s.Profile}
	}
	ch := change{wish: Request{Tenant: s.Tenant, Caller: Caller{Operator: true}, Profile: p, Rules: set}, g: g.Clone(), now: now}
	if err := ch.prune(); err != nil {
		return Grant{}, err
	}
	ch.g.Rules = slices.DeleteFunc(ch.g.Rules, func(r rule.Rule) bool {
		_, operators := strings.CutPrefix(r.ID, operatorsDeny)
		return operators
	})
	ch.g.Rules = append(ch.g.Rules, ch.operators()...)
	ch.g.Demanded = ch.wish.demanded()
	if err := ch.wish.route(&ch.g); err != nil {
		return Grant{}, err
	}
	return ch.g, nil
}

// NoNetwork is the error for a sandbox without a network whose rules could change.
func NoNetwork() *api.Error {
	return api.Errorf(api.CodeState, "the sandbox has no network").
		WithHint("whether it has one is settled when it is created: cloche create --net")
}

// Caller is who asks: its tenant, and whether it is the operator.
type Caller struct {
	Tenant   string
	Operator bool
}

// Sandbox is the sandbox that a change is for.
type Sandbox struct{ Tenant, Profile string }

type change struct {
	wish Request
	g    Grant
	c    api.EgressChange
	now  time.Time
}

func (ch *change) check() *api.Error {
	switch c := ch.c; {
	case len(c.Allow)+len(c.Deny)+len(c.Remove) == 0:
		return api.Invalid("allow", "no change was asked for").WithHint("name rules in allow, deny or remove")
	case c.ForMS < 0 || c.ForMS > rules.MaxTimeoutMS:
		return api.Invalid("for_ms", "a time of %d ms was asked for", c.ForMS).WithHint("0 is for good; at most %d", int64(rules.MaxTimeoutMS))
	case c.ForMS > 0 && len(c.Allow)+len(c.Deny) == 0:
		return api.Invalid("for_ms", "only what is added ends by itself").WithHint("leave for_ms out")
	case len(c.Remove) > maxRules:
		return rules.TooLarge("remove", "there are %d rules", len(c.Remove)).WithHint("at most %d", maxRules)
	}
	if p := ch.wish.Profile; p.Locks(rules.FieldEgress) && len(ch.c.Allow) > 0 {
		by := rules.KeyPath(p.Name, "locked", rules.FieldEgress)
		return rules.Denied(by, "allow", "the profile %s settles what its sandboxes may reach", p.Name).
			WithHint("make a sandbox of another profile; the operator's rule is %s", by)
	}
	return nil
}

// prune removes expired rules.
func (ch *change) prune() *api.Error {
	ch.g.Temporary = slices.DeleteFunc(ch.g.Temporary, func(t TemporaryRule) bool { return !ch.now.Before(t.ExpiresAt) })
	return nil
}

// remove removes rules in force, by their shown text.
func (ch *change) remove() *api.Error {
	for i, text := range ch.c.Remove {
		field := rules.ElementAt("remove", i)
		if len(text) > maxRuleBytes {
			return rules.TooLarge(field, "the rule has %d bytes", len(text)).WithHint("at most %d", maxRuleBytes)
		}
		bare, deny := strings.CutPrefix(text, "deny ")
		item, err := rule.ParseItem(bare)
		if err != nil {
			return rules.RuleError(field, err)
		}
		shown := item.String()
		if !ch.drop(shown, deny, ch.wish.Caller.Operator) {
			if ch.held(shown, deny) {
				return rules.Denied("operator_only", field, "%s was put there by the operator", rules.Quote(text)).WithHint("only the operator can take it away")
			}
			return api.Invalid(field, "%s is not in force in this sandbox", rules.Quote(text)).WithHint("`cloche egress rules` shows what is")
		}
	}
	return nil
}

func (ch *change) held(shown string, deny bool) bool {
	return deny && (slices.Contains(ch.g.Locked, shown) || slices.ContainsFunc(ch.g.Temporary, func(t TemporaryRule) bool { return t.Locked && t.Shown == shown }))
}

// drop removes one rule from every list, and reports whether it was in any.
func (ch *change) drop(shown string, deny, operator bool) bool {
	before := len(ch.g.Shown.Allow) + len(ch.g.Shown.Deny) + len(ch.g.Locked) + len(ch.g.Temporary)
	same := func(s string) bool { return s == shown }
	if deny {
		ch.g.Shown.Deny = slices.DeleteFunc(ch.g.Shown.Deny, same)
		if operator {
			ch.g.Locked = slices.DeleteFunc(ch.g.Locked, same)
		}
	} else {
		ch.g.Shown.Allow = slices.DeleteFunc(ch.g.Shown.Allow, same)
	}
	ch.g.Temporary = slices.DeleteFunc(ch.g.Temporary, func(t TemporaryRule) bool {
		return t.Shown == shown && t.Rule.Deny == deny && (operator || !t.Locked)
	})
	return before != len(ch.g.Shown.Allow)+len(ch.g.Shown.Deny)+len(ch.g.Locked)+len(ch.g.Temporary)
}

// add adds rules. A permanent rule does not become temporary.
func (ch *change) add() *api.Error {
	allowed, shown, err := ch.wish.allow("allow", ch.c.Allow)
	if err != nil {
		return err
	}
	ch.put(allowed, shown, false, &ch.g.Shown.Allow)
	denies, shown, err := ch.wish.deny("deny", ch.c.Deny)
	if err != nil {
		return err
	}
	list := &ch.g.Shown.Deny
	foreign := ch.wish.Caller.Operator && ch.wish.Caller.Tenant != ch.wish.Tenant
	if foreign {
		list = &ch.g.Locked
	}
	ch.put(denies, shown, foreign, list)
	return nil
}

func (ch *change) put(set []rule.Rule, shown []string, held bool, list *[]string) {
	for _, text := range shown {
		if slices.Contains(*list, text) {
			continue
		}
		deny := len(set) > 0 && set[0].Deny
		ch.g.Temporary = slices.DeleteFunc(ch.g.Temporary, func(t TemporaryRule) bool {
			return t.Shown == text && t.Rule.Deny == deny && t.Locked == held
		})
		if ch.c.ForMS == 0 {
			*list = append(*list, text)
			continue
		}
		end := ch.now.Add(time.Duration(ch.c.ForMS) * time.Millisecond)
		for _, r := range set {
			if shownOf(r) == text {
				if held {
					r.ID = operatorsDeny + text
				}
				ch.g.Temporary = append(ch.g.Temporary, TemporaryRule{Rule: r, Shown: text, ExpiresAt: end, Locked: held})
			}
		}
	}
}

// shownOf returns the text with which a rule was requested.
func shownOf(r rule.Rule) string {
	if name, _, bundle := strings.Cut(strings.TrimPrefix(r.ID, "deny "), "/"); bundle && strings.HasPrefix(name, "@") {
		return name
	}
	r.Deny = false
	return r.String()
}

// operators returns the operator's deny rules: those of the file, and those added to this sandbox.
func (ch *change) operators() []rule.Rule {
	out := ch.wish.operatorsDenies()
	for _, text := range ch.g.Locked {
		item, err := rule.ParseItem(text)
		if err != nil {
			continue // it was valid when it was added
		}
		set, err := rules.ExpandItem(ch.wish.Rules.Egress.Book(), item, true)
		if err != nil {
			// The bundle is no longer in the file. What it contained is in Rules.
			set = slices.DeleteFunc(slices.Clone(ch.g.Rules), func(r rule.Rule) bool { return !r.Deny || r.ID != operatorsDeny+text })
		}
		for _, r := range set {
			r.ID = operatorsDeny + text
			out = append(out, r)
		}
	}
	return out
}

// settle builds the rules again from what was requested. A rule from a bundle stays as it was
// granted, even if the bundle has changed.
func (ch *change) settle() *api.Error {
	var out []rule.Rule
	keep := func(text string, deny bool) *api.Error {
		was := slices.DeleteFunc(slices.Clone(ch.g.Rules), func(r rule.Rule) bool {
			return r.Deny != deny || strings.HasPrefix(r.ID, operatorsDeny) || shownOf(r) != text
		})
		if len(was) > 0 {
			out = append(out, was...)
			return nil
		}
		item, err := rule.ParseItem(text)
		if err != nil {
			return rules.RuleError("egress", err)
		}
		set, err := rules.ExpandItem(ch.wish.Rules.Egress.Book(), item, deny)
		if err != nil {
			return rules.RuleError("egress", err)
		}
		for _, r := range set {
			if item.Bundle == "" {
				r.ID = r.String()
			}
			out = append(out, r)
		}
		return nil
	}
	for _, text := range ch.g.Shown.Allow {
		if err := keep(text, false); err != nil {
			return err
		}
	}
	for _, text := range ch.g.Shown.Deny {
		if err := keep(text, true); err != nil {
			return err
		}
	}
	ch.g.Rules = append(out, ch.operators()...)
	if n := len(ch.g.Rules) + len(ch.g.Temporary); n > maxGranted {
		return rules.TooLarge("allow", "the sandbox would have %d rules, with bundles written out", n).WithHint("at most %d; remove some", maxGranted)
	}
	compiled, err := rule.CompileRequests(requestsOf(ch.g.Requests))
	if err != nil {
		return rules.RuleError("egress.requests", err)
	}
	for _, r := range ch.g.RulesAt(ch.now) {
		if compiled.Opaque(r) {
			return api.Invalid("allow", "requests to a host of this sandbox are narrowed, and %s lets any protocol reach it", rules.Quote(r.String())).
				WithHint("write %s without port, which is HTTP and TLS on 80 and 443", rules.Quote(r.Host))
		}
	}
	ch.g.Demanded = ch.wish.demanded()
	return ch.wish.route(&ch.g)
}
