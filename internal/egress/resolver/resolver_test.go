package resolver_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/egress/resolver"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/miekg/dns"
)

func rules(t testing.TB, texts ...string) func() *rule.Set {
	t.Helper()
	var out []rule.Rule
	for _, s := range texts {
		r, err := rule.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	set, err := rule.Compile(out)
	if err != nil {
		t.Fatal(err)
	}
	return func() *rule.Set { return set }
}

func table(t testing.TB) *resolver.Table {
	t.Helper()
	tab, err := resolver.NewTable(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func ask(t testing.TB, r *resolver.Resolver, name string, qtype uint16) *dns.Msg {
	t.Helper()
	q := new(dns.Msg).SetQuestion(name, qtype)
	q.SetEdns0(4096, true)
	return exchange(t, r, q)
}

func exchange(t testing.TB, r *resolver.Resolver, q *dns.Msg) *dns.Msg {
	t.Helper()
	b, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	var a dns.Msg
	if err := a.Unpack(r.Answer(b)); err != nil {
		t.Fatal(err)
	}
	if a.Id != q.Id || !a.Response {
		t.Fatalf("no answer to %v: %v", q, a)
	}
	return &a
}

func TestAnswers(t *testing.T) {
	var refused []string
	r := &resolver.Resolver{Table: table(t), Rules: rules(t, "pypi.org", "*.example.com"), Refused: func(name string, ref *rule.Refusal) {
		refused = append(refused, name+" "+ref.Rule)
	}}
	a := ask(t, r, "PyPI.org.", dns.TypeA)
	if a.Rcode != 0 || len(a.Answer) != 1 || a.Answer[0].(*dns.A).A.String() != "198.18.0.1" || a.Question[0].Name != "PyPI.org." || a.Answer[0].Header().Name != "PyPI.org." {
		t.Errorf("A: %v", a)
	}
	if b := ask(t, r, "pypi.org.", dns.TypeA); b.Answer[0].(*dns.A).A.String() != "198.18.0.1" {
		t.Errorf("A again: %v", b)
	}
	if b := ask(t, r, "x.example.com.", dns.TypeA); b.Answer[0].(*dns.A).A.String() != "198.18.0.2" {
		t.Errorf("another name: %v", b)
	}
	for _, qtype := range []uint16{dns.TypeAAAA, dns.TypeHTTPS, dns.TypeSVCB, dns.TypeMX, dns.TypeTXT, dns.TypeANY} {
		if a := ask(t, r, "pypi.org.", qtype); a.Rcode != 0 || len(a.Answer) != 0 {
			t.Errorf("%s: %v", dns.TypeToString[qtype], a)
		}
	}
	if a := ask(t, r, "_http._tcp.pypi.org.", dns.TypeSRV); a.Rcode != 0 || len(a.Answer) != 0 {
		t.Errorf("a service: %v", a)
	}
	if a := ask(t, r, "1.0.18.198.in-addr.arpa.", dns.TypePTR); len(a.Answer) != 1 || a.Answer[0].(*dns.PTR).Ptr != "pypi.org." {
		t.Errorf("PTR: %v", a)
	}
	if len(refused) != 0 {
		t.Errorf("refused %v", refused)
	}
	for _, name := range []string{
		"evil.org.", "secret.evil.org.", "example.com.", "pypi.org.evil.org.", ".", "127.0.0.1.", "2130706433.", "0x7f.1.", `pypi.org\000.`, `pypi\.org.`,
		`a\@pypi.org.`, `pypi.org\013\010x.`, "3.0.18.198.in-addr.arpa.", "1.1.1.1.in-addr.arpa.", "_http._tcp.evil.org.", `\195\169.example.com.`,
	} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeHTTPS, dns.TypeTXT, dns.TypePTR} {
			refused = nil
			a := ask(t, r, name, qtype)
			if a.Rcode != dns.RcodeRefused || len(a.Answer) != 0 || len(refused) != 1 {
				t.Errorf("%s %s: %v, told %v", name, dns.TypeToString[qtype], a, refused)
				continue
			}
			ede, ok := a.IsEdns0().Option[0].(*dns.EDNS0_EDE)
			if !ok || ede.InfoCode != dns.ExtendedErrorCodeFiltered || ede.ExtraText == "" {
				t.Errorf("%s: extended error %v", name, a.IsEdns0())
			}
		}
	}
	if n := len(r.Table.Entries()); n != 2 {
		t.Errorf("the table has %d entries", n)
	}
}

func TestOddMessages(t *testing.T) {
	r := &resolver.Resolver{Table: table(t), Rules: rules(t, "*")}
	q := new(dns.Msg).SetQuestion("a.org.", dns.TypeA)
	if a := exchange(t, r, q); a.IsEdns0() != nil || len(a.Answer) != 1 {
		t.Errorf("without EDNS: %v", a)
	}
	q.Question[0].Qclass = dns.ClassCHAOS
	if a := exchange(t, r, q); a.Rcode != dns.RcodeRefused {
		t.Errorf("class: %v", a)
	}
	q = new(dns.Msg).SetQuestion("a.org.", dns.TypeA)
	q.Opcode = dns.OpcodeUpdate
	if a := exchange(t, r, q); a.Rcode != dns.RcodeNotImplemented && a.Rcode != dns.RcodeFormatError {
		t.Errorf("update: %v", a)
	}
	q = new(dns.Msg).SetQuestion("a.org.", dns.TypeA)
	q.Question = append(q.Question, q.Question[0])
	if a := exchange(t, r, q); a.Rcode != dns.RcodeFormatError {
		t.Errorf("two questions: %v", a)
	}
	q = new(dns.Msg).SetQuestion("a.org.", dns.TypeA)
	q.SetEdns0(512, false)
	q.IsEdns0().SetVersion(7)
	if a := exchange(t, r, q); a.Rcode != dns.RcodeBadVers || len(a.Answer) != 0 {
		t.Errorf("version: %v", a)
	}
	q = new(dns.Msg).SetQuestion("a.org.", dns.TypeA)
	q.Response = true
	b, _ := q.Pack()
	if r.Answer(b) != nil || r.Answer(nil) != nil || r.Answer(b[:11]) != nil {
		t.Error("an answer was answered")
	}
}

func FuzzAnswer(f *testing.F) {
	for _, name := range []string{"a.org.", "evil.com.", `x\000.org.`, "1.0.18.198.in-addr.arpa."} {
		q := new(dns.Msg).SetQuestion(name, dns.TypeA)
		q.SetEdns0(1232, true)
		b, _ := q.Pack()
		f.Add(b)
	}
	r := &resolver.Resolver{Table: table(f), Rules: rules(f, "a.org", "*.b.org")}
	f.Fuzz(func(t *testing.T, b []byte) {
		out := r.Answer(b)
		if out == nil {
			return
		}
		var a dns.Msg
		if err := a.Unpack(out); err != nil || !a.Response {
			t.Fatalf("% x: % x, %v", b, out, err)
		}
		for _, rr := range a.Answer {
			v4, ok := rr.(*dns.A)
			if !ok {
				continue
			}
			addr, _ := netip.AddrFromSlice(v4.A.To4())
			n, ok := r.Table.Name(addr)
			if !ok || r.Rules().Name(n) != nil {
				t.Fatalf("% x: %v was answered", b, rr)
			}
		}
		if len(out) > 512 {
			t.Fatalf("%d bytes for %d", len(out), len(b))
		}
	})
}

func TestTableIsStoredBeforeItIsAnswered(t *testing.T) {
	broken := errors.New("disk full")
	store := &failing{}
	tab, err := resolver.NewTable(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	store.err = broken
	r := &resolver.Resolver{Table: tab, Rules: rules(t, "*")}
	if a := ask(t, r, "a.org.", dns.TypeA); a.Rcode != dns.RcodeRefused || len(a.Answer) != 0 {
		t.Errorf("not stored and answered: %v", a)
	}
	if _, ok := tab.Name(netip.MustParseAddr("198.18.0.1")); ok {
		t.Error("not stored and known")
	}
	store.err = nil
	if a := ask(t, r, "b.org.", dns.TypeA); len(a.Answer) != 1 || store.last.Name != "b.org" || store.last.Addr.String() != "198.18.0.1" {
		t.Errorf("%v, stored %v", a, store.last)
	}
}

type failing struct {
	err  error
	last resolver.Entry
}

func (f *failing) Add(e resolver.Entry) error {
	if f.err == nil {
		f.last = e
	}
	return f.err
}

func TestFileSurvives(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names")
	open := func() *resolver.Table {
		t.Helper()
		f, before, err := resolver.OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		tab, err := resolver.NewTable(f, before)
		if err != nil {
			t.Fatal(err)
		}
		return tab
	}
	tab := open()
	want := map[rule.Name]netip.Addr{}
	add := func(n rule.Name) {
		t.Helper()
		a, err := tab.Address(n)
		if err != nil {
			t.Fatal(err)
		}
		for other, b := range want {
			if a == b && other != n {
				t.Fatalf("%s and %s are both %s", n, other, a)
			}
		}
		want[n] = a
	}
	for i := range 300 {
		add(rule.Name(fmt.Sprintf("h%d.org", i)))
	}
	for _, tail := range []string{"", "198.18.1.45 half", "198.18.1.45"} { // a crash in the middle of a line
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString(tail)
		f.Close()
		tab = open()
		for n, a := range want {
			if got, ok := tab.Name(a); !ok || got != n {
				t.Fatalf("%s is %q, %v; it was %s", a, got, ok, n)
			}
		}
		add(rule.Name("after" + fmt.Sprint(len(tail)) + ".org"))
	}
	tab = open()
	if len(tab.Entries()) != 303 {
		t.Errorf("%d entries", len(tab.Entries()))
	}
	for _, damage := range []string{"198.18.0.2 a.org\n", "198.18.0.1 a.org\n198.18.0.2 a.org\n", "198.18.0.1 127.0.0.1\n", "x\n", "198.18.0.1 A.org\n", "\n", strings.Repeat("x", 9000) + "\n"} {
		if err := os.WriteFile(path, []byte(damage), 0o600); err != nil {
			t.Fatal(err)
		}
		f, before, err := resolver.OpenFile(path)
		if err == nil {
			_, err = resolver.NewTable(f, before)
		}
		if err == nil {
			t.Errorf("%.40q was taken for a table", damage)
		}
	}
}

func TestTableIsBounded(t *testing.T) {
	tab := table(t)
	for i := range resolver.MaxNames {
		a, err := tab.Address(rule.Name(fmt.Sprintf("h%d.org", i)))
		if err != nil || !rule.Names().Contains(a) {
			t.Fatal(a, err)
		}
	}
	if _, err := tab.Address("more.org"); !errors.Is(err, resolver.ErrFull) {
		t.Errorf("%v", err)
	}
	if _, err := tab.Address("h7.org"); err != nil {
		t.Errorf("a name that has one: %v", err)
	}
}
