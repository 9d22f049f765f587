package policy_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

const egressFile = `
egress:
  allow: ["@corp", "*.example.com", "db.corp:5432 at 10.1.0.0/16", "203.0.113.7:5432"]
  deny: ["paste.example.com", "metadata.corp:80"]
  requests: ["GET,HEAD api.example.com/v1/*"]
  limits: {connections: 100, bytes_out: 1MiB}
  bundles:
    corp: [git.corp at 10.0.0.0/8, "@inner"]
    inner: [ci.corp]
  upstream: {proxy: "http://proxy.corp:3128", no_proxy: [git.corp, .intern, 10.0.0.0/8, 192.0.2.1]}
  hosts: {git.corp: 10.2.3.4}
profiles:
  networked: {network: on, egress: {allow: [pypi.org], limits: {bytes_out: 512KiB}}}
  settled: {network: on, egress: {allow: ["@pypi"]}, locked: [egress]}
tenants:
  tcp: {egress: {allow: ["tenant.example.net"], deny: ["no.example.com"]}}
`

func egressOf(t *testing.T, p policy.Permit) policy.EgressGrant {
	t.Helper()
	g, ok := p.Egress()
	if !ok {
		t.Fatal("the sandbox has no network")
	}
	return g
}

func asking(allow ...string) api.SandboxSpec {
	return api.SandboxSpec{Egress: &api.Egress{Allow: allow}}
}

