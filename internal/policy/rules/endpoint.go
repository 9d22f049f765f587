package rules

import (
	"cmp"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// Limits of an endpoint.
const (
	MaxTarget = 2048
)

const TargetHint = "write http://HOST[:PORT][/BASE], https://HOST[:PORT][/BASE], tcp://HOST:PORT, unix:///SOCKET, unix+tcp:///SOCKET, client, client+tcp or replay:NAME"

// EndpointTarget is the target of an endpoint.
type EndpointTarget struct {
	// scheme is http, https, tcp, unix, unix+tcp, client, client+tcp or replay. Only the first
	// three have a host. For the unix schemes, base is a path. For replay it is the name of a
	// recording, or empty in a rule for all recordings.
	Scheme, Host string
	Port         uint16
	// base begins with "/" or is empty. It does not end with "/".
	Base string
}

// ParseTarget parses a target, or returns what is wrong with it.
func ParseTarget(s string) (t EndpointTarget, wrong string) {
	if s == api.TargetClient || s == api.TargetClientTCP {
		return EndpointTarget{Scheme: s}, ""
	}
	if name, ok := strings.CutPrefix(s, api.TargetReplay); ok {
		if !api.ValidName(name) {
			return t, "has no name that a recording can have"
		}
		return EndpointTarget{Scheme: SchemeReplay, Base: name}, ""
	}
	if s == SchemeReplay {
		return EndpointTarget{Scheme: s}, ""
	}
	if scheme, socket, ok := strings.Cut(s, "://"); ok && (scheme == "unix" || scheme == "unix+tcp") {
		if !path.IsAbs(socket) || path.Clean(socket) != socket || socket == "/" || len(socket) > MaxSocketPath || strings.ContainsFunc(socket, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
			return t, "has no path of a socket: absolute, in its shortest form, of at most " + strconv.Itoa(MaxSocketPath) + " bytes"
		}
		return EndpointTarget{Scheme: scheme, Base: socket}, ""
	}
	if len(s) > MaxTarget {
		return t, "is longer than " + strconv.Itoa(MaxTarget) + " bytes"
	}
	u, err := url.Parse(s)
	if err != nil || u.Opaque != "" || strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '\\' }) {
		return t, "is no URL"
	}
	normal, known := map[string]string{"http": "80", "https": "443", "tcp": ""}[u.Scheme]
	switch {
	case !known:
		return t, "has a scheme that no endpoint knows"
	case u.User != nil:
		return t, "has a user or password in it, which belong in a secret"
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Contains(s, "#"):
		return t, "has a query or fragment"
	case u.Scheme == "tcp" && strings.Trim(u.Path, "/") != "":
		return t, "has a path, which bytes do not go to"
	}
	t.Scheme, t.Host = u.Scheme, strings.ToLower(u.Hostname())
	n, err := strconv.ParseUint(cmp.Or(u.Port(), normal), 10, 16)
	if err != nil || n == 0 {
		return t, "has no port"
	}
	t.Port = uint16(n)
	if a, err := netip.ParseAddr(t.Host); err == nil {
		if rule.Never(a) {
			return t, "has an address that is never a target"
		}
		t.Host = a.String()
	} else if name, err := rule.ParseName(t.Host); err != nil && t.Host != "localhost" {
		return t, "has no host that can be found"
	} else if err == nil {
		t.Host = string(name)
	}
	t.Base = strings.TrimRight(u.EscapedPath(), "/")
	for _, p := range []string{u.Path, u.EscapedPath()} {
		if strings.Contains(p, "//") || slices.ContainsFunc(strings.Split(p, "/"), func(s string) bool { return s == "." || s == ".." }) {
			return t, "has a path that is not in its shortest form"
		}
	}
	return t, ""
}

// String returns the canonical form of a target.
func (t EndpointTarget) String() string {
	if t.Scheme == SchemeReplay && t.Base != "" {
		return api.TargetReplay + t.Base
	}
	if t.IsSocket() {
		return t.Scheme + "://" + t.Base
	}
	if t.Host == "" {
		return t.Scheme
	}
	host := t.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port := strconv.Itoa(int(t.Port)); t.Scheme == "tcp" || (map[string]string{"http": "80", "https": "443"})[t.Scheme] != port {
		host += ":" + port
	}
	return t.Scheme + "://" + host + t.Base
}

// Holds reports whether everything that the other target reaches is below this one.
func (t EndpointTarget) Holds(o EndpointTarget) bool {
	if t.Scheme == SchemeReplay && o.Scheme == SchemeReplay {
		return t.Base == "" || t.Base == o.Base
	}
	if t.IsSocket() {
		return t == o // what is below a directory can have other owners
	}
	return t.Scheme == o.Scheme && t.Host == o.Host && t.Port == o.Port && (o.Base == t.Base || strings.HasPrefix(o.Base, t.Base+"/"))
}

// IsSocket reports whether the target is a socket on the machine.
func (t EndpointTarget) IsSocket() bool { return t.Scheme == "unix" || t.Scheme == "unix+tcp" }

// MaxSocketPath is the limit of the kernel.
const MaxSocketPath = 107

// ruleEndpoints checks the endpoint rules of a policy file.
func ruleEndpoints(r Rules, report Reporter) {
	for i, e := range r.Endpoints {
		field := ElementAt("endpoints", i)
		if _, wrong := ParseTarget(e.Target); wrong != "" {
			report(api.Invalid(field+".target", "target %s cannot be allowed: it %s", Quote(e.Target), wrong).WithHint(TargetHint))
		}
		for j, s := range e.At {
			if _, err := netip.ParsePrefix(s); err != nil {
				report(api.Invalid(ElementAt(field+".at", j), "%s %s is not a range of addresses", ElementAt(field+".at", j), Quote(s)).
					WithHint("write a range such as 10.1.0.0/16"))
			}
		}
		if e.Audit != "" && CaptureRank(e.Audit) == 0 {
			report(api.Invalid(field+".audit", "%s.audit is %s", field, Quote(e.Audit)).WithHint("write headers or body"))
		}
		if FilterStrength(e.BodyFilter) < 0 {
			report(api.Invalid(field+".body_filter", "%s.body_filter is %s", field, Quote(e.BodyFilter)).WithHint("write off, strip or refuse"))
		}
		for j, t := range e.Tenants {
			if t == "" {
				report(api.Invalid(ElementAt(field+".tenants", j), "%s is empty", ElementAt(field+".tenants", j)).
					WithHint("name a tenant, or leave tenants out to grant it to every caller"))
			}
		}
	}
}

// CaptureRank orders what is recorded of requests; 0 is an unknown value.
func CaptureRank(s string) int {
	return slices.Index([]string{api.CaptureHeaders, api.CaptureBody}, s) + 1
}

// FilterStrength orders filters. A negative value is an unknown filter.
func FilterStrength(f string) int {
	return slices.Index([]string{api.BodyFilterOff, api.BodyFilterStrip, api.BodyFilterRefuse}, cmp.Or(f, api.BodyFilterOff))
}

// SchemeReplay is the scheme of recordings. In a rule it stands for all of them.
const SchemeReplay = "replay"
