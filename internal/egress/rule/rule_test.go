package rule_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/egress/rule"
)

func TestParseName(t *testing.T) {
	good := map[string]string{
		"pypi.org": "pypi.org", "PyPI.ORG": "pypi.org", "pypi.org.": "pypi.org", "localhost": "localhost", "a-b.c_d.example": "a-b.c_d.example",
		"xn--pypi-4ve.org": "xn--pypi-4ve.org", "r3---sn-x.example.com": "r3---sn-x.example.com", "1password.com": "1password.com", "a.0x": "",
		strings.Repeat("a", 63) + ".org": strings.Repeat("a", 63) + ".org", "123.example": "123.example", "0xyz": "0xyz",
	}
	for in, want := range good {
		if n, err := rule.ParseName(in); string(n) != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", in, n, err)
		}
	}
	for _, in := range []string{
		"", ".", "..", "a..b", ".a", "a..", "pypi.org\x00.evil.com", "pypi.org\r\nHost: evil", "pypi.org%00", "pypi%2eorg", "user@pypi.org", "user:pw@pypi.org",
		"pypi.org:443", "http://pypi.org", "pypi.org/x", "рурі.org", "pypi。org", "ｐypi.org", "127.0.0.1", "127.1", "0177.0.0.1", "0x7f.0.0.1", "2130706433",
		"0x7f000001", "017700000001", "127.0.0.1.", "1.2.3.4.5", "256.256.256.256", "::1", "[::1]", "::ffff:127.0.0.1", "[::ffff:7f00:1]", "fe80::1%eth0",
		"-a.org", "a-.org", "a b.org", "a\tb", "*.a.org", "a.org\\.evil", strings.Repeat("a", 64) + ".org", strings.Repeat("a.", 127) + "org", "a.1", "a.0x1f",
	} {
		n, err := rule.ParseName(in)
		if _, ok := errors.AsType[*rule.NameError](err); !ok || n != "" {
			t.Errorf("%q: %q, %v", in, n, err)
		}
		if err != nil && strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q: the error cannot be shown: %q", in, err)
		}
	}
}

func FuzzParseName(f *testing.F) {
	for _, s := range []string{"pypi.org", "PyPI.org.", "127.1", "0x7f.1", "a\x00b", "xn--a", "[::1]", "1.2.3.4", "a.b.c.d.e", "::ffff:1.2.3.4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := rule.ParseName(s)
		if err != nil {
			return
		}
		if again, err := rule.ParseName(string(n)); err != nil || again != n {
			t.Fatalf("%q: %q is not its own name: %q, %v", s, n, again, err)
		}
		if !strings.EqualFold(strings.TrimSuffix(s, "."), string(n)) {
			t.Fatalf("%q became %q", s, n)
		}
		if _, err := netip.ParseAddr(string(n)); err == nil {
			t.Fatalf("%q is an address", n)
		}
		for _, c := range []byte(n) {
			if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("-_.", c) >= 0) {
				t.Fatalf("%q has %q in it", n, c)
			}
		}
	})
}

func TestParse(t *testing.T) {
	for _, s := range []string{"pypi.org", "*.example.com", "*", "*:22", "smtp.example.com:587", "203.0.114.7:5432", "db.corp:5432 at 10.1.0.0/16", "db.corp at 10.0.0.0/8,fd00::/8"} {
		r, err := rule.Parse(s)
		if err != nil || r.String() != s || r.ID != s {
			t.Errorf("%q: %+v, %v", s, r, err)
		}
	}
	for _, s := range []string{
		"", "*.", "*.*.com", "a*.com", "**", ".", "pypi.org:0", "pypi.org:65536", "pypi.org:", "pypi.org:+1", "pypi.org:080", "pypi.org:https", "203.0.114.7",
		"[::1]:80", "::1", "198.18.0.1:80", "10.88.0.1:53", "203.0.114.7:80 at 10.0.0.0/8", "db at 10.0.0.0", "db at ", "http://pypi.org", "pypi.org/simple",
		"127.1:80", "0x7f000001:80", "010.0.0.1:80", "db at ::ffff:10.0.0.0/100", "deny pypi.org",
	} {
		if r, err := rule.Parse(s); err == nil {
			t.Errorf("%q: %+v", s, r)
		} else if _, ok := errors.AsType[*rule.Error](err); !ok {
			t.Errorf("%q: %v is no *Error", s, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"pypi.org", "*.a.com:22", "*", "1.2.3.4:80", "db at 10.0.0.0/8,fd00::/8"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := rule.Parse(s)
		if err != nil {
			return
		}
		again, err := rule.Parse(r.String())
		if err != nil || again.String() != r.String() {
			t.Fatalf("%q: %q does not read as itself: %v", s, r, err)
		}
		if _, err := rule.Compile([]rule.Rule{r}); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
	})
}

func TestClass(t *testing.T) {
	for _, s := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "169.254.169.254", "169.254.170.2", "169.254.0.1",
		"172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.1",
		"203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "168.63.129.16",
		"::", "::1", "::7f00:1", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::",
		"3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "4000::1", "1::1",
	} {
		if rule.Class(netip.MustParseAddr(s)) == "" {
			t.Errorf("%s is public", s)
		}
	}
	for _, s := range []string{"1.1.1.1", "8.8.8.8", "93.184.215.14", "100.63.255.255", "100.128.0.0", "172.15.0.1", "172.32.0.1", "198.17.255.255", "198.20.0.0", "223.255.255.255", "2606:4700::1111", "2a00:1450::1", "2001:4860:4860::8888"} {
		if c := rule.Class(netip.MustParseAddr(s)); c != "" {
			t.Errorf("%s is %s", s, c)
		}
	}
}

