package ingress

import (
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// idPrefix begins the IDs of sandboxes. It is not in host names.
const idPrefix = "sb-"

// idLength is the length of an ID without its prefix.
const idLength = 16

// Base is the part that the origins of all ports share.
type Base struct {
	// Scheme is http or https, as clients see it.
	Scheme string
	// Domain is the domain below which the ports are, in lower case: "localhost".
	Domain string
	// Port is the port in the URLs. Zero is the scheme's own.
	Port int
}

// ParseBase reads a base such as "https://*.box.example.org:8443".
func ParseBase(text string) (Base, error) {
	wrong := func() (Base, error) {
		return Base{}, api.Invalid("ports.url", "%.200q is not the URL of ports", text).
			WithHint("write the scheme, an asterisk for the name of a port, and the domain: https://*.box.example.org")
	}
	u, err := url.Parse(strings.Replace(text, "://*.", "://", 1))
	if err != nil || !strings.Contains(text, "://*.") || u.Scheme != "http" && u.Scheme != "https" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery {
		return wrong()
	}
	b := Base{Scheme: u.Scheme, Domain: strings.ToLower(u.Hostname())}
	if net.ParseIP(b.Domain) != nil || !validDomain(b.Domain) {
		return wrong()
	}
	if p := u.Port(); p != "" {
		if b.Port, err = strconv.Atoi(p); err != nil || b.Port < 1 || b.Port > 65535 {
			return wrong()
		}
	}
	return b, nil
}

// validDomain reports whether a domain, with the name of a port before it, is a host name.
func validDomain(s string) bool {
	if len(s) == 0 || len(s) > 253-len("65535-.")-idLength {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "-") != label {
			return false
		}
		for _, c := range label {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return false
			}
		}
	}
	return true
}

// Secure reports whether clients use TLS.
func (b Base) Secure() bool { return b.Scheme == "https" }

// Origin returns the origin of a port of a sandbox.
func (b Base) Origin(sandbox string, port int) string {
	host := strconv.Itoa(port) + "-" + strings.TrimPrefix(sandbox, idPrefix) + "." + b.Domain
	if b.Port != 0 && b.Port != map[string]int{"http": 80, "https": 443}[b.Scheme] {
		host += ":" + strconv.Itoa(b.Port)
	}
	return b.Scheme + "://" + host
}

// parse returns the sandbox and the port that a Host or the host of an origin names. Its port number
// is not compared, because a proxy in front of the listener can have another one.
func (b Base) parse(host string) (sandbox string, port int, ok bool) {
	if len(host) > 300 {
		return "", 0, false
	}
	name, digits, has := strings.Cut(host, ":")
	if has && !decimal(digits, 5) {
		return "", 0, false
	}
	label, domain, found := strings.Cut(strings.ToLower(name), ".")
	if !found || domain != b.Domain {
		return "", 0, false
	}
	number, id, found := strings.Cut(label, "-")
	if !found || len(id) != idLength || !decimal(number, 5) || number[0] == '0' {
		return "", 0, false
	}
	for _, c := range id {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return "", 0, false
		}
	}
	port, err := strconv.Atoi(number)
	if err != nil || port < 1 || port > 65535 {
		return "", 0, false
	}
	return idPrefix + id, port, true
}

// decimal reports whether s has 1 to most decimal digits.
func decimal(s string, most int) bool {
	if s == "" || len(s) > most {
		return false
	}
	for _, c := range s {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}
