package httpapi_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/httpapi"
)

func TestWhoMayCall(t *testing.T) {
	h := open(t)
	bearer := "Bearer " + token
	for _, tc := range []struct {
		name, network, host string
		header              http.Header
		status              int
	}{
		{"unix", "unix", "", nil, 200},
		{"unix, any host", "unix", "evil.example", nil, 200},
		{"unix, a page", "unix", "", http.Header{"Origin": {"http://evil.example"}}, 403},
		{"token", "tcp", h.tcp, http.Header{"Authorization": {bearer}}, 200},
		{"localhost", "tcp", "LOCALHOST:1", http.Header{"Authorization": {bearer}}, 200},
		{"configured host", "tcp", "box.example", http.Header{"Authorization": {bearer}}, 200},
		{"bearer in lower case", "tcp", h.tcp, http.Header{"Authorization": {"bearer " + token}}, 200},
		{"no token", "tcp", h.tcp, nil, 401},
		{"wrong token", "tcp", h.tcp, http.Header{"Authorization": {bearer + "x"}}, 401},
		{"shorter token", "tcp", h.tcp, http.Header{"Authorization": {bearer[:len(bearer)-1]}}, 401},
		{"empty token", "tcp", h.tcp, http.Header{"Authorization": {"Bearer "}}, 401},
		{"basic", "tcp", h.tcp, http.Header{"Authorization": {"Basic " + token}}, 401},
		{"two tokens", "tcp", h.tcp, http.Header{"Authorization": {bearer, bearer}}, 401},
		{"rebound name", "tcp", "evil.example", http.Header{"Authorization": {bearer}}, 403},
		{"rebound name with our port", "tcp", "evil.example:" + h.tcp[strings.LastIndex(h.tcp, ":")+1:], http.Header{"Authorization": {bearer}}, 403},
		{"below a configured host", "tcp", "a.box.example", http.Header{"Authorization": {bearer}}, 403},
		{"configured host, written otherwise", "tcp", "BOX.EXAMPLE.:1", http.Header{"Authorization": {bearer}}, 200},
		{"a name below", "tcp", "a.wild.example:1", http.Header{"Authorization": {bearer}}, 200},
		{"a name far below", "tcp", "a.b.Wild.example.", http.Header{"Authorization": {bearer}}, 200},
		{"the name itself", "tcp", "wild.example", http.Header{"Authorization": {bearer}}, 403},
		{"only the dot", "tcp", ".wild.example", http.Header{"Authorization": {bearer}}, 403},
		{"a name that ends alike", "tcp", "evilwild.example", http.Header{"Authorization": {bearer}}, 403},
		{"a name that begins alike", "tcp", "a.wild.example.evil.example", http.Header{"Authorization": {bearer}}, 403},
		{"another address", "tcp", "192.0.2.7:7070", http.Header{"Authorization": {bearer}}, 200},
		{"an address of IPv6", "tcp", "[2001:db8::1]:7070", http.Header{"Authorization": {bearer}}, 200},
		{"nearly an address", "tcp", "192.0.2.7.evil.example", http.Header{"Authorization": {bearer}}, 403},
		{"an address, written otherwise", "tcp", "127.1", http.Header{"Authorization": {bearer}}, 403},
		{"unspecified address of IPv6", "tcp", "[::]:1", http.Header{"Authorization": {bearer}}, 403},
		{"unspecified address, mapped", "tcp", "[::ffff:0.0.0.0]:1", http.Header{"Authorization": {bearer}}, 403},
		{"read of an allowed origin's own page", "tcp", "tools.example", http.Header{"Authorization": {bearer}, "Sec-Fetch-Site": {"same-origin"}}, 200},
		{"read of another page", "tcp", "box.example", http.Header{"Authorization": {bearer}, "Sec-Fetch-Site": {"same-origin"}}, 403},
		{"read from elsewhere", "tcp", "tools.example", http.Header{"Authorization": {bearer}, "Sec-Fetch-Site": {"cross-site"}}, 403},
		{"allowed origin, no token", "tcp", h.tcp, http.Header{"Origin": {"https://tools.example"}}, 401},
		{"allowed origin, another scheme", "tcp", h.tcp, http.Header{"Authorization": {bearer}, "Origin": {"http://tools.example"}}, 403},
		{"allowed origin, another port", "tcp", h.tcp, http.Header{"Authorization": {bearer}, "Origin": {"https://tools.example:8443"}}, 403},
		{"unspecified address", "tcp", "0.0.0.0", http.Header{"Authorization": {bearer}}, 403},
		{"foreign origin", "tcp", h.tcp, http.Header{"Authorization": {bearer}, "Origin": {"https://evil.example"}}, 403},
		{"our own origin", "tcp", h.tcp, http.Header{"Authorization": {bearer}, "Origin": {"http://" + h.tcp}}, 403},
		{"null origin", "tcp", h.tcp, http.Header{"Authorization": {bearer}, "Origin": {"null"}}, 403},
		{"two origins", "tcp", h.tcp, http.Header{"Authorization": {bearer}, "Origin": {"https://tools.example", "https://evil.example"}}, 403},
		{"allowed origin", "tcp", h.tcp, http.Header{"Authorization": {bearer}, "Origin": {"https://tools.example"}}, 200},
		{"cross-site read", "tcp", h.tcp, http.Header{"Authorization": {bearer}, "Sec-Fetch-Site": {"cross-site"}}, 403},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := *h
			h.t = t
			addr := h.unix
			if tc.network == "tcp" {
				addr = h.tcp
			}
			resp, data := h.send(tc.network, addr, tc.host, "GET", "/v1/version", tc.header, nil)
			if resp.StatusCode != tc.status {
				t.Fatalf("HTTP %d, want %d: %s", resp.StatusCode, tc.status, data)
			}
			if resp.StatusCode != 200 {
				h.errorOf(resp, data)
			}
		})
	}
	if strings.Contains(h.log.String(), token) {
		t.Error("the log holds the token")
	}
}

