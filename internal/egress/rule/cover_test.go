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

func parsed(t testing.TB, text string) rule.Rule {
	t.Helper()
	r, err := rule.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCovers(t *testing.T) {
	for _, tc := range []struct {
		wide, narrow string
		want         bool
	}{
		{"a.org", "a.org", true}, {"a.org", "A.ORG.", true}, {"a.org", "b.org", false}, {"a.org", "x.a.org", false}, {"a.org", "xa.org", false},
		{"*.a.org", "x.a.org", true}, {"*.a.org", "*.x.a.org", true}, {"*.a.org", "*.a.org", true}, {"*.a.org", "a.org", false}, {"*.a.org", "xa.org", false},
		{"*.x.a.org", "*.a.org", false}, {"x.a.org", "*.a.org", false}, {"*", "a.org", true}, {"*", "*.a.org", true}, {"*", "*", true}, {"*.org", "*", false},
		{"a.org:22", "a.org:22", true}, {"a.org", "a.org:22", false}, {"a.org", "a.org:443", false}, {"a.org:443", "a.org", false}, {"*:22", "a.org:22", true},
		{"192.0.2.1:80", "192.0.2.1:80", true}, {"*:80", "192.0.2.1:80", false}, {"192.0.2.1:80", "192.0.2.1:81", false},
		{"a.org at 10.0.0.0/8", "a.org", true}, {"a.org at 10.0.0.0/8", "a.org at 10.1.0.0/16", true}, {"a.org at 10.0.0.0/8", "a.org at 10.0.0.0/8", true}, {"a.org", "a.org at 10.1.0.0/16", false},
		{"a.org at 10.1.0.0/16", "a.org at 10.0.0.0/8", false}, {"a.org at 10.0.0.0/8,192.168.0.0/16", "a.org at 192.168.7.0/24,10.0.0.1/32", true},
		{"a.org at 10.0.0.0/9,10.128.0.0/9", "a.org at 10.0.0.0/8", false},
	} {
		if got := parsed(t, tc.wide).Covers(parsed(t, tc.narrow)); got != tc.want {
			t.Errorf("%s covers %s: %t", tc.wide, tc.narrow, got)
		}
	}
	deny := parsed(t, "*.a.org")
	deny.Deny = true
	if deny.Covers(parsed(t, "x.a.org")) || !deny.HoldsBack(parsed(t, "x.a.org:22")) || deny.HoldsBack(parsed(t, "a.org")) || deny.HoldsBack(deny) {
		t.Error("a rule that denies grants, or holds back too little or too much")
	}
}

// TestCoversIsSound: what a covered rule lets out, the covering one lets out too, and
// asks no more of it.
func TestCoversIsSound(t *testing.T) {
	hosts := []string{"a.org", "x.a.org", "y.x.a.org", "*.a.org", "*.x.a.org", "*", "*.org", "b.org"}
	ports := []string{"", "", ":22", ":443"}
	at := []string{"", "", " at 10.0.0.0/8", " at 10.1.0.0/16,127.0.0.0/8", " at 127.0.0.1/32"}
	covered := 0
	for seed := range uint64(30_000) {
		r := rand.New(rand.NewPCG(seed, 9))
		text := func() string { return hosts[r.IntN(len(hosts))] + ports[r.IntN(len(ports))] + at[r.IntN(len(at))] }
		wide, narrow := parsed(t, text()), parsed(t, text())
		if !wide.Covers(narrow) {
			continue
		}
		covered++
		w, n := set(t, wide), set(t, narrow)
		for range 10 {
			name := []rule.Name{"a.org", "x.a.org", "y.x.a.org", "b.org", "org"}[r.IntN(5)]
			port := []uint16{22, 80, 443}[r.IntN(3)]
			addr := netip.MustParseAddr([]string{"93.184.216.34", "10.1.2.3", "10.2.2.3", "127.0.0.1", "127.0.0.2"}[r.IntN(5)])
			got, ref := n.Flow(name, port).At(addr, rule.Class(addr))
			if ref != nil {
				continue
			}
			grant, ref := w.Flow(name, port).At(addr, rule.Class(addr))
			if ref != nil || grant.Mode < got.Mode {
				t.Fatalf("%s covers %s, and %s:%d at %s is let out by the latter only: %v", wide, narrow, name, port, addr, ref)
			}
		}
	}
	if covered < 1000 {
		t.Errorf("only %d pairs: the sample says little", covered)
	}
}

func TestSmallestRuleLetsOut(t *testing.T) {
	for _, have := range []string{"b.org", "a.org:22", "*.a.org"} {
		for _, port := range []uint16{22, 80, 443, 8080} {
			ref := set(t, parsed(t, have)).Flow("a.org", port).Refusal()
			if ref == nil {
				continue
			}
			if ref := set(t, parsed(t, have), parsed(t, ref.Allow)).Flow("a.org", port).Refusal(); ref != nil {
				t.Errorf("with %s port %d is still refused: %v", have, port, ref)
			}
		}
	}
}

func TestBook(t *testing.T) {
	item := func(s string) rule.Item {
		i, err := rule.ParseItem(s)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	book := rule.Book{
		"corp": {item("git.corp at 10.0.0.0/8"), item("@inner"), item("@inner")}, "inner": {item("ci.corp"), item("@npm")}, "npm": {item("npm.corp")},
		"loop": {item("@pool")}, "pool": {item("@loop")}, "lost": {item("@nowhere")},
	}
	rules, err := book.Expand(item("a.org:22"), item("@corp"))
	var ids []string
	for _, r := range rules {
		ids = append(ids, r.ID)
	}
	if want := []string{"a.org:22", "@corp/git.corp at 10.0.0.0/8", "@corp/ci.corp", "@corp/npm.corp"}; err != nil || !slices.Equal(ids, want) {
		t.Errorf("%q, %v", ids, err)
	}
	for name, why := range map[string]string{"@loop": "loop > pool > loop", "@lost": "no such bundle", "@nope": "no such bundle"} {
		if _, err := book.Expand(item(name)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Bundles that hold each other many times over come to no more than once.
	deep := rule.Book{"b0": {item("a.org")}}
	for i := range 40 {
		name := string(rune('a'+i%26)) + string(rune('a'+i/26))
		last := "b0"
		if i > 0 {
			last = string(rune('a'+(i-1)%26)) + string(rune('a'+(i-1)/26))
		}
		deep[name] = []rule.Item{item("@" + last), item("@" + last)}
	}
	if rules, err := deep.Expand(item("@nb")); err != nil || len(rules) != 1 {
		t.Errorf("%d rules, %v", len(rules), err)
	}
	// As many rules as a bundle may come to, and one more.
	many := make([]rule.Item, 10_000)
	for i := range many {
		many[i] = item(fmt.Sprintf("h%d.org", i))
	}
	most := rule.Book{"most": many, "over": {item("@most"), item("one.org")}}
	if rules, err := most.Expand(item("@most")); err != nil || len(rules) != len(many) {
		t.Errorf("%d rules, %v", len(rules), err)
	}
	if rules, err := most.Expand(item("@over")); err == nil {
		t.Errorf("%d rules", len(rules))
	}
	for _, bad := range []string{"@", "@A", "@a b", "@a/b", "@-a", "@" + strings.Repeat("a", 64)} {
		if _, err := rule.ParseItem(bad); err == nil {
			t.Errorf("%q is a bundle", bad)
		}
	}
}

func TestRequests(t *testing.T) {
	compile := func(groups ...[]string) *rule.Requests {
		var all [][]rule.Request
		for _, g := range groups {
			var list []rule.Request
			for _, text := range g {
				r, err := rule.ParseRequest(text)
				if err != nil {
					t.Fatal(err)
				}
				list = append(list, r)
			}
			all = append(all, list)
		}
		s, err := rule.CompileRequests(all...)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := compile([]string{"GET,HEAD api.a.org/v1/*,/health", "POST api.a.org/v1/jobs", "*.b.org"}, []string{"GET *.a.org"})
	for _, tc := range []struct {
		host   rule.Name
		method string
		target string
		want   bool
	}{
		{"api.a.org", "GET", "/v1/x?y=/../z", true}, {"api.a.org", "HEAD", "/v1/", false}, {"api.a.org", "GET", "/health", true}, {"api.a.org", "GET", "/health/", false},
		{"api.a.org", "GET", "/v1", false}, {"api.a.org", "POST", "/v1/jobs", false}, {"api.a.org", "GET", "/v2", false}, {"api.a.org", "get", "/v1/x", false},
		{"x.a.org", "GET", "/any", true}, {"x.a.org", "DELETE", "/any", false}, {"c.org", "DELETE", "/../x", true}, {"x.b.org", "DELETE", "/x", true},
		{"api.a.org", "GET", "/v1/../v2", false}, {"api.a.org", "GET", "/v1/%2e%2e/v2", false}, {"api.a.org", "GET", "/v1/%2E./v2", false}, {"api.a.org", "GET", "/v1//x", false},
		{"api.a.org", "GET", "/v1/x%2fy", false}, {"api.a.org", "GET", "/v1/%252e%252e/v2", false}, {"api.a.org", "GET", "/v1/..;a/v2", false}, {"api.a.org", "GET", `/v1/..\v2`, false},
		{"api.a.org", "GET", "/v1/%00", false}, {"api.a.org", "GET", "/v1/%zz", false}, {"api.a.org", "GET", "http://api.a.org/v1/x", false}, {"api.a.org", "OPTIONS", "*", false},
	} {
		ref := s.Judge(tc.host, tc.method, tc.target)
		if (ref == nil) != tc.want {
			t.Errorf("%s %s%s: %v", tc.method, tc.host, tc.target, ref)
		}
		if ref == nil {
			continue
		}
		if strings.ContainsFunc(ref.Reason, func(r rune) bool { return r < ' ' || r > '~' }) || ref.Rule != rule.RuleRequests {
			t.Errorf("%s %s%s: %+v", tc.method, tc.host, tc.target, ref)
		}
		if ref.Allow == "" {
			continue
		}
		r, err := rule.ParseRequest(ref.Allow)
		if one, cerr := rule.CompileRequests([]rule.Request{r}); err != nil || cerr != nil || one.Judge(tc.host, tc.method, tc.target) != nil {
			t.Errorf("%q would not allow it: %v %v", ref.Allow, err, cerr)
		}
	}
	if !s.SpeaksOf("api.a.org") || s.SpeaksOf("a.org") || (*rule.Requests)(nil).SpeaksOf("a.org") || (*rule.Requests)(nil).Judge("a.org", "GET", "/") != nil {
		t.Error("it speaks of other hosts than it names")
	}
	if !s.Opaque(parsed(t, "*:443")) || !s.Opaque(parsed(t, "x.a.org:80")) || s.Opaque(parsed(t, "x.a.org")) || s.Opaque(parsed(t, "x.a.org:22")) || s.Opaque(parsed(t, "c.org:443")) {
		t.Error("an opaque rule is not seen")
	}
	for _, bad := range []string{
		"", "GET ", "get a.org", "CONNECT a.org", "GET,, a.org", "a.org:443/x", "192.0.2.1/x", "a.org/a?b", "a.org/a#b", "a.org/*/b", "a.org/a*", "a.org/../b", "a.org/a,b",
		"a.org/%2e%2e", "a.org//", "a..org/x", "GET a.org/x y", "a.org/\x00", "a.org/" + strings.Repeat("a", 5000),
	} {
		r, err := rule.ParseRequest(bad)
		if _, ok := errors.AsType[*rule.Error](err); !ok {
			t.Errorf("%q: %+v, %v", bad, r, err)
		}
	}
}

// A rule about requests is judged as it was given, whatever becomes of the lists it came in.
func TestRequestsAreOwn(t *testing.T) {
	given := rule.Request{Host: "a.org", Methods: []string{"GET"}, Paths: []string{"/v1/*"}}
	own, err := given.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	given.Methods[0], given.Paths[0] = "POST", "/v2/*"
	if own.Methods[0] != "GET" || own.Paths[0] != "/v1/*" {
		t.Errorf("it changed with what it was made of: %+v", own)
	}
	for _, paths := range [][]string{{""}, {"v1"}, {"/" + strings.Repeat("a", 5000)}} {
		if got, err := (rule.Request{Host: "a.org", Paths: paths}).Canonical(); err == nil {
			t.Errorf("%.20q is a path: %+v", paths, got)
		}
	}
}

// A method that no server has is shown short.
func TestLongMethod(t *testing.T) {
	r, err := rule.ParseRequest("GET a.org")
	if err != nil {
		t.Fatal(err)
	}
	s, err := rule.CompileRequests([]rule.Request{r})
	if err != nil {
		t.Fatal(err)
	}
	if ref := s.Judge("a.org", strings.Repeat("A", 10_000), "/"); ref == nil || len(ref.Reason)+len(ref.Allow) > 2_000 {
		t.Errorf("%.200v", ref)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add("GET,HEAD api.a.org/v1/*,/health", "GET", "/v1/%2e%2e/x")
	f.Add("a.org/x", "\x00", "/x?y")
	f.Add("*.org", "POST", "//")
	f.Fuzz(func(t *testing.T, text, method, target string) {
		r, err := rule.ParseRequest(text)
		if err != nil {
			return
		}
		again, err := rule.ParseRequest(r.String())
		if err != nil || again.String() != r.String() {
			t.Fatalf("%q is %q, which is %q, %v", text, r, again, err)
		}
		s, err := rule.CompileRequests([]rule.Request{r})
		if err != nil {
			t.Fatal(err)
		}
		if ref := s.Judge("a.org", method, target); ref == nil && s.SpeaksOf("a.org") {
			path, _, _ := strings.Cut(target, "?")
			if strings.Contains(path, "..") && strings.Contains(strings.ReplaceAll(path, "\\", "/")+"/", "/../") || strings.ContainsAny(path, "\x00\\") {
				t.Fatalf("%q allows %q", text, target)
			}
		}
	})
}