func set(t testing.TB, rules ...rule.Rule) *rule.Set {
	t.Helper()
	s, err := rule.Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func parse(t testing.TB, texts ...string) []rule.Rule {
	t.Helper()
	var out []rule.Rule
	for _, s := range texts {
		r, err := rule.Parse(strings.TrimPrefix(s, "deny "))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(s, "deny ") {
			r.Deny, r.ID = true, s
		}
		out = append(out, r)
	}
	return out
}

func TestSet(t *testing.T) {
	s := set(t, parse(t, "pypi.org", "*.example.com", "smtp.example.com:587", "deny bad.example.com", "deny half.example.com:80", "203.0.114.7:22", "two.org", "two.org:443", "db.corp:5432 at 10.1.0.0/16")...)
	public := netip.MustParseAddr("93.184.215.14")
	for _, c := range []struct {
		name  rule.Name
		port  uint16
		rule  string // that allows or refuses
		mode  rule.Mode
		allow string
	}{
		{"pypi.org", 443, "pypi.org", rule.Agree, ""},
		{"pypi.org", 8080, rule.RulePort, 0, "pypi.org:8080"},
		{"x.pypi.org", 443, rule.RuleName, 0, "x.pypi.org"},
		{"pypi.org.evil.com", 443, rule.RuleName, 0, "pypi.org.evil.com"},
		{"example.com", 443, rule.RuleName, 0, "example.com"},
		{"a.b.example.com", 80, "*.example.com", rule.Agree, ""},
		{"notexample.com", 80, rule.RuleName, 0, "notexample.com"},
		{"smtp.example.com", 587, "smtp.example.com:587", rule.Opaque, ""},
		{"smtp.example.com", 443, "*.example.com", rule.Agree, ""},
		{"bad.example.com", 443, "deny bad.example.com", 0, ""},
		{"half.example.com", 80, "deny half.example.com:80", 0, ""},
		{"half.example.com", 443, "*.example.com", rule.Agree, ""},
		{"two.org", 443, "two.org:443", rule.Opaque, ""},
		{"two.org", 80, "two.org", rule.Agree, ""},
		{"db.corp", 443, rule.RulePort, 0, "db.corp"},
	} {
		g, ref := s.Flow(c.name, c.port).At(public, "")
		if ref != nil {
			if ref.Rule != c.rule || ref.Allow != c.allow || ref.Reason == "" {
				t.Errorf("%s:%d: refused %+v", c.name, c.port, ref)
			}
			continue
		}
		if g.Rule != c.rule || g.Mode != c.mode {
			t.Errorf("%s:%d: %+v", c.name, c.port, g)
		}
	}
	v := s.Flow("db.corp", 5432)
	if _, ref := v.At(netip.MustParseAddr("10.1.2.3"), "private"); ref != nil {
		t.Errorf("listed range: %v", ref)
	}
	if _, ref := v.At(netip.MustParseAddr("10.2.2.3"), "private"); ref == nil || ref.Rule != rule.RulePrivate || ref.Allow != "db.corp:5432 at 10.2.2.3/32" {
		t.Errorf("other range: %+v", ref)
	}
	if ref := s.Name("bad.example.com"); ref == nil || ref.Rule != "deny bad.example.com" {
		t.Errorf("denied name: %+v", ref)
	}
	if ref := s.Literal(netip.MustParseAddrPort("203.0.114.7:22")).Refusal(); ref != nil {
		t.Errorf("listed address: %v", ref)
	}
	if ref := s.Literal(netip.MustParseAddrPort("203.0.114.7:23")).Refusal(); ref == nil || ref.Allow != "203.0.114.7:23" {
		t.Errorf("other port: %+v", ref)
	}
	var zero rule.Set
	if zero.Name("a.org") == nil || zero.Flow("a.org", 80).Refusal() == nil || zero.Literal(netip.MustParseAddrPort("1.1.1.1:80")).Refusal() == nil {
		t.Error("no rules allow something")
	}
}

// TestRefusalsNameARuleThatAllows takes each refusal at its word.
func TestRefusalsNameARuleThatAllows(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		rules := randomRules(rng)
		name, port, addr, class := randomFlow(rng)
		_, ref := set(t, rules...).Flow(name, port).At(addr, class)
		for range 3 { // a name, then a port, then a range
			if ref == nil || ref.Allow == "" {
				break
			}
			r, err := rule.Parse(ref.Allow)
			if err != nil {
				t.Fatalf("%q is no rule: %v", ref.Allow, err)
			}
			rules = append(rules, r)
			_, ref = set(t, rules...).Flow(name, port).At(addr, class)
		}
		if ref != nil && !slices.ContainsFunc(rules, func(r rule.Rule) bool { return r.Deny }) {
			t.Fatalf("%v: %s:%d at %s is still refused: %+v", rules, name, port, addr, ref)
		}
	}
}

