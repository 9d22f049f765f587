package rule

import "strings"

// Host is a port of a host, or of all names below one, where a secret may go.
type Host struct {
	// Name is canonical, with "*." before it for all names below.
	Name string
	Port uint16
}

// ParseHost reads HOST or HOST:PORT; the port is 443 where none is given. The error is
// an *Error.
func ParseHost(s string) (Host, error) {
	r, err := Parse(s)
	if err != nil {
		return Host{}, err
	}
	below, _ := strings.CutPrefix(r.Host, "*.")
	if _, err := ParseName(below); err != nil || len(r.At) > 0 {
		return Host{}, &Error{Text: quote(s), Why: "it is not the name of a host", Hint: `write "api.example.com" or "*.example.com:8443"`}
	}
	if r.Port == 0 {
		r.Port = 443
	}
	return Host{r.Host, r.Port}, nil
}

// String is the form that ParseHost reads: the same host has the same text.
func (h Host) String() string {
	if h.Port == 443 {
		return h.Name
	}
	return Rule{Host: h.Name, Port: h.Port}.String()
}

// Matches says whether a port of n is one that h speaks of.
func (h Host) Matches(n Name, port uint16) bool {
	return h.Port == port && coversHost(h.Name, string(n))
}
