package egress_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/internal/egress/intercept"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// plainServer is an HTTP server without TLS.
func plainServer(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// TestWebSocketInside: the head is judged and gets its secret; what follows goes
// through as it is.
func TestWebSocketInside(t *testing.T) {
	for _, http2 := range []bool{false, true} { // of the host
		secret := keySecret(apiHost)
		w := newTestnet(t, testnetOptions{rules: []string{apiHost}, secrets: []intercept.Secret{secret}})
		w.host(apiHost, apiHost, 443, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer "+secretValue {
				http.Error(rw, "who are you", http.StatusUnauthorized)
				return
			}
			c, err := websocket.Accept(rw, r, nil)
			if err != nil {
				return
			}
			nc := websocket.NetConn(r.Context(), c, websocket.MessageBinary)
			io.Copy(nc, nc)
			nc.Close()
		}), http2)
		c, _, err := websocket.Dial(t.Context(), "wss://"+apiHost+"/", &websocket.DialOptions{
			HTTPClient: w.client(false), HTTPHeader: http.Header{"Authorization": {"Bearer " + secret.Placeholder}},
		})
		if err != nil {
			t.Fatal(err)
		}
		nc := websocket.NetConn(t.Context(), c, websocket.MessageBinary)
		io.WriteString(nc, "hello")
		b := make([]byte, 5)
		if _, err := io.ReadFull(nc, b); err != nil || string(b) != "hello" {
			t.Errorf("%q, %v", b, err)
		}
		nc.Close()
	}
}

// TestOnlyWebSocketsUpgradeInside: no other change of protocol goes to a host that is
// opened, and a WebSocket begins with GET and without a body.
func TestOnlyWebSocketsUpgradeInside(t *testing.T) {
	w := newTestnet(t, testnetOptions{rules: []string{apiHost}, requests: []string{apiHost}})
	got := make(chan http.Header, 1)
	w.host(apiHost, apiHost, 443, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header }), false)
	for _, c := range []struct {
		method, upgrade, body string
		status                int
	}{
		{"GET", "h2c", "", 200}, {"GET", "websocket, h2c", "", 200}, {"POST", "websocket", "", 400}, {"GET", "websocket", "x", 400},
	} {
		header := map[string]string{"Connection": "Upgrade, HTTP2-Settings", "Upgrade": c.upgrade, "HTTP2-Settings": "AAMAAABkAAQAoAAAAAIAAAAA"}
		var body io.Reader
		if c.body != "" {
			body = strings.NewReader(c.body)
		}
		status, said, _ := do(t, w.client(false), newRequest(t, c.method, "https://"+apiHost+"/", header, body))
		if status != c.status {
			t.Errorf("%s with Upgrade %s: %d %s, want %d", c.method, c.upgrade, status, said, c.status)
		}
		if status != 200 {
			continue
		}
		if h := <-got; h["Upgrade"] != nil || h["Http2-Settings"] != nil {
			t.Errorf("%s with Upgrade %s: the host got %v", c.method, c.upgrade, h)
		}
	}
}

// TestNeitherHTTPNorTLSToAnOpenedHost: a rule for a port makes no way around.
func TestNeitherHTTPNorTLSToAnOpenedHost(t *testing.T) {
	w := newTestnet(t, testnetOptions{rules: []string{apiHost + ":22"}, requests: []string{apiHost}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w.route(apiHost, 22, l.Addr().String())
	c, err := net.Dial("tcp", w.door.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "CONNECT "+apiHost+":22 HTTP/1.1\r\nHost: "+apiHost+":22\r\n\r\n")
	io.ReadFull(c, make([]byte, len("HTTP/1.1 200 OK\r\n\r\n")))
	io.WriteString(c, "SSH-2.0-client\r\n")
	if b, err := io.ReadAll(c); err == nil || len(b) > 0 {
		t.Errorf("%q came, %v", b, err)
	}
}

// TestRulesOfRequestsThatComeLater: a flow in progress to a host that is opened from
// now on ends, others go on, and the next request is judged.
func TestRulesOfRequestsThatComeLater(t *testing.T) {
	w := newTestnet(t, testnetOptions{rules: []string{apiHost, otherHost}})
	arrived, leave := make(chan struct{}, 2), make(chan struct{})
	slow := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		select {
		case <-leave:
		case <-r.Context().Done():
		}
	})
	w.host(apiHost, apiHost, 443, slow, true)
	w.host(otherHost, otherHost, 443, slow, true)
	c := w.client(true)
	ended := map[string]chan error{apiHost: make(chan error, 1), otherHost: make(chan error, 1)}
	for host, end := range ended {
		go func() {
			res, err := c.Get("https://" + host + "/")
			if err == nil {
				res.Body.Close()
			}
			end <- err
		}()
	}
	<-arrived
	<-arrived
	requests, err := rule.CompileRequests([]rule.Request{{Host: apiHost, Methods: []string{"GET"}}})
	if err != nil {
		t.Fatal(err)
	}
	next, err := intercept.New(intercept.Options{Authority: w.authority, Requests: requests})
	if err != nil {
		t.Fatal(err)
	}
	w.gate.SetIntercept(next)
	if err := <-ended[apiHost]; err == nil {
		t.Error("the flow to the host that is opened now was answered")
	}
	close(leave)
	if err := <-ended[otherHost]; err != nil {
		t.Errorf("the other flow: %v", err)
	}
	if status, body, _ := do(t, c, newRequest(t, "PUT", "https://"+apiHost+"/", nil, nil)); status != 403 {
		t.Errorf("%d %s", status, body)
	}
}
