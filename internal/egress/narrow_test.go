package egress_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// TestRulesChangedDuringDial: a connection goes by the rules in force when it is
// established, and not by those under which its dial began.
func TestRulesChangedDuringDial(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after []string
		own           bool // the host's address is one of this machine
		refused       string
		echoed        bool
	}{
		{name: "name is no longer allowed", before: []string{"a.org:443"}, after: []string{"b.org"}, refused: rule.RuleName},
		{name: "port is no longer allowed", before: []string{"a.org:443"}, after: []string{"a.org:444"}, refused: rule.RulePort},
		{name: "address is no longer allowed", before: []string{"a.org:443 at 93.184.215.0/24"}, after: []string{"a.org:443"}, own: true, refused: rule.RulePrivate},
		{name: "only HTTP and TLS are still allowed", before: []string{"a.org:443"}, after: []string{"a.org"}, refused: rule.RuleAgree},
		{name: "any protocol is now allowed", before: []string{"a.org"}, after: []string{"a.org:443"}, echoed: true},
		{name: "the same is still allowed", before: []string{"a.org:443"}, after: []string{"a.org:443", "b.org"}, echoed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dialing, dial := make(chan struct{}), make(chan struct{})
			// The dial succeeds although its flow was canceled meanwhile.
			e := &echo{before: func(context.Context) error { close(dialing); <-dial; return nil }}
			told := &refusals{}
			g, at := gate(t, e, egress.Options{Observer: told, Own: func(netip.Addr) bool { return c.own }}, c.before...)
			to := at("a.org", 443)
			o := newGuest(t)
			defer o.far.Close()
			var wg sync.WaitGroup
			wg.Go(func() { g.Connect(to, o) })
			<-dialing
			g.SetRules(compile(t, c.after...))
			close(dial)
			o.far.SetDeadline(time.Now().Add(time.Minute))
			io.WriteString(o.far, "\x00raw")
			o.far.CloseWrite()
			got, _ := io.ReadAll(o.far)
			if echoed := string(got) == "\x00raw"; echoed != c.echoed {
				t.Errorf("the sandbox got %q", got)
			}
			wg.Wait()
			told.mu.Lock()
			defer told.mu.Unlock()
			if c.echoed && len(told.all) != 0 || !c.echoed && (len(told.all) != 1 || told.all[0].Rule != c.refused) {
				t.Errorf("told: %+v, want %q", told.all, c.refused)
			}
		})
	}
}

// refusals is an observer that keeps what is refused.
type refusals struct {
	mu  sync.Mutex
	all []egress.Refused
}

func (*refusals) Opened(egress.Flow) {}
func (*refusals) Closed(egress.Flow) {}
func (r *refusals) Refused(x egress.Refused) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, x)
}

// TestRulesNarrowedDuringFlow: an established flow that was allowed any protocol is
// reset when only HTTP and TLS are still allowed, and when its address no longer is.
func TestRulesNarrowedDuringFlow(t *testing.T) {
	for name, after := range map[string]string{"protocol": "a.org", "address": "a.org:443", "port": "a.org:444", "nothing": "a.org:443 at 93.184.215.0/24"} {
		t.Run(name, func(t *testing.T) {
			e := &echo{}
			told := &refusals{}
			own := func(netip.Addr) bool { return name != "protocol" }
			g, at := gate(t, e, egress.Options{Observer: told, Own: own}, "a.org:443 at 93.184.215.0/24")
			to := at("a.org", 443)
			o := newGuest(t)
			defer o.far.Close()
			o.far.SetDeadline(time.Now().Add(time.Minute))
			var wg sync.WaitGroup
			wg.Go(func() { g.Connect(to, o) })
			io.WriteString(o.far, "x")
			if _, err := io.ReadFull(o.far, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			g.SetRules(compile(t, after))
			stays := name == "nothing"
			if !stays {
				if err := g.Settle(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			io.WriteString(o.far, "y")
			if _, err := io.ReadFull(o.far, make([]byte, 1)); (err == nil) != stays {
				t.Errorf("after the change: %v", err)
			}
			o.far.CloseWrite()
			wg.Wait()
			told.mu.Lock()
			defer told.mu.Unlock()
			if stays != (len(told.all) == 0) || !stays && told.all[0].Stage != egress.StageFlow {
				t.Errorf("told: %+v", told.all)
			}
		})
	}
}

// TestDialEndsWithItsRule: a dial that would take long ends when its name is no longer
// allowed, and what it was for is refused.
func TestDialEndsWithItsRule(t *testing.T) {
	dialing := make(chan struct{})
	e := &echo{before: func(ctx context.Context) error { close(dialing); <-ctx.Done(); return ctx.Err() }}
	told := &refusals{}
	g, at := gate(t, e, egress.Options{Observer: told}, "a.org:443")
	to := at("a.org", 443)
	o := newGuest(t)
	defer o.far.Close()
	done := make(chan struct{})
	go func() { g.Connect(to, o); close(done) }()
	<-dialing
	g.SetRules(nil)
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the dial goes on")
	}
	told.mu.Lock()
	defer told.mu.Unlock()
	if len(told.all) != 1 || told.all[0].Rule != rule.RuleName || told.all[0].Stage != egress.StageConnect {
		t.Errorf("told: %+v", told.all)
	}
}

// TestHelloNamesTheHost: of a connection that must agree with its name nothing reaches
// the host unless its TLS hello names it, and then it has as much time as others.
func TestHelloNamesTheHost(t *testing.T) {
	for hello, goes := range map[string]bool{"a.org": true, "A.ORG": true, "b.org": false, "x.a.org": false, "": false} {
		t.Run(hello, func(t *testing.T) {
			e, told := &echo{}, &refusals{}
			const first = 200 * time.Millisecond
			g, at := gate(t, e, egress.Options{Observer: told, Limits: egress.Limits{First: first}}, "a.org", "b.org")
			to := at("a.org", 443)
			o := newGuest(t)
			defer o.far.Close()
			o.far.SetDeadline(time.Now().Add(time.Minute))
			done := make(chan struct{})
			go func() { g.Connect(to, o); close(done) }()
			// The echo is no TLS server: what comes back is the hello.
			text := helloOf(t, hello)
			o.far.Write(text)
			got := make([]byte, len(text))
			if _, err := io.ReadFull(o.far, got); (err == nil) != goes || goes && string(got) != string(text) {
				t.Errorf("%d of %d bytes reached the host, %v", len(got), len(text), err)
			}
			for start := time.Now(); goes && time.Since(start) < 2*first; {
				// A record of application data.
				if _, err := io.WriteString(o.far, "\x17\x03\x03\x00\x01x"); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(o.far, make([]byte, 6)); err != nil {
					t.Fatalf("after %s: %v", time.Since(start), err)
				}
			}
			o.far.Close()
			<-done
			told.mu.Lock()
			defer told.mu.Unlock()
			if goes != (len(told.all) == 0) || !goes && told.all[0].Rule != rule.RuleAgree {
				t.Errorf("told: %+v", told.all)
			}
		})
	}
}

// helloOf is the first message of a TLS client that wants the server of name.
func helloOf(t *testing.T, name string) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer far.Close()
	go func() {
		c := tls.Client(near, &tls.Config{ServerName: name, InsecureSkipVerify: true})
		_ = c.HandshakeContext(context.Background())
		near.Close()
	}()
	far.SetReadDeadline(time.Now().Add(20 * time.Second))
	b := make([]byte, 16<<10)
	n, err := far.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return b[:n]
}
