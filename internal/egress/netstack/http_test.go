//go:build linux

package netstack

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/egress/upstream"
)

// client is an HTTP client inside the sandbox.
func (h *fixture) client() *http.Client {
	tr := &http.Transport{
		DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			n, err := net.LookupPort("tcp", port)
			if err != nil {
				return nil, err
			}
			return h.dialName(host, uint16(n))
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	h.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// site is an HTTP server that says which host it was asked for.
func (h *fixture) site(secure bool, names ...string) *httptest.Server {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s", r.Method, r.Host, r.URL.Path, body)
	}))
	port := uint16(80)
	if secure {
		s.StartTLS()
		port = 443
	} else {
		s.Start()
	}
	h.t.Cleanup(func() { h.end(); s.Close() })
	for _, n := range names {
		h.route(n, port, s.Listener.Addr().String())
	}
	return s
}

func fetch(t *testing.T, c *http.Client, method, url, body string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

func TestBareNameCarriesHTTPAndTLS(t *testing.T) {
	h := build(t, fixtureOptions{rules: []string{"pypi.org", "*.example.com"}})
	h.site(false, "pypi.org", "a.b.example.com")
	h.site(true, "pypi.org")
	c := h.client()
	for _, url := range []string{"http://pypi.org/simple", "https://pypi.org/simple", "http://a.b.example.com/x", "http://PyPI.org/upper"} {
		for range 2 { // the second on the same connection
			status, body, err := fetch(t, c, "POST", url, "payload")
			if err != nil || status != 200 || !strings.HasSuffix(body, "payload") {
				t.Errorf("%s: %d %q %v", url, status, body, err)
			}
		}
	}
	for _, url := range []string{"http://example.com/", "http://evil.org/", "http://pypi.org.evil.org/"} {
		if _, _, err := fetch(t, c, "GET", url, ""); err == nil {
			t.Errorf("%s: reached", url)
		}
	}
	if len(h.names.asked) == 0 {
		t.Fatal("nothing was resolved")
	}
	for _, asked := range h.names.asked {
		if !strings.HasSuffix(asked, "pypi.org.") && asked != "a.b.example.com." || strings.Contains(asked, "evil") {
			t.Errorf("our resolver was asked for %s", asked)
		}
	}
}

func TestEveryRequestOnAConnectionIsJudged(t *testing.T) {
	h := build(t, fixtureOptions{rules: []string{"a.example.com", "b.example.com"}})
	h.site(false, "a.example.com", "b.example.com")
	c, err := h.dialName("a.example.com", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	// Three in one write: the answers come in order, and nothing after the refusal.
	io.WriteString(c, "GET /1 HTTP/1.1\r\nHost: a.example.com\r\n\r\n"+
		"GET /2 HTTP/1.1\r\nHost: b.example.com\r\n\r\n"+
		"GET /3 HTTP/1.1\r\nHost: a.example.com\r\n\r\n")
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(res.Body); res.StatusCode != 200 || string(b) != "GET a.example.com /1 " {
		t.Fatalf("first: %d %q", res.StatusCode, b)
	}
	if res, err = http.ReadResponse(r, nil); err != nil {
		t.Fatal(err)
	}
	var answer struct{ Code, Rule, Reason, Allow string }
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || res.StatusCode != 403 {
		t.Fatalf("second: %d %v", res.StatusCode, err)
	}
	if answer.Code != "denied" || answer.Rule != rule.RuleAgree || answer.Allow != "a.example.com:80" || answer.Reason == "" {
		t.Errorf("answer %+v", answer)
	}
	if b, err := io.ReadAll(r); err != nil || len(b) != 0 {
		t.Errorf("after the refusal: %q %v", b, err)
	}
	h.log.wait(t, "the refusal", func() bool { return len(h.log.refused) == 1 })
	if f := h.log.refused[0]; f.Stage != egress.StageRequest || f.Method != "GET" || f.Target != "/2" || f.Name != "a.example.com" {
		t.Errorf("refusal %+v", f)
	}
}

func TestDeniedPortIsToldWhy(t *testing.T) {
	h := build(t, fixtureOptions{rules: []string{"a.example.com"}})
	_, err := h.lookup("a.example.com")
	if err != nil {
		t.Fatal(err)
	}
	status, body, err := fetch(t, h.client(), "GET", "http://a.example.com:8080/", "")
	if err != nil || status != 403 || !strings.Contains(body, `"allow":"a.example.com:8080"`) || !strings.Contains(body, rule.RulePort) {
		t.Fatalf("%d %q %v", status, body, err)
	}
	// Nothing that is not HTTP is kept waiting for long.
	c, err := h.dialName("a.example.com", 22)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "SSH-2.0-x\r\n")
	c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("not reset: %v", err)
	}
	if len(h.names.asked)+len(h.ports.dialed) != 0 {
		t.Errorf("asked %v dialed %v", h.names.asked, h.ports.dialed)
	}
}

