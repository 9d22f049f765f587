package rule

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Rule lets flows to one host out, or with Deny holds them back.
//
// Its text form is HOST[:PORT][ at PREFIX[,PREFIX]], as in
//
//	pypi.org                          ports 80 and 443, name and flow agreeing
//	*.example.com                     every name below example.com, not itself
//	*                                 every name
//	smtp.example.com:587              any protocol at one port
//	203.0.113.7:5432                  an address that no name was asked for
//	db.corp:5432 at 10.1.0.0/16       a name that resolves to a private address
type Rule struct {
	// ID is how records and refusals name the rule; empty is its text form.
	ID string
	// Host is a canonical Name, "*." before one, "*", or an IPv4 address.
	Host string
	// Port is the one port that the rule speaks of, for any protocol. 0 is 80 and
	// 443, where the first bytes must be HTTP or TLS that names the same host; with
	// Deny it is every port.
	Port uint16
	// At are the ranges that are not public in which the host may be.
	// A rule for an address needs no ranges: the address is its own.
	At []netip.Prefix
	// Deny holds back what the rule speaks of, whatever other rules say.
	Deny bool
}

// Error says why a text or a Rule is no rule.
type Error struct {
	Text string // quoted and cut
	Why  string
	Hint string // empty when there is nothing to say
}

// Error implements error.
func (e *Error) Error() string { return "egress rule " + e.Text + ": " + e.Why }

// Parse reads the text form. Deny and ID have none and are left empty. The error
// is an *Error.
func Parse(s string) (Rule, error) {
	var r Rule
	bad := func(why, hint string) (Rule, error) { return Rule{}, &Error{Text: quote(s), Why: why, Hint: hint} }
	host, at, ranged := strings.Cut(s, " at ")
	if ranged {
		for text := range strings.SplitSeq(at, ",") {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return bad(quote(text)+" is no range of addresses", "write ranges such as 10.1.0.0/16, separated by commas")
			}
			r.At = append(r.At, p)
		}
	}
	if strings.HasPrefix(host, "[") || strings.Count(host, ":") > 1 {
		return bad("an IPv6 address is nothing that a sandbox can reach, its link has IPv4 only", "write the name of the host")
	}
	host, port, ported := strings.Cut(host, ":")
	if ported {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || port[0] == '0' || port[0] == '+' {
			return bad(quote(port)+" is no port", "write a number from 1 to 65535, or no port for 80 and 443")
		}
		r.Port = uint16(n)
	}
	r.Host = host
	r, err := r.canonical()
	if e := (*Error)(nil); errors.As(err, &e) {
		e.Text = quote(s)
		return Rule{}, e
	}
	return r, nil
}

// String is the text form.
func (r Rule) String() string {
	var b strings.Builder
	if r.Deny {
		b.WriteString("deny ")
	}
	b.WriteString(r.Host)
	if r.Port != 0 {
		fmt.Fprintf(&b, ":%d", r.Port)
	}
	for i, p := range r.At {
		b.WriteString([]string{" at ", ","}[min(i, 1)])
		b.WriteString(p.String())
	}
	return b.String()
}

// canonical is r with its host in canonical form and an id, or an *Error.
func (r Rule) canonical() (Rule, error) {
	bad := func(why, hint string) (Rule, error) {
		return Rule{}, &Error{Text: quote(r.String()), Why: why, Hint: hint}
	}
	if addr, err := netip.ParseAddr(r.Host); err == nil {
		switch {
		case !addr.Is4():
			return bad("an IPv6 address is nothing that a sandbox can reach, its link has IPv4 only", "write the name of the host")
		case Reserved(addr):
			return bad("this range is for the addresses that sandboxes see instead of the real ones", "write the name of the host")
		case r.Port == 0:
			return bad("an address needs a port", "write "+addr.String()+":443")
		case len(r.At) > 0:
			return bad("ranges are for names, an address is where it is", "write "+addr.String()+":"+strconv.Itoa(int(r.Port)))
		}
		r.Host = addr.String()
	} else if r.Host != "*" {
		below, wild := strings.CutPrefix(r.Host, "*.")
		if strings.Contains(below, "*") {
			return bad("a star stands only for all that comes before a name", `write "*.example.com"`)
		}
		n, err := ParseName(below)
		if e := (*NameError)(nil); errors.As(err, &e) {
			return bad(e.Error(), e.Hint)
		}
		if r.Host = string(n); wild {
			r.Host = "*." + r.Host
		}
	}
	if r.Deny && len(r.At) > 0 {
		return bad("a rule that denies has no ranges", "deny the host alone: it is held back wherever it is")
	}
	r.At = slices.Clone(r.At)
	for i, p := range r.At {
		if !p.IsValid() || p.Addr().Is4In6() || p.Addr().Zone() != "" {
			return bad("a range is not valid", "write ranges such as 10.1.0.0/16")
		}
		r.At[i] = p.Masked()
	}
	if r.ID == "" {
		r.ID = r.String()
	}
	return r, nil
}

// Names is the range of addresses that stand for names inside a sandbox.
func Names() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, 0, 0}), 15) }

// Wire is the range of the link itself: the sandbox and our end of it.
func Wire() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 88, 0, 0}), 24) }

// Reserved is true for the addresses of the link and of names, which no rule can
// speak of.
func Reserved(addr netip.Addr) bool { return Names().Contains(addr) || Wire().Contains(addr) }
