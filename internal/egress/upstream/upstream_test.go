package upstream_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/egress/upstream"
)

// world is a resolver and a dialer of a network that does not exist.
type fixture struct {
	addrs map[string][]string
	// hosts answers a connection; a nil function never does.
	hosts map[string]func(net.Conn)

	mu     sync.Mutex
	asked  []string
	dialed []string
	wg     sync.WaitGroup
}

func (w *fixture) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	w.mu.Lock()
	w.asked = append(w.asked, network+" "+host)
	w.mu.Unlock()
	var out []netip.Addr
	for _, s := range w.addrs[host] {
		out = append(out, netip.MustParseAddr(s))
	}
	if out == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host}
	}
	return out, nil
}

func (w *fixture) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	w.dialed = append(w.dialed, address)
	w.mu.Unlock()
	serve, ok := w.hosts[address]
	switch {
	case !ok:
		return nil, errors.New("connection refused")
	case serve == nil:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	near, far := net.Pipe()
	w.wg.Go(func() {
		defer far.Close()
		serve(far)
	})
	return near, nil
}

func hello(c net.Conn) { io.WriteString(c, "hello") }

func public(a netip.Addr) *rule.Refusal {
	if c := rule.Class(a); c != "" {
		return &rule.Refusal{Rule: rule.RulePrivate, Reason: c}
	}
	return nil
}

func TestHost(t *testing.T) {
	w := &fixture{
		addrs: map[string][]string{
			"good.org.":   {"2606:4700::1", "93.184.215.14"},
			"mixed.org.":  {"127.0.0.1", "10.0.0.1", "93.184.215.14"},
			"mapped.org.": {"::ffff:127.0.0.1"},
			"lan.org.":    {"192.168.0.1", "fe80::1%eth0"},
			"down.org.":   {"93.184.215.15"},
			"many.org.":   slices.Repeat([]string{"93.184.215.15"}, 50),
		},
		hosts: map[string]func(net.Conn){"93.184.215.14:443": hello, "127.0.0.1:443": hello, "192.168.0.1:443": hello},
	}
	d := &upstream.Dialer{Resolver: w, Dialer: w}
	for name, want := range map[rule.Name]string{"good.org": "93.184.215.14:443", "mixed.org": "93.184.215.14:443"} {
		f, err := d.Host(t.Context(), name, 443, public)
		if err != nil || f.Addr.String() != want || f.By != upstream.ByUs {
			t.Fatalf("%s: %+v, %v", name, f, err)
		}
		if b, err := io.ReadAll(f.Conn); string(b) != "hello" || err != nil {
			t.Errorf("%s: %q, %v", name, b, err)
		}
		f.Conn.Close()
	}
	for name, refused := range map[rule.Name]bool{"mapped.org": true, "lan.org": true, "down.org": false, "nowhere.org": false, "many.org": false} {
		_, err := d.Host(t.Context(), name, 443, public)
		if _, ok := errors.AsType[*rule.Refusal](err); err == nil || ok != refused {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.wg.Wait()
	for _, a := range w.dialed {
		if rule.Class(netip.MustParseAddrPort(a).Addr()) != "" {
			t.Errorf("dialed %s", a)
		}
	}
	if len(w.dialed) > 20 {
		t.Errorf("dialed %d times", len(w.dialed))
	}
}

// TestSlowAddress: one that does not answer holds up the next only for a moment,
// and not indefinitely.
func TestSlowAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{
			addrs: map[string][]string{"slow.org.": {"93.184.215.1", "93.184.215.2"}, "dead.org.": {"93.184.215.1"}},
			hosts: map[string]func(net.Conn){"93.184.215.1:80": nil, "93.184.215.2:80": hello},
		}
		d := &upstream.Dialer{Resolver: w, Dialer: w, Timeout: 5 * time.Second}
		start := time.Now()
		f, err := d.Host(t.Context(), "slow.org", 80, public)
		if err != nil || f.Addr.String() != "93.184.215.2:80" || time.Since(start) > time.Second {
			t.Fatalf("%+v, %v after %s", f, err, time.Since(start))
		}
		f.Conn.Close()
		start = time.Now()
		if _, err := d.Host(t.Context(), "dead.org", 80, public); err == nil || time.Since(start) != 5*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		w.wg.Wait()
	})
}

func TestProxy(t *testing.T) {
	answer := "HTTP/1.1 200 Connection established\r\nX: y\r\n\r\n220 early"
	var head string
	w := &fixture{addrs: map[string][]string{"direct.org.": {"93.184.215.14"}}, hosts: map[string]func(net.Conn){
		"93.184.215.14:443": hello,
		"proxy:3128": func(c net.Conn) {
			b := make([]byte, 4096)
			n, _ := c.Read(b)
			head = string(b[:n])
			io.WriteString(c, answer)
		},
	}}
	secret := "Basic c2VjcmV0"
	d := &upstream.Dialer{Resolver: w, Dialer: w, Proxy: &upstream.Proxy{
		Address: "proxy:3128", Except: []string{"direct.org", ".intern"}, Authorization: func(context.Context) (string, error) { return secret, nil },
	}}
	never := func(netip.Addr) *rule.Refusal { t.Error("an address was judged"); return nil }
	f, err := d.Host(t.Context(), "a.org", 443, never)
	if err != nil || f.By != upstream.ByUpstream || f.Addr.IsValid() {
		t.Fatalf("%+v, %v", f, err)
	}
	if b, err := io.ReadAll(f.Conn); string(b) != "220 early" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	f.Conn.Close()
	w.wg.Wait()
	if want := "CONNECT a.org:443 HTTP/1.1\r\nHost: a.org:443\r\nProxy-Authorization: Basic c2VjcmV0\r\n\r\n"; head != want {
		t.Errorf("asked %q", head)
	}
	if len(w.asked) != 0 {
		t.Errorf("resolved %v", w.asked)
	}
	if f, err := d.Host(t.Context(), "direct.org", 443, public); err != nil || f.By != upstream.ByUs {
		t.Errorf("excepted: %+v, %v", f, err)
	} else {
		f.Conn.Close()
	}
	for _, a := range []string{"HTTP/1.1 407 No\r\n\r\n", "HTTP/1.1 403 No\r\n\r\n", "garbage\r\n\r\n", "", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 40<<10) + "\r\n\r\n"} {
		answer = a
		_, err := d.Host(t.Context(), "a.org", 443, never)
		if err == nil || strings.Contains(err.Error(), "c2VjcmV0") {
			t.Errorf("%.30q: %v", a, err)
		}
		w.wg.Wait()
		if e, ok := errors.AsType[*upstream.ProxyError](err); strings.HasPrefix(a, "HTTP/1.1 4") && (!ok || e.To != "a.org:443") {
			t.Errorf("%.30q: %v", a, err)
		}
	}
	secret = "x\r\nHost: evil"
	if _, err := d.Host(t.Context(), "a.org", 443, never); err == nil || strings.Contains(err.Error(), "evil") {
		t.Errorf("a value that breaks the head: %v", err)
	}
	w.wg.Wait()
}

func TestSilentProxyIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{hosts: map[string]func(net.Conn){"proxy:3128": func(c net.Conn) { io.Copy(io.Discard, c) }}}
		d := &upstream.Dialer{Resolver: w, Dialer: w, Proxy: &upstream.Proxy{Address: "proxy:3128"}, Timeout: 3 * time.Second}
		start := time.Now()
		if _, err := d.Host(t.Context(), "a.org", 443, public); err == nil || time.Since(start) != 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		w.wg.Wait()
	})
}