// TestRefusalsNameTheSetting: a refusal for a name says which, and what allows it.
func TestRefusalsNameTheSetting(t *testing.T) {
	h := open(t)
	for _, tc := range []struct{ host, origin, says, hint string }{
		{"box.corp:7070", "", `"box.corp"`, "hosts of settings.yaml (cloche serve --host-name)"},
		{"localhost", "https://web.corp", `"https://web.corp"`, "origins of settings.yaml (cloche serve --origin)"},
	} {
		header := http.Header{}
		if tc.origin != "" {
			header.Set("Origin", tc.origin)
		}
		resp, data := h.send("tcp", h.tcp, tc.host, "GET", "/v1/version", header, nil)
		if e := h.errorOf(resp, data); resp.StatusCode != 403 || !strings.Contains(e.Message, tc.says) || !strings.Contains(e.Hint, tc.hint) {
			t.Errorf("HTTP %d: %+v", resp.StatusCode, e)
		}
	}
}

func TestNamesThatAreRefused(t *testing.T) {
	for _, v := range []string{"", "*", "*.", "*.*.example", "a.*.example", "a..example", "http://a.example", "a example", "a/b", "a\x00", "ä.example", strings.Repeat("a", 64), strings.Repeat("a.", 127) + "a"} {
		if httpapi.ValidHost(v) {
			t.Errorf("host %q is taken", v)
		}
	}
	for _, v := range []string{"", "*", "null", "a.example", "https://", "https://*.example", "https://a.example/", "https://a.example/x", "https://a.example?", "https://a.example#", "https://u@a.example", "https://a.example:", "ftp://a.example", "https://a.example.", "https://a.example, https://b.example"} {
		if httpapi.ValidOrigin(v) {
			t.Errorf("origin %q is taken", v)
		}
	}
	for _, v := range []string{"http://localhost:3000", "https://[::1]:3000", "HTTPS://Tools.example"} {
		if !httpapi.ValidOrigin(v) {
			t.Errorf("origin %q is refused", v)
		}
	}
}

