package rules

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// EgressUpstream is an HTTP proxy that gets CONNECT requests by name.
type EgressUpstream struct {
	// Address is HOST:PORT.
	Address string `json:"address"`
	// TLS means that the connection to the proxy itself uses TLS.
	TLS bool `json:"tls,omitempty"`
	// Except lists names with direct connections; a name with a leading dot includes all names
	// below it. ExceptAddrs is the same for addresses.
	Except      []string       `json:"except,omitempty"`
	ExceptAddrs []netip.Prefix `json:"except_addrs,omitempty"`
}

// Limits of a request.
const (
	FieldEgress = "egress"
)

// EgressRule says what can leave sandboxes. A rule is written HOST[:PORT][ at RANGE[,RANGE]], and
// @NAME stands for all rules of a bundle.
type EgressRule struct {
	// Allow lists what callers other than the operator can request, in addition to the lists of
	// the profile and the tenant. One of the rules must cover all of a requested rule.
	Allow []EgressItem `yaml:"allow"`
	// Deny is denied to all callers, the operator included, even if another rule allows it.
	Deny []EgressItem `yaml:"deny"`
	// Requests limit HTTP to hosts for all callers, written [METHOD[,METHOD]] HOST[PATH[,PATH]].
	// One of the rules for a host must allow a request. The TLS of these hosts is intercepted.
	Requests []RequestLine `yaml:"requests"`
	// Limits are the maximum for each sandbox over its lifetime, and the default of requests that
	// set none.
	Limits EgressLimitRule `yaml:"limits"`
	// Bundles are named lists, which override the built-in bundles of the same names. They can
	// name one another.
	Bundles map[string][]EgressItem `yaml:"bundles"`
	// Ask says whether sandboxes can hold connections for approval. Nil is true.
	Ask *bool `yaml:"ask"`
	// Upstream is the proxy that all traffic goes through.
	Upstream UpstreamRule `yaml:"upstream"`
	// Hosts are addresses of names, for which no resolver is asked. Rules apply to them as to
	// other addresses: a non-public address needs a rule that says where the host may be.
	Hosts map[string]string `yaml:"hosts"`
}

// EgressPart is the egress of a profile or a tenant.
type EgressPart struct {
	// Allow is allowed in addition to the list for all. The list of a profile is also the default
	// of its sandboxes.
	Allow *[]EgressItem `yaml:"allow"`
	// Deny is denied in addition to the list for all.
	Deny []EgressItem `yaml:"deny"`
	// Limits of a tenant override those for all. Those of a profile apply in addition.
	Limits EgressLimitRule `yaml:"limits"`
}

// EgressLimitRule limits what leaves a sandbox over its lifetime. Absent is no limit.
type EgressLimitRule struct {
	Connections *int64 `yaml:"connections"`
	// BytesOut and BytesIn count the payload of connections.
	BytesOut *Size `yaml:"bytes_out"`
	BytesIn  *Size `yaml:"bytes_in"`
}

// UpstreamRule is an HTTP proxy that gets CONNECT requests by name.
type UpstreamRule struct {
	// Proxy is http://HOST[:PORT], or https:// to use TLS to the proxy.
	Proxy string `yaml:"proxy"`
	// NoProxy lists names and addresses with direct connections: a single name, .NAME for all
	// names below it, an address or a range.
	NoProxy []string `yaml:"no_proxy"`
}

// EgressItem is one rule, or a bundle of them.
type EgressItem struct{ rule.Item }

// RequestLine is one rule on requests.
type RequestLine struct{ rule.Request }

// UnmarshalYAML reads a scalar.
func (i *EgressItem) UnmarshalYAML(n ast.Node) (err error) {
	*i, err = scalar(n, parseEgressItem)
	return err
}

// UnmarshalYAML reads a scalar.
func (l *RequestLine) UnmarshalYAML(n ast.Node) (err error) {
	*l, err = scalar(n, parseRequestLine)
	return err
}

func parseEgressItem(s string) (EgressItem, error) {
	i, err := rule.ParseItem(s)
	return EgressItem{i}, err
}

func parseRequestLine(s string) (RequestLine, error) {
	r, err := rule.ParseRequest(s)
	return RequestLine{r}, err
}

