package egress

import (
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/egress/resolver"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// TestNoFlowSlipsPastChangingRules: while the rules are changed and the flows in progress
// are judged by them, no flow is added or settled by the rules before.
func TestNoFlowSlipsPastChangingRules(t *testing.T) {
	set := func(host string) *rule.Set {
		s, err := rule.Compile([]rule.Rule{{Host: host, Port: 7}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, step := range map[string]func(*Gate, netip.AddrPort) func() *rule.Refusal{
		"begin": func(g *Gate, to netip.AddrPort) func() *rule.Refusal {
			return func() *rule.Refusal {
				f, ref := g.begin(to)
				g.end(f)
				return ref
			}
		},
		"settle": func(g *Gate, to netip.AddrPort) func() *rule.Refusal {
			f, ref := g.begin(to)
			if ref != nil {
				t.Fatal(ref)
			}
			f.rec.Addr = netip.MustParseAddr("93.184.215.14")
			return func() *rule.Refusal {
				defer g.end(f)
				return f.settle()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			table, err := resolver.NewTable(nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			addr, err := table.Address("a.org")
			if err != nil {
				t.Fatal(err)
			}
			g := New(t.Context(), Options{Table: table, Rules: set("a.org")})
			defer g.Close()
			run := step(g, netip.AddrPortFrom(addr, 7))
			done := make(chan *rule.Refusal, 1)
			g.mu.Lock() // as SetRules does, up to the end of its judging
			go func() { done <- run() }()
			for end := time.Now().Add(time.Minute); len(done) == 0 && !waits("egress.(*Gate).begin") && !waits("egress.(*flow).settle"); runtime.Gosched() {
				if time.Now().After(end) {
					g.mu.Unlock()
					t.Fatal("the flow neither went on nor waited")
				}
			}
			g.rules.Store(set("b.org"))
			g.mu.Unlock()
			if ref := <-done; ref == nil || ref.Rule != rule.RuleName {
				t.Errorf("the flow was judged by the rules before: %v", ref)
			}
		})
	}
}

// waits reports whether a goroutine in function waits for a mutex.
func waits(function string) bool {
	buf := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		head, frames, _ := strings.Cut(g, "\n")
		if strings.Contains(head, "[sync.Mutex.Lock") && strings.Contains(frames, function+"(") {
			return true
		}
	}
	return false
}