// TestPagesOfAllowedOrigins: a browser asks first whether a page may send a token, and
// shows it the answer only if that says so.
func TestPagesOfAllowedOrigins(t *testing.T) {
	h := open(t)
	ask := http.Header{"Access-Control-Request-Method": {"POST"}, "Access-Control-Request-Headers": {"authorization,content-type"}, "Sec-Fetch-Site": {"cross-site"}}
	shared := func(header http.Header) bool {
		for k := range header {
			if strings.HasPrefix(k, "Access-Control-") {
				return true
			}
		}
		return false
	}
	ask.Set("Origin", "https://tools.example")
	resp, data := h.send("tcp", h.tcp, "", "OPTIONS", "/v1/run", ask, nil)
	if got := resp.Header; resp.StatusCode != 403 || shared(got) {
		t.Errorf("a question by a foreign host name: HTTP %d, %v: %s", resp.StatusCode, got, data)
	}
	resp, data = h.send("tcp", h.tcp, h.tcp, "OPTIONS", "/v1/run", ask, nil)
	if got := resp.Header; resp.StatusCode != 204 || got.Get("Access-Control-Allow-Origin") != "https://tools.example" || got.Get("Vary") != "Origin" ||
		!strings.Contains(got.Get("Access-Control-Allow-Methods"), "POST") || !strings.Contains(got.Get("Access-Control-Allow-Headers"), "Authorization") || got.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("HTTP %d, %v: %s", resp.StatusCode, got, data)
	}
	for _, authorization := range []string{"Bearer " + token, "Bearer wrong"} {
		resp, data = h.send("tcp", h.tcp, h.tcp, "GET", "/v1/version", http.Header{"Authorization": {authorization}, "Origin": {"https://tools.example"}}, nil)
		if resp.Header.Get("Access-Control-Allow-Origin") != "https://tools.example" {
			t.Errorf("the page cannot read HTTP %d: %v %s", resp.StatusCode, resp.Header, data)
		}
	}
	ask.Set("Origin", "https://evil.example")
	if resp, _ = h.send("tcp", h.tcp, h.tcp, "OPTIONS", "/v1/run", ask, nil); resp.StatusCode != 403 || shared(resp.Header) {
		t.Errorf("a foreign page: HTTP %d, %v", resp.StatusCode, resp.Header)
	}
	resp, _ = h.send("tcp", h.tcp, h.tcp, "GET", "/v1/version", http.Header{"Authorization": {"Bearer " + token}}, nil)
	if shared(resp.Header) {
		t.Errorf("a program is told %v", resp.Header)
	}
}

// TestProbes: what watches the daemon shows no token, and is told nothing else.
func TestProbes(t *testing.T) {
	h := open(t)
	for _, path := range []string{"/healthz", "/readyz"} {
		for _, tc := range []struct {
			network, host, origin string
			status                int
		}{
			{"unix", "", "", 200}, {"tcp", h.tcp, "", 200}, {"tcp", "10.1.2.3:7070", "", 200}, {"tcp", "evil.example", "", 403},
			{"tcp", h.tcp, "https://evil.example", 403}, {"tcp", h.tcp, "https://tools.example", 200},
		} {
			header, addr := http.Header{}, h.tcp
			if tc.origin != "" {
				header.Set("Origin", tc.origin)
			}
			if tc.network == "unix" {
				addr = h.unix
			}
			resp, data := h.send(tc.network, addr, tc.host, "GET", path, header, nil)
			if resp.StatusCode != tc.status || resp.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s of %+v: HTTP %d, %v: %s", path, tc, resp.StatusCode, resp.Header, data)
			}
		}
		for _, bad := range []struct{ method, path string }{{"POST", path}, {"DELETE", path}, {"OPTIONS", path}} {
			if resp, _ := h.send("tcp", h.tcp, h.tcp, bad.method, bad.path, nil, nil); resp.StatusCode != 405 {
				t.Errorf("%s %s: HTTP %d", bad.method, bad.path, resp.StatusCode)
			}
		}
		// A path that begins or ends alike is no probe.
		for _, other := range []string{path + "/", path + "/../v1/sandboxes", "/v1" + path, path + "x"} {
			if resp, _ := h.send("tcp", h.tcp, h.tcp, "GET", other, nil, nil); resp.StatusCode != 401 {
				t.Errorf("%s: HTTP %d", other, resp.StatusCode)
			}
		}
	}
	h.core.Unready.Store("disk_full")
	resp, data := h.send("tcp", h.tcp, h.tcp, "GET", "/readyz", nil, nil)
	if resp.StatusCode != 503 || strings.TrimSpace(string(data)) != `{"ready":false,"reason":"disk_full"}` {
		t.Errorf("HTTP %d: %s", resp.StatusCode, data)
	}
	if resp, _ := h.send("tcp", h.tcp, h.tcp, "GET", "/healthz", nil, nil); resp.StatusCode != 200 {
		t.Errorf("a daemon that is not ready is not healthy: HTTP %d", resp.StatusCode)
	}
}

