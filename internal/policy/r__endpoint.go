package policy

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
	maxTarget = 2048
)

const targetHint = "write http://HOST[:PORT][/BASE], https://HOST[:PORT][/BASE], tcp://HOST:PORT, unix:///SOCKET, unix+tcp:///SOCKET, client, client+tcp or replay:NAME"

// endpointTarget is the target of an endpoint.
type endpointTarget struct {
	// scheme is http, https, tcp, unix, unix+tcp, client, client+tcp or replay. Only the first
	// three have a host. For the unix schemes, base is a path. For replay it is the name of a
	// recording, or empty in a rule for all recordings.
	scheme, host string
	port         uint16
	// base begins with "/" or is empty. It does not end with "/".
	base string
}

// parseTarget parses a target, or returns what is wrong with it.
func parseTarget(s string) (t endpointTarget, wrong string) {
	if s == api.TargetClient || s == api.TargetClientTCP {
		return endpointTarget{scheme: s}, ""
	}
	if name, ok := strings.CutPrefix(s, api.TargetReplay); ok {
		if !api.ValidName(name) {
			return t, "has no name that a recording can have"
		}
		return endpointTarget{scheme: schemeReplay, base: name}, ""
	}
	if s == schemeReplay {
		return endpointTarget{scheme: s}, ""
	}
	if scheme, socket, ok := strings.Cut(s, "://"); ok && (scheme == "unix" || scheme == "unix+tcp") {
		if !path.IsAbs(socket) || path.Clean(socket) != socket || socket == "/" || len(socket) > maxSocketPath || strings.ContainsFunc(socket, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
			return t, "has no path of a socket: absolute, in its shortest form, of at most " + strconv.Itoa(maxSocketPath) + " bytes"
		}
		return endpointTarget{scheme: scheme, base: socket}, ""
	}
	if len(s) > maxTarget {
		return t, "is longer than " + strconv.Itoa(maxTarget) + " bytes"
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
	t.scheme, t.host = u.Scheme, strings.ToLower(u.Hostname())
	n, err := strconv.ParseUint(cmp.Or(u.Port(), normal), 10, 16)
	if err != nil || n == 0 {
		return t, "has no port"
	}
	t.port = uint16(n)
	if a, err := netip.ParseAddr(t.host); err == nil {
		if rule.Never(a) {
			return t, "has an address that is never a target"
		}
		t.host = a.String()
	} else if name, err := rule.ParseName(t.host); err != nil && t.host != "localhost" {
		return t, "has no host that can be found"
	} else if err == nil {
		t.host = string(name)
	}
	t.base = strings.TrimRight(u.EscapedPath(), "/")
	for _, p := range []string{u.Path, u.EscapedPath()} {
		if strings.Contains(p, "//") || slices.ContainsFunc(strings.Split(p, "/"), func(s string) bool { return s == "." || s == ".." }) {
			return t, "has a path that is not in its shortest form"
		}
	}
	return t, ""
}

// String returns the canonical form of a target.
func (t endpointTarget) String() string {
	if t.scheme == schemeReplay && t.base != "" {
		return api.TargetReplay + t.base
	}
	if t.isSocket() {
		return t.scheme + "://" + t.base
	}
	if t.host == "" {
		return t.scheme
	}
	host := t.host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port := strconv.Itoa(int(t.port)); t.scheme == "tcp" || (map[string]string{"http": "80", "https": "443"})[t.scheme] != port {
		host += ":" + port
	}
	return t.scheme + "://" + host + t.base
}

// holds reports whether everything that the other target reaches is below this one.
func (t endpointTarget) holds(o endpointTarget) bool {
	if t.scheme == schemeReplay && o.scheme == schemeReplay {
		return t.base == "" || t.base == o.base
	}
	if t.isSocket() {
		return t == o // what is below a directory can have other owners
	}
	return t.scheme == o.scheme && t.host == o.host && t.port == o.port && (o.base == t.base || strings.HasPrefix(o.base, t.base+"/"))
}

// isSocket reports whether the target is a socket on the machine.
func (t endpointTarget) isSocket() bool { return t.scheme == "unix" || t.scheme == "unix+tcp" }

// maxSocketPath is the limit of the kernel.
const maxSocketPath = 107

// ruleEndpoints checks the endpoint rules of a policy file.
func ruleEndpoints(r Rules, report reporter) {
	for i, e := range r.Endpoints {
		field := at("endpoints", i)
		if _, wrong := parseTarget(e.Target); wrong != "" {
			report(api.Invalid(field+".target", "target %s cannot be allowed: it %s", show(e.Target), wrong).WithHint(targetHint))
		}
		for j, s := range e.At {
			if _, err := netip.ParsePrefix(s); err != nil {
				report(api.Invalid(at(field+".at", j), "%s %s is not a range of addresses", at(field+".at", j), show(s)).
					WithHint("write a range such as 10.1.0.0/16"))
			}
		}
		if e.Audit != "" && captureRank(e.Audit) == 0 {
			report(api.Invalid(field+".audit", "%s.audit is %s", field, show(e.Audit)).WithHint("write headers or body"))
		}
		if filterStrength(e.BodyFilter) < 0 {
			report(api.Invalid(field+".body_filter", "%s.body_filter is %s", field, show(e.BodyFilter)).WithHint("write off, strip or refuse"))
		}
		for j, t := range e.Tenants {
			if t == "" {
				report(api.Invalid(at(field+".tenants", j), "%s is empty", at(field+".tenants", j)).
					WithHint("name a tenant, or leave tenants out to grant it to every caller"))
			}
		}
	}
}