// TestMonotone: what an added rule allows, it allows alone, and nothing that was
// allowed is refused.
func TestMonotone(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		rules := randomRules(rng)
		added := randomRule(rng)
		name, port, addr, class := randomFlow(rng)
		allowed := func(rules ...rule.Rule) (rule.Grant, bool) {
			g, ref := set(t, rules...).Flow(name, port).At(addr, class)
			return g, ref == nil
		}
		was, before := allowed(rules...)
		is, after := allowed(append(slices.Clone(rules), added)...)
		_, alone := allowed(added)
		switch {
		case added.Deny && after && !before:
			t.Fatalf("%v + %v: a rule that denies allowed %s:%d", rules, added, name, port)
		case !added.Deny && before && (!after || is.Mode < was.Mode):
			t.Fatalf("%v + %v: %s:%d was allowed more before", rules, added, name, port)
		case after && !before && !alone:
			t.Fatalf("%v + %v: %s:%d at %s is allowed by neither alone", rules, added, name, port, addr)
		}
	}
}

func randomRules(rng *rand.Rand) []rule.Rule {
	out := make([]rule.Rule, rng.IntN(5))
	for i := range out {
		out[i] = randomRule(rng)
	}
	return out
}

func randomRule(rng *rand.Rand) rule.Rule {
	pick := func(s ...string) string { return s[rng.IntN(len(s))] }
	r := rule.Rule{Host: pick("a.org", "b.org", "x.a.org", "*.a.org", "*.org", "*", "y.x.a.org"), Port: []uint16{0, 0, 80, 443, 22}[rng.IntN(5)], Deny: rng.IntN(8) == 0}
	if !r.Deny && rng.IntN(3) == 0 {
		r.At = []netip.Prefix{netip.MustParsePrefix(pick("10.0.0.0/8", "10.1.0.0/16", "127.0.0.0/8"))}
	}
	return r
}

func randomFlow(rng *rand.Rand) (rule.Name, uint16, netip.Addr, string) {
	names := []rule.Name{"a.org", "b.org", "x.a.org", "y.x.a.org", "org", "xa.org", "evil.com"}
	addrs := []string{"93.184.215.14", "10.1.2.3", "10.9.9.9", "127.0.0.1", "169.254.169.254"}
	addr := netip.MustParseAddr(addrs[rng.IntN(len(addrs))])
	return names[rng.IntN(len(names))], []uint16{80, 443, 22, 8080}[rng.IntN(4)], addr, rule.Class(addr)
}

func TestBundles(t *testing.T) {
	for _, b := range rule.Bundles() {
		s := set(t, b.Rules()...)
		if s.Len() == 0 || b.Version == 0 || b.About == "" {
			t.Errorf("%+v", b)
		}
		for _, h := range b.Hosts {
			g, ref := s.Flow(rule.Name(h), 443).At(netip.MustParseAddr("93.184.215.14"), "")
			if ref != nil || g.Rule != "bundle."+b.Name+"/"+h || g.Mode != rule.Agree {
				t.Errorf("%s: %+v %v", h, g, ref)
			}
		}
	}
	if _, ok := rule.FindBundle("pypi"); !ok {
		t.Error("no pypi")
	}
	if _, ok := rule.FindBundle("everything"); ok {
		t.Error("everything is a bundle")
	}
}

func BenchmarkDecide1000Rules(b *testing.B) {
	rules := make([]rule.Rule, 0, 1000)
	for i := range 500 {
		rules = append(rules, rule.Rule{Host: fmt.Sprintf("host%d.example.com", i)}, rule.Rule{Host: fmt.Sprintf("*.zone%d.example.org", i), Port: 443})
	}
	s := set(b, rules...)
	addr := netip.MustParseAddr("93.184.215.14")
	for b.Loop() {
		s.Flow("a.b.zone499.example.org", 443).At(addr, rule.Class(addr))
	}
}