// RuleError converts an error of package rule, with its position in a request or a file.
func RuleError(field string, err error) *api.Error {
	if err == nil {
		return nil
	}
	e := api.Invalid(field, "%s: %v", field, err)
	hint := "write HOST, HOST:PORT, HOST at RANGE or @BUNDLE"
	if re, ok := errors.AsType[*rule.Error](err); ok && re.Hint != "" {
		hint = re.Hint
	}
	return e.WithHint("%s", hint)
}

// Book returns the bundles that exist.
func (r EgressRule) Book() rule.Book {
	if len(r.Bundles) == 0 {
		return nil
	}
	b := rule.Book{}
	for name, items := range r.Bundles {
		b[name] = itemsOf(items)
	}
	return b
}

func itemsOf(items []EgressItem) []rule.Item {
	out := make([]rule.Item, 0, len(items))
	for _, i := range items {
		out = append(out, i.Item)
	}
	return out
}

func ruleEgress(r Rules, report Reporter) {
	tell := func(err *api.Error) {
		if err != nil {
			report(err)
		}
	}
	book := r.Egress.Book()
	check := func(field string, items []EgressItem, deny bool) {
		for i, item := range items {
			_, err := ExpandItem(book, item.Item, deny)
			tell(RuleError(ElementAt(field, i), err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Egress.Bundles)) {
		field := "egress.bundles." + Shorten(name)
		if !rule.ValidBundle(name) {
			tell(api.Invalid(field, "bundle name %s is not valid", Quote(name)).WithHint("use a-z, 0-9 and '-'"))
			continue
		}
		if len(r.Egress.Bundles[name]) == 0 {
			tell(api.Invalid(field, "the bundle %s is empty", name).WithHint("write rules into it, or leave it out"))
		}
		_, err := book.Expand(rule.Item{Bundle: name})
		tell(RuleError(field, err))
	}
	check("egress.allow", r.Egress.Allow, false)
	check("egress.deny", r.Egress.Deny, true)
	ruleEgressLimits("egress.limits", r.Egress.Limits, report)
	part := func(field string, p EgressPart) {
		if p.Allow != nil {
			check(field+".allow", *p.Allow, false)
		}
		check(field+".deny", p.Deny, true)
		ruleEgressLimits(field+".limits", p.Limits, report)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Profiles)) {
		part("profiles."+Shorten(name)+".egress", r.Profiles[name].Egress)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Tenants)) {
		part("tenants."+Shorten(name)+".egress", r.Tenants[name].Egress)
	}
	_, err := r.Egress.HostAddrs()
	tell(err)
	_, err = r.Egress.Upstream.Read()
	tell(err)
}

func ruleEgressLimits(field string, r EgressLimitRule, report Reporter) {
	for _, l := range EgressLimits() {
		if v, ok := l.Ruled(r); ok && (v < 0 || v > MaxEgressLimit) {
			report(api.Invalid(field+"."+l.Key, "%s.%s is %d", field, l.Key, v).WithHint("write a positive number, or 0 for no bound"))
		}
	}
}

// ExpandItem expands one line of a list, as deny or allow rules.
func ExpandItem(book rule.Book, item rule.Item, deny bool) ([]rule.Rule, error) {
	set, err := book.Expand(item)
	if err != nil || !deny {
		return set, err
	}
	for i := range set {
		set[i].Deny = true
		if len(set[i].At) > 0 {
			return nil, &rule.Error{Text: Quote(item.String()), Why: "a rule that denies has no ranges", Hint: "deny the host alone: it is held back wherever it is"}
		}
	}
	return set, nil
}

// HostAddrs returns the operator's addresses of names.
func (r EgressRule) HostAddrs() (map[string][]netip.Addr, *api.Error) {
	if len(r.Hosts) == 0 {
		return nil, nil
	}
	out := map[string][]netip.Addr{}
	for _, name := range slices.Sorted(maps.Keys(r.Hosts)) {
		field := "egress.hosts." + Shorten(name)
		n, err := rule.ParseName(name)
		if err != nil {
			return nil, api.Invalid(field, "%s: %v", field, err).WithHint("write a name such as db.corp")
		}
		if _, twice := out[string(n)]; twice {
			return nil, api.Invalid(field, "%s is the same name as another one here", field).WithHint("keep one of them")
		}
		a, err := netip.ParseAddr(r.Hosts[name])
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return nil, api.Invalid(field, "%s is %s, which is no address", field, Quote(r.Hosts[name])).WithHint("write an address such as 10.1.2.3")
		}
		out[string(n)] = []netip.Addr{a}
	}
	return out, nil
}

