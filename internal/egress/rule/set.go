package rule

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Mode is what a grant asks of a flow.
type Mode uint8

// The modes.
const (
	// Agree: the first bytes must be HTTP or TLS that names the host.
	Agree Mode = iota
	// Opaque: any bytes, both ways at once.
	Opaque
)

// Set is a compiled list of rules. It never changes, so any number of goroutines
// may ask it. The zero value allows nothing.
//
// A flow is allowed when one rule allows all of it and no rule denies it.
// Grants of several rules are never put together, so adding a rule allows
// only what that rule covers.
type Set struct {
	names    map[Name][]Rule
	below    map[Name][]Rule // by the part after "*."
	any      []Rule
	literals map[netip.Addr][]Rule
	size     int
}

// Compile checks rules and makes a Set. The error is an *Error.
func Compile(rules []Rule) (*Set, error) {
	s := &Set{names: map[Name][]Rule{}, below: map[Name][]Rule{}, literals: map[netip.Addr][]Rule{}, size: len(rules)}
	for _, r := range rules {
		r, err := r.canonical()
		if err != nil {
			return nil, err
		}
		if addr, err := netip.ParseAddr(r.Host); err == nil {
			s.literals[addr] = append(s.literals[addr], r)
		} else if r.Host == "*" {
			s.any = append(s.any, r)
		} else if below, ok := strings.CutPrefix(r.Host, "*."); ok {
			s.below[Name(below)] = append(s.below[Name(below)], r)
		} else {
			s.names[Name(r.Host)] = append(s.names[Name(r.Host)], r)
		}
	}
	return s, nil
}

// Len is the number of rules.
func (s *Set) Len() int { return s.size }

// matching calls yield with each rule that speaks of n, at whatever port.
func (s *Set) matching(n Name, yield func(Rule)) {
	for _, r := range s.names[n] {
		yield(r)
	}
	for rest := string(n); ; {
		_, after, ok := strings.Cut(rest, ".")
		if !ok {
			break
		}
		for _, r := range s.below[Name(after)] {
			yield(r)
		}
		rest = after
	}
	for _, r := range s.any {
		yield(r)
	}
}

// Name judges a question for a name: nil when some flow to it may be allowed.
func (s *Set) Name(n Name) *Refusal {
	var allowed bool
	var denied string
	s.matching(n, func(r Rule) {
		allowed = allowed || !r.Deny
		if r.Deny && r.Port == 0 && denied == "" {
			denied = r.ID
		}
	})
	switch {
	case denied != "":
		return deniedBy(denied, string(n))
	case !allowed:
		return &Refusal{Rule: RuleName, Reason: fmt.Sprintf("%s is not in the list of names that this sandbox may reach", n), Allow: string(n)}
	}
	return nil
}

// Flow judges a connection to a port of a name.
func (s *Set) Flow(n Name, port uint16) Verdict {
	v := Verdict{host: string(n), port: port}
	var known bool
	var denied string
	s.matching(n, func(r Rule) {
		known = known || !r.Deny
		switch {
		case r.Deny && (r.Port == 0 || r.Port == port):
			if denied == "" {
				denied = r.ID
			}
		case r.Deny:
		case r.Port == port:
			v.grants = append(v.grants, Grant{Rule: r.ID, Mode: Opaque, at: r.At})
		case r.Port == 0 && (port == 80 || port == 443):
			v.grants = append(v.grants, Grant{Rule: r.ID, Mode: Agree, at: r.At})
		}
	})
	switch {
	case denied != "":
		v.grants, v.refusal = nil, deniedBy(denied, string(n))
	case !known:
		v.refusal = s.Name(n)
		v.refusal.Allow = smallest(n, port)
	case len(v.grants) == 0:
		v.refusal = &Refusal{Rule: RulePort, Reason: fmt.Sprintf("%s is allowed, but not at port %d", n, port), Allow: smallest(n, port)}
	}
	return v
}

// smallest is the smallest rule that lets out a flow to a public host.
func smallest(n Name, port uint16) string {
	if port == 80 || port == 443 {
		return string(n)
	}
	return fmt.Sprintf("%s:%d", n, port)
}

// Literal judges a connection to an address that no name was given for.
func (s *Set) Literal(to netip.AddrPort) Verdict {
	v := Verdict{host: to.Addr().String(), port: to.Port(), literal: true}
	var denied string
	for _, r := range s.literals[to.Addr()] {
		switch {
		case r.Port != to.Port():
		case r.Deny:
			denied = r.ID
		default:
			v.grants = append(v.grants, Grant{Rule: r.ID, Mode: Opaque})
		}
	}
	switch {
	case denied != "":
		v.grants, v.refusal = nil, deniedBy(denied, to.String())
	case len(v.grants) == 0 && Reserved(to.Addr()):
		v.refusal = &Refusal{Rule: RuleAddress, Reason: fmt.Sprintf("no name was given for the address %s", to.Addr())}
	case len(v.grants) == 0:
		v.refusal = &Refusal{
			Rule: RuleAddress, Reason: fmt.Sprintf("%s is an address: connections go to names that were asked for, or to listed addresses", to), Allow: to.String(),
		}
	}
	return v
}

// Grant is one rule that allows a flow.
type Grant struct {
	Rule string
	Mode Mode
	at   []netip.Prefix
}

func (g Grant) permits(addr netip.Addr, class string) bool {
	return class == "" || slices.ContainsFunc(g.at, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// Verdict is what a Set says about a flow: grants, of which one must do for all
// of it, or a refusal.
type Verdict struct {
	grants  []Grant
	refusal *Refusal
	host    string
	port    uint16
	literal bool
}

// Refusal is why the flow is refused; nil when it is not.
func (v Verdict) Refusal() *Refusal { return v.refusal }

// At judges the real address of the host. Class is why it is not public, as the
// function Class says, or empty. Of several grants that allow it the one that
// asks least of the flow is returned.
func (v Verdict) At(addr netip.Addr, class string) (Grant, *Refusal) {
	if v.refusal != nil {
		return Grant{}, v.refusal
	}
	if v.literal {
		return v.grants[0], nil
	}
	best := -1
	for i, g := range v.grants {
		if g.permits(addr, class) && (best < 0 || g.Mode > v.grants[best].Mode) {
			best = i
		}
	}
	if best >= 0 {
		return v.grants[best], nil
	}
	allow := Rule{Host: v.host, At: []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen())}}
	if !slices.ContainsFunc(v.grants, func(g Grant) bool { return g.Mode == Agree }) {
		allow.Port = v.port
	}
	return Grant{}, &Refusal{
		Rule: RulePrivate, Reason: fmt.Sprintf("%s is at %s, which is %s and not on the public internet", v.host, addr, class), Allow: allow.String(),
	}
}

// Anywhere is the grant for a flow whose real address another server finds, such
// as a proxy that is asked by name.
func (v Verdict) Anywhere() (Grant, *Refusal) {
	return v.At(netip.Addr{}, "")
}