func flows(t *testing.T, g policy.EgressGrant, now time.Time) *rule.Set {
	t.Helper()
	s, err := rule.Compile(g.RulesAt(now))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEgressOfTheBuiltinProfiles(t *testing.T) {
	for _, name := range []string{"agent", "default", "offline_readonly"} {
		if _, ok := decide(t, api.SandboxSpec{Profile: name}, tenant, rules.Rules{}).Egress(); ok {
			t.Errorf("%s has a network", name)
		}
	}
	for _, name := range []string{"network_basic", "network_extended"} {
		p := decide(t, api.SandboxSpec{Profile: name}, tenant, rules.Rules{})
		g := egressOf(t, p)
		if want := []string{"@pypi", "@npm", "@debian", "@github-read"}; !slices.Equal(p.Spec().Egress.Allow, want) || p.Spec().Network != "on" {
			t.Errorf("%s: %+v", name, p.Spec())
		}
		s := flows(t, g, time.Time{})
		if s.Flow("pypi.org", 443).Refusal() != nil || s.Flow("example.com", 443).Refusal() == nil {
			t.Errorf("%s: the list does not say what it says", name)
		}
		if _, ok := decide(t, api.SandboxSpec{Profile: name, Network: "none"}, tenant, rules.Rules{}).Egress(); ok {
			t.Errorf("%s: a network although none was asked for", name)
		}
		decide(t, api.SandboxSpec{Profile: name, Egress: &api.Egress{Allow: []string{"pypi.org", "@npm"}}}, tenant, rules.Rules{})
	}
	// A network without a list is one on which nothing is allowed.
	g := egressOf(t, decide(t, api.SandboxSpec{Network: "on"}, tenant, rules.Rules{}))
	if len(g.Rules) != 0 {
		t.Errorf("nothing was asked, and %v is granted", g.Rules)
	}
	p := decide(t, api.SandboxSpec{Profile: "offline_readonly", Egress: &api.Egress{Allow: []string{"pypi.org"}}}, operator, rules.Rules{})
	if _, ok := p.Egress(); ok || p.Spec().Network != "none" || p.Spec().Egress != nil || len(p.Adjusted()) != 1 || p.Adjusted()[0].Field != "egress" {
		t.Errorf("locked: %+v %+v", p.Spec(), p.Adjusted())
	}
}

// A proxy without a port has the one of its scheme.
func TestProxyPorts(t *testing.T) {
	for proxy, want := range map[string]rules.EgressUpstream{
		"http://proxy.corp": {Address: "proxy.corp:80"}, "https://proxy.corp/": {Address: "proxy.corp:443", TLS: true},
		"https://proxy.corp:8443": {Address: "proxy.corp:8443", TLS: true}, "http://[::1]:3128": {Address: "[::1]:3128"},
	} {
		g := egressOf(t, decide(t, asking("a.example"), operator, mustParse(t, "egress: {upstream: {proxy: '"+proxy+"'}}")))
		if g.Upstream == nil || !reflect.DeepEqual(*g.Upstream, want) {
			t.Errorf("%s is %+v, want %+v", proxy, g.Upstream, want)
		}
	}
	for _, bad := range []string{"http://proxy.corp:0", "http://proxy.corp:65536", "http://:80", "http://proxy.corp/x", "http://proxy.corp?x", "http://proxy.corp#x", "ftp://proxy.corp"} {
		if _, err := rules.ParseRules([]byte("egress: {upstream: {proxy: '" + bad + "'}}")); api.CodeOf(err) != api.CodeInvalid {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestEgressGrants(t *testing.T) {
	r := mustParse(t, egressFile)
	p := decide(t, asking("@corp", "API.example.com.", "db.corp:5432 at 10.1.2.0/24", "api.example.com"), tenant, r)
	g := egressOf(t, p)
	if want := []string{"@corp", "api.example.com", "db.corp:5432 at 10.1.2.0/24"}; !slices.Equal(p.Spec().Egress.Allow, want) {
		t.Errorf("shown as %q", p.Spec().Egress.Allow)
	}
	var ids []string
	for _, r := range g.Rules {
		ids = append(ids, r.ID)
	}
	if want := []string{
		"@corp/git.corp at 10.0.0.0/8", "@corp/ci.corp", "api.example.com", "db.corp:5432 at 10.1.2.0/24",
		"egress.deny:paste.example.com", "egress.deny:metadata.corp:80", "egress.deny:no.example.com",
	}; !slices.Equal(ids, want) {
		t.Errorf("rules %q", ids)
	}
	if g.Limits != (api.EgressLimits{Connections: 100, BytesOut: 1 << 20}) {
		t.Errorf("limits %+v", g.Limits)
	}
	if want := (&rules.EgressUpstream{
		Address: "proxy.corp:3128", Except: []string{"git.corp", ".intern"},
		ExceptAddrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.1/32")},
	}); !reflect.DeepEqual(g.Upstream, want) || g.Hosts["git.corp"][0] != netip.MustParseAddr("10.2.3.4") {
		t.Errorf("upstream %+v, hosts %v", g.Upstream, g.Hosts)
	}
	q, err := g.RequestRules()
	if err != nil || q.Judge("api.example.com", "GET", "/v1/models?x=1") != nil || q.Judge("api.example.com", "POST", "/v1/models") == nil || q.SpeaksOf("ci.corp") {
		t.Errorf("requests %v, %v", g.Demanded, err)
	}
	if p := decide(t, api.SandboxSpec{Profile: "networked"}, tenant, r); p.Spec().Egress.Limits.BytesOut != 512<<10 || !slices.Equal(p.Spec().Egress.Allow, []string{"pypi.org"}) {
		t.Errorf("networked: %+v", p.Spec().Egress)
	}
	decide(t, asking("tenant.example.net"), tenant, r)
	decide(t, asking("anything.at.all:22", "10.0.0.1:80", "* at 0.0.0.0/0"), operator, r)
	p = decide(t, api.SandboxSpec{Profile: "settled", Egress: &api.Egress{Allow: []string{"x.org"}, Deny: []string{"pypi.org"}, Ask: true}}, operator, r)
	if e := p.Spec().Egress; !slices.Equal(e.Allow, []string{"@pypi"}) || !slices.Equal(e.Deny, []string{"pypi.org"}) || e.Ask || len(p.Adjusted()) != 2 {
		t.Errorf("settled: %+v %+v", e, p.Adjusted())
	}
}

func TestEgressRefusals(t *testing.T) {
	r := mustParse(t, egressFile)
	with := func(e api.Egress) api.SandboxSpec { return api.SandboxSpec{Egress: &e} }
	for name, c := range map[string]struct {
		spec api.SandboxSpec
		as   policy.Caller
		want want
	}{
		"not granted":     {asking("evil.org"), tenant, want{api.CodeDenied, "egress.allow[0]", "egress.allow", "`egress: {allow: [\"evil.org\"]}`"}},
		"apex":            {asking("example.com"), tenant, want{api.CodeDenied, "egress.allow[0]", "egress.allow", "example.com"}},
		"other tenant's":  {asking("tenant.example.net"), policy.UnixCaller(7, 0), want{api.CodeDenied, "", "egress.allow", "uid-7"}},
		"wider":           {asking("*"), tenant, want{api.CodeDenied, "", "egress.allow", "\"*\""}},
		"port":            {asking("a.example.com:22"), tenant, want{api.CodeDenied, "", "egress.allow", "a.example.com:22"}},
		"opaque 443":      {asking("a.example.com:443"), tenant, want{api.CodeDenied, "", "egress.allow", ":443"}},
		"range":           {asking("db.corp:5432 at 10.0.0.0/8"), tenant, want{api.CodeDenied, "", "egress.allow", "10.0.0.0/8"}},
		"range of none":   {asking("a.example.com at 127.0.0.0/8"), tenant, want{api.CodeDenied, "", "egress.allow", "127.0.0.0/8"}},
		"other address":   {asking("203.0.113.8:5432"), tenant, want{api.CodeDenied, "", "egress.allow", "203.0.113.8"}},
		"bundle":          {asking("@npm"), tenant, want{api.CodeDenied, "", "egress.allow", "registry.npmjs.org"}},
		"denied":          {asking("paste.example.com"), tenant, want{api.CodeDenied, "egress.allow[0]", "egress.deny:paste.example.com", "holds it back"}},
		"denied operator": {asking("paste.example.com"), operator, want{api.CodeDenied, "egress.allow[0]", "egress.deny:paste.example.com", ""}},
		"tenant's deny":   {asking("no.example.com"), tenant, want{api.CodeDenied, "", "egress.deny:no.example.com", ""}},
		"unseen requests": {asking("api.example.com:443"), operator, want{api.CodeDenied, "", "egress.requests", "without port"}},
		"no bundle":       {asking("@nope"), operator, want{api.CodeInvalid, "egress.allow[0]", "", "corp, debian"}},
		"no rule":         {asking("http://pypi.org"), operator, want{api.CodeInvalid, "egress.allow[0]", "", ""}},
		"deny as allow":   {asking("deny pypi.org"), operator, want{api.CodeInvalid, "egress.allow[0]", "", ""}},
		"NUL":             {asking("pypi.org\x00"), operator, want{api.CodeInvalid, "egress.allow[0]", "", "0x00"}},
		"deny with range": {with(api.Egress{Deny: []string{"a.org at 10.0.0.0/8"}}), operator, want{api.CodeInvalid, "egress.deny[0]", "", "ranges"}},
		"many":            {asking(slices.Repeat([]string{"a.org"}, 257)...), operator, want{api.CodeTooLarge, "egress.allow", "", "256"}},
		"long":            {asking(strings.Repeat("a", 2000)), operator, want{api.CodeTooLarge, "egress.allow[0]", "", ""}},
		"none and rules":  {api.SandboxSpec{Network: "none", Egress: &api.Egress{}}, operator, want{api.CodeInvalid, "egress", "", "leave"}},
		"limit":           {with(api.Egress{Limits: api.EgressLimits{BytesOut: 2 << 20}}), operator, want{api.CodeDenied, "egress.limits.bytes_out", "egress.limits.bytes_out", "1048576"}},
		"negative":        {with(api.Egress{Limits: api.EgressLimits{BytesIn: -1}}), operator, want{api.CodeInvalid, "egress.limits.bytes_in", "", ""}},
		"requests of none": {with(api.Egress{Allow: []string{"a.org"}, Requests: []api.RequestRule{{Host: "b.org"}}}), operator,
			want{api.CodeInvalid, "egress.requests[0]", "", "b.org"}},
		"requests unseen": {with(api.Egress{Allow: []string{"a.org", "a.org:443"}, Requests: []api.RequestRule{{Host: "a.org"}}}), operator,
			want{api.CodeInvalid, "egress.requests", "", "any protocol"}},
		"method": {with(api.Egress{Allow: []string{"a.org"}, Requests: []api.RequestRule{{Host: "a.org", Methods: []string{"get"}}}}), operator,
			want{api.CodeInvalid, "egress.requests[0]", "", "capital"}},
		"path": {with(api.Egress{Allow: []string{"a.org"}, Requests: []api.RequestRule{{Host: "a.org", Paths: []string{"/a/../b"}}}}), operator,
			want{api.CodeInvalid, "egress.requests[0]", "", "path"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := policy.Decide(policy.Request{Spec: c.spec, Facts: facts()}, c.as, r)
			c.want.check(t, err)
		})
	}
	f := facts()
	f.Engines[0].Enforces["egress"] = api.Enforcement{Reason: "/host/path"}
	_, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Network: "on"}, Facts: f}, tenant, r)
	want{api.CodeUnsupported, "network", "", "operator sees why"}.check(t, err)
	f = facts()
	f.NoInterception = api.Errorf(api.CodeUnsupported, "no TLS is opened here").WithHint("x")
	_, err = policy.Decide(policy.Request{Spec: api.SandboxSpec{Network: "on"}, Facts: f}, operator, r)
	want{api.CodeUnsupported, "", "", "no TLS"}.check(t, err)
	_, err = policy.Decide(policy.Request{Spec: with(api.Egress{Ask: true}), Facts: facts()}, operator, mustParse(t, "egress: {ask: false}"))
	want{api.CodeDenied, "egress.ask", "egress.ask", "ask: true"}.check(t, err)
}

func TestEgressFileErrors(t *testing.T) {
	for name, c := range map[string]struct{ text, field, says string }{
		"rule":           {"egress: {allow: [a_b..c]}", "egress.allow[0]", "empty label"},
		"number":         {"egress: {allow: [{x: y}]}", "egress.allow[0]", "one value"},
		"bundle":         {"egress: {allow: ['@nope']}", "egress.allow[0]", "no such bundle"},
		"cycle":          {"egress: {bundles: {a: ['@b'], b: ['@c'], c: ['@a']}}", "egress.bundles.a", "a > b > c > a"},
		"itself":         {"egress: {bundles: {pypi: ['@pypi']}}", "egress.bundles.pypi", "pypi > pypi"},
		"empty bundle":   {"egress: {bundles: {a: []}}", "egress.bundles.a", "empty"},
		"bundle name":    {"egress: {bundles: {A b: [x.org]}}", "egress.bundles.A b", "not valid"},
		"deny range":     {"egress: {deny: ['a.org at 10.0.0.0/8']}", "egress.deny[0]", "ranges"},
		"limit":          {"egress: {limits: {connections: -1}}", "egress.limits.connections", "-1"},
		"request":        {"egress: {requests: ['get a.org']}", "egress.requests[0]", "method"},
		"proxy":          {"egress: {upstream: {proxy: 'socks5://x:1'}}", "egress.upstream.proxy", "http://HOST"},
		"proxy user":     {"egress: {upstream: {proxy: 'http://u:hunter2@x:1'}}", "egress.upstream.proxy", "password"},
		"no_proxy":       {"egress: {upstream: {proxy: 'http://x:1', no_proxy: ['*']}}", "egress.upstream.no_proxy[0]", ".NAME"},
		"no_proxy alone": {"egress: {upstream: {no_proxy: [a]}}", "egress.upstream.no_proxy", "no proxy"},
		"host":           {"egress: {hosts: {a.org: b.org}}", "egress.hosts.a.org", "no address"},
		"host twice":     {"egress: {hosts: {a.org: 10.0.0.1, A.ORG: 10.0.0.2}}", "", "same name"},
		"profile":        {"profiles: {x: {egress: {allow: ['::1']}}}", "profiles.x.egress.allow[0]", "IPv6"},
		"tenant":         {"tenants: {x: {egress: {limits: {bytes_in: -1}}}}", "", ""},
		"key":            {"egress: {alow: []}", "egress.alow", "no key"},
		"twice":          {"egress: {allow: [], allow: []}", "egress.allow", "duplicate"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rules.ParseRules([]byte(c.text))
			want{code: api.CodeInvalid, field: c.field, says: c.says}.check(t, err)
			if strings.Contains(fmt.Sprint(err), "hunter2") {
				t.Errorf("the error tells a password: %v", err)
			}
		})
	}
}