func TestPrivateAddressIsRefusedUnlessListed(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "10.0.0.1", "169.254.169.254", "100.100.100.200", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "fd00:ec2::254"} {
		h := build(t, fixtureOptions{rules: []string{"rebind.example.com", "listed.example.com at 127.0.0.0/8"}})
		s := h.site(false, "listed.example.com")
		h.names.addrs["rebind.example.com"] = []netip.Addr{netip.MustParseAddr(addr)}
		status, body, err := fetch(t, h.client(), "GET", "http://rebind.example.com/", "")
		if err != nil || status != 403 || !strings.Contains(body, rule.RulePrivate) {
			t.Errorf("%s: %d %q %v", addr, status, body, err)
		}
		if len(h.ports.dialed) != 0 {
			t.Errorf("%s: dialed %v", addr, h.ports.dialed)
		}
		h.names.addrs["listed.example.com"] = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
		h.ports.to["127.0.0.1:80"] = s.Listener.Addr().String()
		if status, body, err := fetch(t, h.client(), "GET", "http://listed.example.com/", ""); err != nil || status != 200 {
			t.Errorf("listed: %d %q %v", status, body, err)
		}
	}
}

func TestOnlyPublicAddressesOfSeveralAreDialled(t *testing.T) {
	h := build(t, fixtureOptions{rules: []string{"mixed.example.com"}})
	h.site(false, "mixed.example.com")
	h.names.addrs["mixed.example.com"] = append([]netip.Addr{netip.MustParseAddr("192.168.1.1")}, h.names.addrs["mixed.example.com"]...)
	if status, _, err := fetch(t, h.client(), "GET", "http://mixed.example.com/", ""); err != nil || status != 200 {
		t.Fatal(status, err)
	}
	if len(h.ports.dialed) != 1 || h.ports.dialed[0] != "93.184.215.1:80" {
		t.Errorf("dialed %v", h.ports.dialed)
	}
}

func TestFirstBytesMustAgree(t *testing.T) {
	h := build(t, fixtureOptions{rules: []string{"a.example.com", "b.example.com"}, limits: egress.Limits{First: 300 * time.Millisecond}})
	got := make(chan []byte, 16)
	h.serve("a.example.com", 443, func(c net.Conn) {
		b, _ := io.ReadAll(c)
		got <- b
	})
	hello := func(config *tls.Config) func(net.Conn) {
		return func(c net.Conn) { tls.Client(deaf{c}, config).Handshake() }
	}
	for name, speak := range map[string]func(net.Conn){
		"other name":   hello(&tls.Config{ServerName: "b.example.com"}),
		"no name":      hello(&tls.Config{InsecureSkipVerify: true}),
		"other bytes":  func(c net.Conn) { io.WriteString(c, "\x00\x01\x02hello") },
		"silence":      func(net.Conn) {},
		"half a hello": func(c net.Conn) { io.WriteString(c, "\x16\x03\x01\x02\x00\x01") },
	} {
		c, err := h.dialName("a.example.com", 443)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(time.Minute))
		speak(c)
		if _, err := io.Copy(io.Discard, c); err == nil || strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s: not reset: %v", name, err)
		}
		c.Close()
		if b := <-got; len(b) != 0 {
			t.Errorf("%s: the server got %q", name, b)
		}
	}
	h.log.wait(t, "refusals", func() bool { return len(h.log.refused) == 5 })
	if len(h.log.opened) != 0 {
		t.Errorf("opened %v", h.log.opened)
	}
	for _, r := range h.log.refused {
		if r.Rule != rule.RuleAgree || r.Stage != egress.StageFirst || r.Allow != "a.example.com:443" {
			t.Errorf("refusal %+v", r)
		}
	}
}

