// Package rule is the grammar of egress: which names and addresses a rule may
// speak of, what a list of rules allows, and why it refuses the rest. It does no
// I/O and keeps no state.
package rule

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Name is a host name in its one canonical form: lower-case ASCII, labels of
// letters, digits, '-' and '_', no dot at the end, not an address in any
// notation. Only ParseName makes one from foreign bytes, so that two Names are
// the same host exactly when they are the same string.
type Name string

const (
	maxName  = 253
	maxLabel = 63
)

// NameError says why a text is not a host name. Text is quoted and cut, so it
// can be shown and logged whatever was in it.
type NameError struct {
	Text string
	Why  string
	// Hint is what would be right; empty when there is nothing to say.
	Hint string
}

// Error implements error.
func (e *NameError) Error() string { return "host name " + e.Text + " " + e.Why }

// ParseName reads a host name as rules, DNS questions, Host headers and TLS
// hellos write it. Upper case is folded and one dot at the end is dropped, for
// they change nothing; everything else that is not a plain name is refused:
// escapes, ports, userinfo, non-ASCII letters, and addresses in any of the
// notations that some resolver somewhere accepts. The error is a *NameError.
func ParseName(s string) (Name, error) {
	bad := func(why, hint string) (Name, error) {
		return "", &NameError{Text: quote(s), Why: why, Hint: hint}
	}
	t := strings.TrimSuffix(s, ".")
	switch {
	case s == "":
		return bad("is empty", "")
	case t == "":
		return bad("is the root of all names", "write a name such as pypi.org")
	case len(t) > maxName:
		return bad(fmt.Sprintf("has %d bytes, %d are allowed", len(t), maxName), "")
	}
	if _, err := netip.ParseAddr(strings.Trim(t, "[]")); err == nil {
		return bad("is an address", "an address is allowed only as ip:port")
	}
	folded := []byte(t)
	for i, c := range folded {
		switch {
		case c >= 'A' && c <= 'Z':
			folded[i] = c + 'a' - 'A'
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		case c >= 0x80:
			return bad("has a letter that is not ASCII", "write the form that begins with xn--, and look at it twice")
		case c == '@':
			return bad("has userinfo", "write the host alone")
		case c == ':' || c == '/':
			return bad(fmt.Sprintf("has %q in it", c), "write the host alone, without scheme, port or path")
		default:
			return bad(fmt.Sprintf("has the byte %#02x in it", c), "letters, digits, '-', '_' and '.' are allowed")
		}
	}
	var last string
	for label := range strings.SplitSeq(string(folded), ".") {
		switch {
		case label == "":
			return bad("has an empty label", "")
		case len(label) > maxLabel:
			return bad(fmt.Sprintf("has a label of %d bytes, %d are allowed", len(label), maxLabel), "")
		case label[0] == '-' || label[len(label)-1] == '-':
			return bad("has a label that begins or ends with '-'", "")
		}
		last = label
	}
	// "127.1", "0x7f.0.0.1", "2130706433" and "017700000001" are addresses to
	// many a C library: whatever ends in a number is one.
	if number(last) {
		return bad("ends in a number, as an address does", "an address is allowed only as ip:port")
	}
	return Name(folded), nil
}

// number is true for what inet_aton reads as a number, and for what is nearly so.
func number(label string) bool {
	if rest, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(rest, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// quote is s in a form that is safe to show.
func quote(s string) string {
	const limit = 80
	if len(s) > limit {
		s = s[:limit] + "..."
	}
	return strconv.QuoteToASCII(s)
}