// Read returns the proxy in the form of a grant, or nil without a proxy.
func (r UpstreamRule) Read() (*EgressUpstream, *api.Error) {
	const field = "egress.upstream"
	if r.Proxy == "" {
		if len(r.NoProxy) > 0 {
			return nil, api.Invalid(field+".no_proxy", "%s.no_proxy is set and there is no proxy", field).WithHint("write %s.proxy, or leave it out", field)
		}
		return nil, nil
	}
	u, err := url.Parse(r.Proxy)
	bad := func(format string, args ...any) *api.Error {
		return api.Invalid(field+".proxy", format, args...).WithHint("write http://HOST:PORT or https://HOST:PORT")
	}
	switch {
	case err != nil:
		return nil, bad("%s.proxy is no address of a proxy", field) // the error would repeat the text that it could not read
	case u.User != nil:
		return nil, bad("%s.proxy has a user or a password in it, which a policy file does not hold", field)
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return nil, bad("%s.proxy is %s", field, Quote(r.Proxy))
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return nil, bad("%s.proxy has the port %s", field, Quote(port))
	}
	out := &EgressUpstream{Address: net.JoinHostPort(u.Hostname(), port), TLS: u.Scheme == "https"}
	for i, e := range r.NoProxy {
		if a, err := netip.ParseAddr(e); err == nil {
			out.ExceptAddrs = append(out.ExceptAddrs, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		if p, err := netip.ParsePrefix(e); err == nil {
			out.ExceptAddrs = append(out.ExceptAddrs, p.Masked())
			continue
		}
		below, dotted := strings.CutPrefix(e, ".")
		n, err := rule.ParseName(below)
		if err != nil {
			return nil, api.Invalid(ElementAt(field+".no_proxy", i), "%s: %v", ElementAt(field+".no_proxy", i), err).WithHint("write a name, .NAME for all below it, an address or a range")
		}
		if dotted {
			out.Except = append(out.Except, "."+string(n))
		} else {
			out.Except = append(out.Except, string(n))
		}
	}
	return out, nil
}

// EgressLimit is one of the limits, so that the common code exists once.
type EgressLimit struct {
	Key   string
	Of    func(*api.EgressLimits) *int64
	Ruled func(EgressLimitRule) (int64, bool)
}

// MaxEgressLimit is far above any real usage.
const MaxEgressLimit = 1 << 60

// EgressLimits are the limits of egress that a rule can set.
func EgressLimits() []EgressLimit {
	return []EgressLimit{
		{"connections", func(l *api.EgressLimits) *int64 { return &l.Connections }, func(r EgressLimitRule) (int64, bool) { return whole(r.Connections) }},
		{"bytes_out", func(l *api.EgressLimits) *int64 { return &l.BytesOut }, func(r EgressLimitRule) (int64, bool) { return whole(r.BytesOut) }},
		{"bytes_in", func(l *api.EgressLimits) *int64 { return &l.BytesIn }, func(r EgressLimitRule) (int64, bool) { return whole(r.BytesIn) }},
	}
}

func whole[T ~int64](p *T) (int64, bool) {
	if p == nil {
		return 0, false
	}
	return int64(*p), true
}

// EgressBy returns the key that sets the egress of a profile's sandboxes.
func (p *Profile) EgressBy() string {
	if p.egressRuled {
		return KeyPath(p.Name, "egress", "allow")
	}
	return ByBuiltin + ":profiles." + p.Name + ".egress.allow"
}

// defaultBundles returns the bundles of the built-in profiles with a network.
func defaultBundles() []EgressItem {
	var out []EgressItem
	for _, name := range []string{"pypi", "npm", "debian", "github-read"} {
		out = append(out, EgressItem{rule.Item{Bundle: name}})
	}
	return out
}