// TestOverTLS: what is true of TCP is true of TLS, over both versions of HTTP, and the
// unix socket of the same server stays as it is.
func TestOverTLS(t *testing.T) {
	site := httptest.NewTLSServer(http.NotFoundHandler())
	defer site.Close()
	roots := x509.NewCertPool()
	roots.AddCert(site.Certificate())
	h := openWith(t, func(o *httpapi.Options) {
		o.Certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &site.TLS.Certificates[0], nil }
	})
	if _, err := h.client().Create(t.Context(), api.SandboxSpec{Name: "operators"}); err != nil {
		t.Errorf("over the unix socket: %v", err)
	}
	for _, major := range []int{1, 2} {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: major == 2}
		defer tr.CloseIdleConnections()
		for _, tc := range []struct {
			name, method, path, host, token string
			body                            io.Reader
			status                          int
		}{
			{"a token", "GET", "/v1/version", "", token, nil, 200},
			{"no token", "GET", "/v1/version", "", "", nil, 401},
			{"a foreign name", "GET", "/v1/version", "evil.example", token, nil, 403},
			{"a probe", "GET", "/readyz", "", "", nil, 200},
			{"a body of a stranger's", "POST", "/v1/sandboxes", "", "", strings.NewReader(strings.Repeat("x", 8<<20)), 401},
			{"a body that is too large", "POST", "/v1/sandboxes", "", token, strings.NewReader(`{"name":"` + strings.Repeat("x", 8<<20) + `"}`), 413},
			{"a list", "GET", "/v1/sandboxes", "", token, nil, 200},
		} {
			req, err := http.NewRequestWithContext(t.Context(), tc.method, "https://"+h.tcp+tc.path, tc.body)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = tc.host
			req.Header.Set("Content-Type", "application/json")
			if tc.token != "" {
				req.Header.Set("Authorization", "Bearer "+tc.token)
			}
			resp, err := (&http.Client{Transport: tr, Timeout: 20 * time.Second}).Do(req)
			if err != nil {
				t.Errorf("HTTP/%d, %s: %v", major, tc.name, err)
				continue
			}
			data, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != tc.status || resp.ProtoMajor != major || err != nil || strings.Contains(string(data), "operators") {
				t.Errorf("HTTP/%d, %s: %s, status %d, want %d: %v %.200s", major, tc.name, resp.Proto, resp.StatusCode, tc.status, err, data)
			}
		}
	}
	c, err := client.New(client.Options{Host: "https://" + h.tcp, Token: token, TLS: &tls.Config{RootCAs: roots}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Create(t.Context(), api.SandboxSpec{Name: "box"}); err != nil {
		t.Fatal(err)
	}
	p, err := c.ExecStream(t.Context(), "box", api.ExecRequest{Argv: []string{"cat"}})
	if err != nil {
		t.Fatalf("a stream: %v", err)
	}
	p.Close()
	if conn, err := tls.Dial("tcp", h.tcp, &tls.Config{RootCAs: roots, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}); err == nil {
		conn.Close()
		t.Error("TLS 1.1 is spoken")
	}
	resp, data := h.send("tcp", h.tcp, h.tcp, "GET", "/v1/version", http.Header{"Authorization": {"Bearer " + token}}, nil)
	if resp.StatusCode != 400 || !strings.Contains(string(data), "HTTPS") {
		t.Errorf("in the clear: HTTP %d: %s", resp.StatusCode, data)
	}
}
