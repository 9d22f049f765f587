package egress

import (
	"maps"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// writtenOut is one entry of a list with its expanded rules.
type writtenOut struct {
	field string
	text  string
	rules []rule.Rule
}

// writeOut expands the entries of a list. It skips invalid entries, which other checks report.
func writeOut(book rule.Book, field string, items []rules.EgressItem, deny bool) []writtenOut {
	var out []writtenOut
	for i, item := range items {
		set, err := rules.ExpandItem(book, item.Item, deny)
		if err == nil {
			out = append(out, writtenOut{rules.ElementAt(field, i), rules.Quote(item.String()), set})
		}
	}
	return out
}

// allOf reports whether, for each rule of w, o has a rule for which relation returns true.
func (w writtenOut) allOf(o writtenOut, relation func(wide, narrow rule.Rule) bool) bool {
	return len(w.rules) > 0 && !slices.ContainsFunc(w.rules, func(narrow rule.Rule) bool {
		return !slices.ContainsFunc(o.rules, func(wide rule.Rule) bool { return relation(wide, narrow) })
	})
}

// Shadowed reports entries that have no effect because of another entry.
func Shadowed(r rules.Rules, report rules.Reporter) {
	book := r.Egress.Book()
	denies := writeOut(book, "egress.deny", r.Egress.Deny, true)
	granted := writeOut(book, "egress.allow", r.Egress.Allow, false)
	requests, err := rule.CompileRequests(requestsOf(Request{Rules: r}.demanded()))
	if err != nil {
		return
	}
	covers := func(wide, narrow rule.Rule) bool {
		if wide.Deny && narrow.Deny {
			wide.Deny, narrow.Deny = false, false
			return wide.Port == 0 && rule.Rule{Host: wide.Host}.Covers(rule.Rule{Host: narrow.Host}) || wide.Covers(narrow)
		}
		return wide.Covers(narrow)
	}
	// An entry is shadowed by an earlier entry that covers it, or by a later entry that covers
	// more than it.
	among := func(list []writtenOut) {
		for i, w := range list {
			for j, o := range list {
				if i != j && w.allOf(o, covers) && (j < i || !o.allOf(w, covers)) {
					report(rules.Warning(w.field, "%s %s has no effect: %s %s covers it", w.field, w.text, o.field, o.text).WithHint("remove one of them"))
					break
				}
			}
		}
	}
	held := func(list []writtenOut) {
		for _, w := range list {
			for _, d := range denies {
				if w.allOf(d, rule.Rule.HoldsBack) {
					report(rules.Warning(w.field, "%s %s has no effect: %s %s denies it", w.field, w.text, d.field, d.text).WithHint("remove one of them"))
					break
				}
			}
			if slices.ContainsFunc(w.rules, requests.Opaque) {
				report(rules.Warning(w.field, "%s %s is always refused: egress.requests restricts this host, and the proxy can't inspect requests of an arbitrary protocol", w.field, w.text).
					WithHint("omit the port, to allow HTTP on 80 and TLS on 443"))
			}
		}
	}
	among(denies)
	among(granted)
	held(granted)
	for _, name := range slices.Sorted(maps.Keys(r.Tenants)) {
		if a := r.Tenants[name].Egress.Allow; a != nil {
			own := writeOut(book, "tenants."+rules.Shorten(name)+".egress.allow", *a, false)
			held(own)
			shadowedByAll(own, granted, report)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Profiles)) {
		if a := r.Profiles[name].Egress.Allow; a != nil {
			held(writeOut(book, "profiles."+rules.Shorten(name)+".egress.allow", *a, false))
		}
	}
}

// shadowedByAll reports grants of one tenant that every tenant already has.
func shadowedByAll(own, granted []writtenOut, report func(*api.Error)) {
	for _, w := range own {
		for _, o := range granted {
			if w.allOf(o, rule.Rule.Covers) {
				report(rules.Warning(w.field, "%s %s has no effect: %s %s grants it to every tenant", w.field, w.text, o.field, o.text).WithHint("remove one of them"))
				break
			}
		}
	}
}
