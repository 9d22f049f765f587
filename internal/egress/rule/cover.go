package rule

import (
	"net/netip"
	"slices"
	"strings"
)

// Covers says whether a grant of r has all that o asks for: each flow that o alone
// allows is one that r alone allows too, and r asks no more of it. Both are as Parse
// made them. A rule that denies covers nothing and is covered by nothing.
func (r Rule) Covers(o Rule) bool {
	if r.Deny || o.Deny || r.Port != o.Port || !coversHost(r.Host, o.Host) {
		return false
	}
	return !slices.ContainsFunc(o.At, func(asked netip.Prefix) bool {
		return !slices.ContainsFunc(r.At, func(p netip.Prefix) bool { return p.Bits() <= asked.Bits() && p.Contains(asked.Addr()) })
	})
}

// HoldsBack says whether r, which denies, leaves nothing of what o allows.
func (r Rule) HoldsBack(o Rule) bool {
	return r.Deny && !o.Deny && (r.Port == 0 || r.Port == o.Port) && coversHost(r.Host, o.Host)
}

// coversHost says whether the hosts of one text form hold all those of another. No
// wildcard holds an address.
func coversHost(wide, narrow string) bool {
	switch {
	case wide == narrow:
		return true
	case wide == "*":
		_, err := netip.ParseAddr(narrow)
		return err != nil
	case strings.HasPrefix(wide, "*."):
		// An address ends in a number, as no name does.
		return strings.HasSuffix(narrow, wide[1:])
	}
	return false
}

// overlaps says whether some host is in both.
func overlaps(a, b string) bool { return coversHost(a, b) || coversHost(b, a) }