func TestEgressShadowedRules(t *testing.T) {
	var got []string
	for _, p := range policy.CheckFile([]byte(`
egress:
  allow: ["*.example.com", a.example.com, "@pypi", pypi.org, bad.org, "api.corp:443"]
  deny: [bad.org, "*.bad.org", "x.bad.org:80"]
  requests: [api.corp]
tenants: {red: {egress: {allow: [b.example.com]}}}
`)) {
		if !p.Warning {
			t.Errorf("%+v", p)
		}
		got = append(got, p.Key)
	}
	if want := []string{"egress.allow[1]", "egress.allow[3]", "egress.allow[4]", "egress.allow[5]", "egress.deny[2]", "tenants.red.egress.allow[0]"}; !slices.Equal(got, want) {
		t.Errorf("warned of %q, want %q", got, want)
	}
}

func TestEgressChange(t *testing.T) {
	r := mustParse(t, egressFile)
	now := time.Unix(1_000_000, 0)
	in := policy.Settings{Ref: "box", Tenant: tenant.Tenant, Profile: "agent"}
	g := egressOf(t, decide(t, asking("a.example.com"), tenant, r))
	change := func(c api.EgressChange, as policy.Caller, at time.Time) error {
		t.Helper()
		next, err := policy.DecideEgressChange(c, g, in, as, r, at)
		if err == nil {
			g = next
		}
		return err
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(change(api.EgressChange{Allow: []string{"@corp", "b.example.com"}, ForMS: 60_000}, tenant, now))
	must(change(api.EgressChange{Allow: []string{"evil.org"}}, operator, now))
	s := flows(t, g, now)
	for _, n := range []rule.Name{"a.example.com", "b.example.com", "ci.corp", "evil.org"} {
		if ref := s.Flow(n, 443).Refusal(); ref != nil {
			t.Errorf("%s: %v", n, ref)
		}
	}
	if end, ok := g.NextEnd(now); !ok || end != now.Add(time.Minute) {
		t.Errorf("ends at %v", end)
	}
	if in := g.InForce(now); len(in.Temporary) != 2 || len(in.Egress.Allow) != 4 || len(in.Operator) != 4 {
		t.Errorf("in force %+v", in)
	}
	later := now.Add(time.Minute)
	if s := flows(t, g, later); s.Flow("ci.corp", 443).Refusal() == nil || s.Flow("a.example.com", 443).Refusal() != nil {
		t.Error("a temporary rule does not end, or takes another with it")
	}
	if _, ok := g.NextEnd(later); ok {
		t.Error("something ends after all has ended")
	}
	want{api.CodeDenied, "allow[0]", "egress.allow", ""}.check(t, change(api.EgressChange{Allow: []string{"worse.org"}}, tenant, later))
	want{api.CodeDenied, "allow[0]", "egress.deny:paste.example.com", ""}.check(t, change(api.EgressChange{Allow: []string{"paste.example.com"}}, operator, later))
	want{api.CodeInvalid, "allow", "", ""}.check(t, change(api.EgressChange{}, operator, later))
	want{api.CodeInvalid, "remove[0]", "", "not in force"}.check(t, change(api.EgressChange{Remove: []string{"b.example.com"}}, operator, later))
	// Only the operator lifts what the operator holds back on a tenant's sandbox.
	must(change(api.EgressChange{Deny: []string{"a.example.com"}}, operator, later))
	if flows(t, g, later).Flow("a.example.com", 443).Refusal() == nil {
		t.Error("a deny does not hold")
	}
	want{api.CodeDenied, "remove[0]", "operator_only", ""}.check(t, change(api.EgressChange{Remove: []string{"deny a.example.com"}}, tenant, later))
	must(change(api.EgressChange{Remove: []string{"deny a.example.com", "evil.org"}}, operator, later))
	must(change(api.EgressChange{Deny: []string{"a.example.com"}, ForMS: 1000}, tenant, later))
	if flows(t, g, later).Flow("a.example.com", 443).Refusal() == nil || flows(t, g, later.Add(time.Second)).Flow("a.example.com", 443).Refusal() != nil {
		t.Error("a deny for a while is not one")
	}
	must(change(api.EgressChange{Remove: []string{"deny a.example.com"}}, tenant, later))
	if flows(t, g, later).Flow("a.example.com", 443).Refusal() != nil || flows(t, g, later).Flow("evil.org", 443).Refusal() == nil {
		t.Error("a removal removes nothing, or too much")
	}
	in.Profile = "settled"
	want{api.CodeDenied, "allow", "profiles.settled.locked.egress", ""}.check(t, change(api.EgressChange{Allow: []string{"b.example.com"}}, operator, later))
}

func TestRefreshedEgressHoldsBackMore(t *testing.T) {
	g := egressOf(t, decide(t, asking("a.org", "b.org"), operator, rules.Rules{}))
	r := mustParse(t, "egress: {deny: [a.org], hosts: {b.org: 192.0.2.1}}")
	in := policy.Settings{Tenant: "local", Profile: "agent"}
	for range 2 {
		var err error
		if g, err = policy.RefreshEgress(g, in, r, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
	}
	s := flows(t, g, time.Unix(1, 0))
	if s.Flow("a.org", 443).Refusal() == nil || s.Flow("b.org", 443).Refusal() != nil || len(g.Rules) != 3 || len(g.Hosts) != 1 {
		t.Errorf("refreshed: %+v", g)
	}
	g, err := policy.RefreshEgress(g, in, rules.Rules{}, time.Unix(1, 0))
	if err != nil || len(g.Rules) != 2 || len(g.Hosts) != 0 {
		t.Errorf("refreshed again: %+v %v", g, err)
	}
}

// TestEgressIsMonotone: what a caller is granted lies in one rule of the operator's, a
// further grant changes no other decision, and lets out nothing that it does not hold.
func TestEgressIsMonotone(t *testing.T) {
	some := []string{"a.org", "x.a.org", "*.a.org", "*", "b.org", "a.org:22", "*:22", "a.org at 10.1.0.0/16", "*.a.org at 10.0.0.0/8", "192.0.2.9:80", "a.org:443"}
	item := func(r *rand.Rand) rules.EgressItem {
		i, err := rule.ParseItem(pick(r, some...))
		if err != nil {
			t.Fatal(err)
		}
		return rules.EgressItem{Item: i}
	}
	compile := func(items ...rules.EgressItem) *rule.Set {
		var set []rule.Rule
		for _, i := range items {
			set = append(set, i.Rule)
		}
		s, err := rule.Compile(set)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	lets := func(s *rule.Set, f flow) bool {
		if f.addr.IsValid() {
			return s.Literal(netip.AddrPortFrom(f.addr, f.port)).Refusal() == nil
		}
		v := s.Flow(f.name, f.port)
		if v.Refusal() != nil {
			return false
		}
		g, ref := v.At(f.at, rule.Class(f.at))
		return ref == nil && g.Mode >= f.mode
	}
	granted, opened := 0, 0
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 3))
		var set rules.Rules
		for range r.IntN(3) {
			set.Egress.Allow = append(set.Egress.Allow, item(r))
		}
		more := set
		added := item(r)
		more.Egress.Allow = append(slices.Clone(set.Egress.Allow), added)
		spec := asking(item(r).String())
		if r.IntN(2) == 0 {
			spec.Egress.Allow = append(spec.Egress.Allow, item(r).String())
		}
		p, err := policy.Decide(policy.Request{Spec: spec, Facts: facts()}, tenant, set)
		q, err2 := policy.Decide(policy.Request{Spec: spec, Facts: facts()}, tenant, more)
		switch {
		case err == nil && (err2 != nil || !reflect.DeepEqual(p, q)):
			t.Fatalf("a further grant changes a decision: %v\n%+v\n%+v", err2, p, q)
		case err2 != nil:
			continue
		}
		granted++
		if err != nil {
			opened++
		}
		g := egressOf(t, q)
		one := compile(more.Egress.Allow...)
		for range 20 {
			f := randomFlow(r)
			if lets(flows(t, g, time.Time{}), f) && !lets(one, f) {
				t.Fatalf("%q lets out %+v, which %v do not hold", spec.Egress.Allow, f, more.Egress.Allow)
			}
			if err == nil && lets(compile(set.Egress.Allow...), f) != lets(one, f) && !lets(compile(added), f) {
				t.Fatalf("the grant %v changes %+v", added, f)
			}
		}
	}
	if granted < 1000 || opened < 200 {
		t.Errorf("the sample says little: %d granted, %d opened", granted, opened)
	}
}