func TestHTTP2WithoutTLSIsRefusedInItsOwnWords(t *testing.T) {
	h := build(t, fixtureOptions{rules: []string{"a.example.com"}})
	h.site(false, "a.example.com")
	c, err := h.dialName("a.example.com", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	b, err := io.ReadAll(c)
	if err != nil || len(b) < 26 || b[3] != 4 || b[12] != 7 || b[25] != 13 {
		t.Errorf("% x %v", b, err)
	}
}

func TestWebSocketGoesOnAsBytes(t *testing.T) {
	h := build(t, fixtureOptions{rules: []string{"ws.example.com"}})
	h.serve("ws.example.com", 80, func(c net.Conn) {
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil || req.Header.Get("Upgrade") != "websocket" {
			return
		}
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x02hi")
		io.Copy(c, r)
	})
	c, err := h.dialName("ws.example.com", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	io.WriteString(c, "GET /s HTTP/1.1\r\nHost: ws.example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != 101 {
		t.Fatal(res, err)
	}
	io.WriteString(c, "\x82\x03abcGET / HTTP/1.1\r\nHost: other\r\n\r\n")
	want := "\x81\x02hi\x82\x03abcGET / HTTP/1.1\r\nHost: other\r\n\r\n"
	b := make([]byte, len(want))
	if _, err := io.ReadFull(r, b); err != nil || string(b) != want {
		t.Errorf("%q %v", b, err)
	}
}

func TestRulesChangeUnderFlows(t *testing.T) {
	h := build(t, fixtureOptions{rules: []string{"a.example.com:7", "b.example.com:7"}})
	echo := func(c net.Conn) { io.Copy(c, c) }
	h.serve("a.example.com", 7, echo)
	h.serve("b.example.com", 7, echo)
	open := func(name string) net.Conn {
		c, err := h.dialName(name, 7)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(time.Minute))
		io.WriteString(c, "x")
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b := open("a.example.com"), open("b.example.com")
	defer a.Close()
	defer b.Close()
	h.gate.SetRules(compile(t, "b.example.com:7"))
	if _, err := a.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the flow that is allowed no longer: %v", err)
	}
	io.WriteString(b, "y")
	if _, err := io.ReadFull(b, make([]byte, 1)); err != nil {
		t.Errorf("the flow that still is: %v", err)
	}
	if _, err := h.lookup("a.example.com"); err == nil {
		t.Error("the name is still answered")
	}
	h.log.wait(t, "records", func() bool { return len(h.log.closed) == 1 && len(h.log.refused) >= 1 })
	if f := h.log.closed[0]; f.Name != "a.example.com" || f.Reason == "" {
		t.Errorf("record %+v", f)
	}
	// Back again: the same address, and new flows.
	h.gate.SetRules(compile(t, "a.example.com:7"))
	open("a.example.com").Close()
}

func TestBudgets(t *testing.T) {
	h := build(t, fixtureOptions{rules: []string{"a.example.com:7"}, limits: egress.Limits{BytesOut: 1000, Flows: 2}})
	h.serve("a.example.com", 7, func(c net.Conn) { io.Copy(c, c) })
	c1, err := h.dialName("a.example.com", 7)
	if err != nil {
		t.Fatal(err)
	}
	c2, err := h.dialName("a.example.com", 7)
	if err != nil {
		t.Fatal(err)
	}
	defer c2.Close()
	status, body, err := fetch(t, h.client(), "GET", "http://a.example.com:7/", "")
	if err != nil || status != 403 || !strings.Contains(body, rule.RuleBudget) {
		t.Errorf("a third flow: %d %q %v", status, body, err)
	}
	c1.SetDeadline(time.Now().Add(time.Minute))
	c1.Write(make([]byte, 5000))
	n, err := io.Copy(io.Discard, c1)
	if err == nil || n > 1000 {
		t.Errorf("%d bytes came back, %v", n, err)
	}
	c1.Close()
	if u := h.gate.Usage(); u.BytesOut != 1000 || u.Connections != 2 {
		t.Errorf("usage %+v", u)
	}
	h.log.wait(t, "the end of the flow that took all", func() bool {
		return slices.ContainsFunc(h.log.closed, func(f egress.Flow) bool { return f.BytesOut == 1000 && f.Reason != "" })
	})
}

func TestUpstreamProxyIsAskedByName(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	proxy := &upstream.Proxy{Address: "proxy.corp:3128", Authorization: func(context.Context) (string, error) { return "Basic c2VjcmV0", nil }}
	h := build(t, fixtureOptions{rules: []string{"a.example.com", "no.example.com"}, proxy: proxy})
	s := h.site(false, "a.example.com")
	h.ports.to["proxy.corp:3128"] = l.Addr().String()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { tunnel(c, "a.example.com:80", s.Listener.Addr().String()) })
		}
	})
	t.Cleanup(func() { l.Close(); h.end(); wg.Wait() })
	status, body, err := fetch(t, h.client(), "GET", "http://a.example.com/by-proxy", "")
	if err != nil || status != 200 || !strings.Contains(body, "/by-proxy") {
		t.Fatalf("%d %q %v", status, body, err)
	}
	h.names.mu.Lock()
	if len(h.names.asked) != 0 {
		t.Errorf("we asked for %v ourselves", h.names.asked)
	}
	h.names.mu.Unlock()
	if _, _, err := fetch(t, h.client(), "GET", "http://no.example.com/", ""); err == nil {
		t.Error("a proxy that refused connected")
	}
	h.log.wait(t, "the record of what the proxy refused", func() bool {
		return slices.ContainsFunc(h.log.closed, func(f egress.Flow) bool { return strings.Contains(f.Reason, "407") })
	})
	h.log.note(func() {
		if len(h.log.opened) != 1 || h.log.opened[0].ResolvedBy != upstream.ByUpstream || h.log.opened[0].Addr.IsValid() {
			t.Errorf("records %+v", h.log.opened)
		}
		for _, f := range h.log.closed {
			if strings.Contains(f.Reason, "c2VjcmV0") {
				t.Error("a secret is in a record")
			}
		}
	})
}