type flow struct {
	name rule.Name
	port uint16
	at   netip.Addr
	mode rule.Mode
	addr netip.Addr
}

func randomFlow(r *rand.Rand) flow {
	f := flow{
		name: pick[rule.Name](r, "a.org", "x.a.org", "y.x.a.org", "b.org", "org"), port: pick[uint16](r, 22, 80, 443, 8080),
		at: netip.MustParseAddr(pick(r, "93.184.216.34", "10.1.2.3", "10.2.2.3", "127.0.0.1")), mode: pick(r, rule.Agree, rule.Opaque),
	}
	if r.IntN(6) == 0 {
		f.addr = netip.MustParseAddr(pick(r, "192.0.2.9", "192.0.2.8"))
	}
	return f
}

func FuzzEgressRules(f *testing.F) {
	for _, s := range []string{"a.org", "*.a.org:22", "@pypi", "a.org at 10.0.0.0/8", "deny a.org", "1.2.3.4:80", "a\x00b", "@a/b", "*", "127.1:80"} {
		f.Add(s, s)
	}
	r, err := rules.ParseRules([]byte(egressFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, allow, deny string) {
		spec := api.SandboxSpec{Egress: &api.Egress{Allow: []string{allow}, Deny: []string{deny}}}
		p, err := policy.Decide(policy.Request{Spec: spec, Facts: facts()}, tenant, r)
		if err != nil {
			if text := err.Error(); strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
				t.Fatalf("an error that cannot be shown: %q", text)
			}
			return
		}
		// A tenant reaches only destinations that a rule of the operator has.
		s := flows(t, egressOf(t, p), time.Time{})
		for _, n := range []rule.Name{"evil.org", "example.com", "paste.example.com", "no.example.com"} {
			if s.Flow(n, 443).Refusal() == nil {
				t.Fatalf("%q lets %s out", allow, n)
			}
		}
	})
}