// tunnel is a proxy that knows one host, which is somewhere else.
func tunnel(c net.Conn, host, where string) {
	defer c.Close()
	r := bufio.NewReader(c)
	req, err := http.ReadRequest(r)
	if err != nil || req.Method != "CONNECT" || req.Host != host || req.Header.Get("Proxy-Authorization") != "Basic c2VjcmV0" {
		io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
		return
	}
	up, err := net.Dial("tcp", where)
	if err != nil {
		return
	}
	defer up.Close()
	io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	var wg sync.WaitGroup
	wg.Go(func() { io.Copy(up, r); up.(*net.TCPConn).CloseWrite() })
	io.Copy(c, up)
	c.Close()
	wg.Wait()
}

// selfSigned keeps crypto imports honest for servers that need a name.
func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"a.example.com"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestTLSHelloInSmallPieces(t *testing.T) {
	h := build(t, fixtureOptions{rules: []string{"a.example.com"}})
	h.serve("a.example.com", 443, func(c net.Conn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}})
		io.Copy(s, s)
	})
	c, err := h.dialName("a.example.com", 443)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	s := tls.Client(slow{c}, &tls.Config{ServerName: "a.example.com", InsecureSkipVerify: true})
	if _, err := io.WriteString(s, "ping"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(s, b); err != nil || string(b) != "ping" {
		t.Errorf("%q %v", b, err)
	}
}

// slow writes a few bytes at a time.
type slow struct{ net.Conn }

func (s slow) Write(b []byte) (int, error) {
	for i := 0; i < len(b); i += 7 {
		if n, err := s.Conn.Write(b[i:min(i+7, len(b))]); err != nil {
			return i + n, err
		}
	}
	return len(b), nil
}

// deaf reads nothing.
type deaf struct{ net.Conn }

func (deaf) Read([]byte) (int, error) { return 0, io.EOF }
