package endpoint_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/endpoint"
)

// watcher keeps what it is told.
type watcher struct {
	mu        sync.Mutex
	exchanges []api.Exchange
	states    []string
}

func (w *watcher) Exchanged(x api.Exchange) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.exchanges = append(w.exchanges, x)
}

func (w *watcher) Changed(s api.EndpointState, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.states = append(w.states, strings.TrimSpace(string(s)+" "+reason))
}

func (w *watcher) last(t *testing.T) api.Exchange {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.exchanges) == 0 {
		t.Fatal("nothing is on record")
	}
	return w.exchanges[len(w.exchanges)-1]
}

// secretBook has the values of secrets by name.
type secretBook map[string]string

func (b secretBook) Value(_ context.Context, name, _ string) (string, error) {
	if v, ok := b[name]; ok {
		return v, nil
	}
	return "", errors.New("no secret " + name)
}

// bench is an endpoint that serves a port of this machine's loopback, which stands
// for a sandbox's.
type inside struct {
	*endpoint.Endpoint
	*watcher
	addr string
	base string
}

func loopback() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }

func open(t *testing.T, spec api.Endpoint, tune func(*endpoint.Options)) *inside {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	spec.Name, spec.Listen = "model", ln.Addr().String()
	in := newInside(t, spec, tune)
	var wg sync.WaitGroup
	wg.Go(func() { in.Serve(ln) })
	t.Cleanup(func() {
		ln.Close()
		in.Close(t.Context(), 0)
		wg.Wait()
	})
	return in
}

// newInside makes an endpoint that no client serves yet.
func newInside(t *testing.T, spec api.Endpoint, tune func(*endpoint.Options)) *inside {
	t.Helper()
	in := &inside{watcher: &watcher{}, addr: spec.Listen, base: "http://" + spec.Listen}
	o := endpoint.Options{
		Spec: spec, Ranges: loopback(), Tenant: "t", Sandbox: "sb-1", Observer: in.watcher, Logger: slog.New(slog.DiscardHandler),
		Secrets: secretBook{"key": "s3cret-value"},
	}
	if tune != nil {
		tune(&o)
	}
	var err error
	if in.Endpoint, err = endpoint.New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return in
}

// target is a server of the host's.
func target(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// say sends bytes as they are and returns the whole answer.
func (in *inside) say(t *testing.T, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", in.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(c)
	return string(answer)
}

// TestNothingChoosesAnotherTarget: whatever a request says, it reaches a path below
// the target with the host's own header, or nothing.
func TestNothingChoosesAnotherTarget(t *testing.T) {
	var got []string
	var mu sync.Mutex
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.Method+" "+r.Host+" "+r.RequestURI+" "+r.Header.Get("Authorization")+" "+r.Header.Get("X-Sandbox-Id"))
	})
	host := strings.TrimPrefix(srv.URL, "http://")
	in := open(t, api.Endpoint{Target: srv.URL + "/rollout/k1", HTTP: &api.EndpointHTTP{SecretHeaders: map[string]string{"Authorization": "key"}}}, nil)
	for _, c := range []struct {
		line, headers string
		status        int
		reaches       string
	}{
		{"GET /v1/x?a=%2e%2e/&b", "", 200, "/rollout/k1/v1/x?a=%2e%2e/&b"},
		{"GET /a%20b/c%3Fd", "", 200, "/rollout/k1/a%20b/c%3Fd"},
		{"GET /", "", 200, "/rollout/k1/"},
		{"GET /v1/x", "Connection: close, authorization, x-sandbox-id\r\nAuthorization: mine\r\nX-Sandbox-Id: other\r\n", 200, "/rollout/k1/v1/x"},
		{"GET @evil.example/x", "", 400, ""},
		{`GET \@evil.example/x`, "", 400, ""},
		{`GET /\evil`, "", 400, ""},
		{"GET http://evil.example/x", "", 400, ""},
		{"GET http://" + host + "/x", "", 400, ""},
		{"CONNECT evil.example:443", "", 405, ""},
		{"TRACE /x", "", 405, ""},
		{"OPTIONS *", "", 400, ""},
		{"GET //evil.example/x", "", 400, ""},
		{"GET /../../admin", "", 400, ""},
		{"GET /v1/..", "", 400, ""},
		{"GET /./x", "", 400, ""},
		{"GET /%2e%2e/%2e%2e/admin", "", 400, ""},
		{"GET /.%2E/admin", "", 400, ""},
		{"GET /%252e%252e/admin", "", 400, ""},
		{"GET /..;x=y/admin", "", 400, ""},
		{"GET /v1%2f..%2fadmin", "", 400, ""},
		{"GET /v1%2Fx", "", 400, ""},
		{"GET /v1%5c..%5cadmin", "", 400, ""},
		{"GET /x%00y", "", 400, ""},
		{"GET /%c0%ae%c0%ae/admin", "", 400, ""},
		{"GET /x%0d%0aHost:%20evil", "", 400, ""},
		{"GET /x%c2%85y", "", 400, ""},
		{"GET /%25zz/%252e%252e/admin", "", 400, ""},
		{"GET /..%20/admin", "", 400, ""},
		{"GET /x#y", "", 400, ""},
		{"GET /x", "Host: two.example\r\n", 400, ""},
		{"POST /x", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400, ""},
		{"POST /x", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 400, ""},
		{"GET /x", "Origin: http://evil.example\r\n", 403, ""},
		{"GET /x", "Origin: null\r\n", 403, ""},
		{"OPTIONS /x", "Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n", 403, ""},
		{"GET /x", "Origin: http://" + "127.0.0.1:1\r\n", 403, ""},
		{"GET /x", strings.Repeat("X-A: b\r\n", 200), 431, ""},
	} {
		mu.Lock()
		got = nil
		mu.Unlock()
		answer := in.say(t, c.line+" HTTP/1.1\r\nHost: "+in.addr+"\r\n"+c.headers+"Connection: close\r\n\r\n0\r\n\r\n")
		status := 0
		fmt.Sscanf(answer, "HTTP/1.1 %d", &status)
		mu.Lock()
		if status != c.status || strings.Contains(answer, "Access-Control") {
			t.Errorf("%q: %.200q, want %d", c.line+c.headers, answer, c.status)
		}
		method, _, _ := strings.Cut(c.line, " ")
		want := []string{method + " " + host + " " + c.reaches + " s3cret-value sb-1"}
		if c.reaches == "" {
			want = nil
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: reached %q, want %q", c.line+c.headers, got, want)
		}
		mu.Unlock()
	}
	for authority, want := range map[string]string{
		"evil.example": "421", "localhost" + in.addr[9:]: "200", "[::1]" + in.addr[9:]: "200", "127.0.0.1": "421", "127.0.0.1:1": "421",
	} {
		if a := in.say(t, "GET /x HTTP/1.1\r\nHost: "+authority+"\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(a, "HTTP/1.1 "+want) {
			t.Errorf("Host %s: %.60q", authority, a)
		}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, x := range in.exchanges {
		if strings.Contains(fmt.Sprintf("%+v", x), "s3cret") || strings.Contains(x.Path, "?") {
			t.Errorf("on record: %+v", x)
		}
	}
}

// TestAddressesOfTargets: what a name means is judged when it is dialled, each time.
func TestAddressesOfTargets(t *testing.T) {
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {})
	port := srv.URL[strings.LastIndex(srv.URL, ":"):]
	names := &zone{addrs: map[string]string{"good.test": "127.0.0.1", "meta.test": "169.254.169.254", "lan.test": "10.1.2.3", "link.test": "fe80::1", "turns.test": "127.0.0.1"}}
	own := netip.MustParseAddrPort(strings.TrimPrefix(srv.URL, "http://"))
	for _, c := range []struct {
		target, code string
		own          bool
	}{
		{"http://good.test" + port, "", false},
		{"http://good.test" + port, "target_denied", true},
		{"http://meta.test" + port, "target_denied", false},
		{"http://169.254.169.254/latest", "target_denied", false},
		{"http://lan.test" + port, "target_denied", false},
		{"http://link.test" + port, "target_denied", false},
		{"http://[::ffff:169.254.169.254]/", "target_denied", false},
		{"http://nowhere.test" + port, "target_unreachable", false},
	} {
		in := open(t, api.Endpoint{Target: c.target}, func(o *endpoint.Options) {
			o.Resolver = names
			o.Ranges = append(loopback(), netip.MustParsePrefix("169.254.0.0/16"))
			if c.own {
				o.Own = func(a netip.AddrPort) bool { return a == own }
			}
		})
		resp, err := http.Get(in.base)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if got := resp.Header.Get("X-Bridge-Error"); got != c.code || strings.Contains(string(body), "169.254") {
			t.Errorf("%s: %q, %s, want %q", c.target, got, body, c.code)
		}
	}
	in := open(t, api.Endpoint{Target: "http://turns.test" + port}, func(o *endpoint.Options) { o.Resolver = names })
	for _, want := range []string{"", "target_denied"} {
		resp, err := http.Get(in.base)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get("X-Bridge-Error"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		names.set("turns.test", "169.254.169.254")
		srv.CloseClientConnections()
	}
}

// zone is a resolver.
type zone struct {
	mu    sync.Mutex
	addrs map[string]string
}

func (z *zone) set(name, addr string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.addrs = maps.Clone(z.addrs)
	z.addrs[name] = addr
}

func (z *zone) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if a, ok := z.addrs[host]; ok {
		return []netip.Addr{netip.MustParseAddr(a)}, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host}
}

// TestStreams: what the target says arrives as it says it, and each side sees at
// once that the other has gone.
func TestStreams(t *testing.T) {
	gone := make(chan struct{})
	next := make(chan struct{})
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
		<-r.Context().Done()
		close(gone)
	})
	in := open(t, api.Endpoint{Target: srv.URL}, nil)
	resp, err := http.Get(in.base)
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(resp.Body)
	for i := range 3 {
		if line, err := r.ReadString('\n'); line != fmt.Sprintf("data: %d\n", i) || err != nil {
			t.Fatalf("%q, %v", line, err)
		}
		r.ReadString('\n')
		next <- struct{}{}
	}
	resp.Body.Close()
	select {
	case <-gone:
	case <-time.After(time.Minute):
		t.Fatal("the target does not see that the client has gone")
	}
	for in.Status().Counters.Active > 0 {
		<-time.After(time.Millisecond)
	}
	if x := in.last(t); x.Outcome != "client_cancel" || x.Upstream != 200 {
		t.Errorf("%+v", x)
	}
}

// TestPassedUnchanged: bodies, headers, trailers and statuses are the target's own.
func TestPassedUnchanged(t *testing.T) {
	big := make([]byte, 3<<20)
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(big)
	var trailer atomic.Value
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		trailer.Store(r.Trailer.Get("X-Sum"))
		switch r.URL.Path {
		case "/echo":
			w.Header().Set("Trailer", "X-After")
			w.Header().Add("Set-Cookie", "a=1")
			w.Header().Add("Set-Cookie", "b=2")
			w.Header().Set("X-Key-Echo", "you sent "+r.Header.Get("X-Key"))
			w.Header().Set("Access-Control-Allow-Origin", "*")
			w.Write(body)
			w.Header().Set("X-After", "all")
		case "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			w.Write([]byte("not really \xff\xfe"))
		case "/moved":
			w.Header().Set("Location", "http://"+r.Host+"/else?x=1")
			w.WriteHeader(302)
		case "/away":
			w.Header().Set("Location", "http://elsewhere.example/")
			w.WriteHeader(302)
		case "/204":
			w.WriteHeader(204)
		case "/304":
			w.Header().Set("Etag", `"x"`)
			w.WriteHeader(304)
		case "/early":
			w.Header().Set("Link", "</s.css>")
			w.WriteHeader(103)
			w.WriteHeader(200)
		case "/agent":
			fmt.Fprintf(w, "%q %q", r.Header["User-Agent"], r.Header["Accept-Encoding"])
		}
	})
	in := open(t, api.Endpoint{Target: srv.URL, HTTP: &api.EndpointHTTP{SecretHeaders: map[string]string{"X-Key": "key"}}}, nil)
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	pr, pw := io.Pipe()
	go func() {
		pw.Write(big)
		pw.Close()
	}()
	req, _ := http.NewRequest("POST", in.base+"/echo", pr)
	req.Trailer = http.Header{"X-Sum": nil}
	req.Trailer.Set("X-Sum", "42")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !bytes.Equal(got, big) || resp.Trailer.Get("X-After") != "all" || trailer.Load() != "42" {
		t.Errorf("%d bytes, %v, trailers %v %v", len(got), err, resp.Trailer, trailer.Load())
	}
	if c := resp.Header["Set-Cookie"]; !slices.Equal(c, []string{"a=1", "b=2"}) || resp.Header.Get("Access-Control-Allow-Origin") != "" || resp.Header.Get("X-Key-Echo") != "you sent [redacted]" {
		t.Errorf("%v", resp.Header)
	}
	for path, want := range map[string]string{
		"/gzip": "200 gzip not really \xff\xfe", "/moved": "302 " + in.base + "/else?x=1", "/away": "302 http://elsewhere.example/",
		"/204": "204", "/304": `304 "x"`, "/early": "200", "/agent": `200 [] []`,
	} {
		req, _ := http.NewRequest("GET", in.base+path, nil)
		req.Header["User-Agent"] = nil
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		parts := []string{strconv.Itoa(resp.StatusCode)}
		for _, h := range []string{"Content-Encoding", "Location", "Etag"} {
			if v := resp.Header.Get(h); v != "" {
				parts = append(parts, v)
			}
		}
		if len(body) > 0 {
			parts = append(parts, string(body))
		}
		if got := strings.Join(parts, " "); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	resp, err = client.Head(in.base + "/gzip")
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("%v, %v", resp, err)
	}
}

// TestUpgrade: a connection that becomes something else is handed through.
func TestUpgrade(t *testing.T) {
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		c, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		rw.Flush()
		io.Copy(c, rw)
	})
	in := open(t, api.Endpoint{Target: srv.URL}, nil)
	// What a request left idle is of no use for the upgrade, and must not be waited for.
	before, err := http.Get("http://" + in.addr + "/")
	if err != nil {
		t.Fatal(err)
	}
	before.Body.Close()
	c, err := net.Dial("tcp", in.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprintf(c, "GET /ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", in.addr)
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatal(resp, err)
	}
	for range 100 {
		io.WriteString(c, "ping\x00\xff")
		b := make([]byte, 6)
		if _, err := io.ReadFull(r, b); err != nil || string(b) != "ping\x00\xff" {
			t.Fatalf("%q, %v", b, err)
		}
	}
	if r := in.Close(t.Context(), 10*time.Millisecond); r.Cancelled != 1 {
		t.Errorf("%+v", r)
	}
	if _, err := r.ReadByte(); err == nil {
		t.Error("it goes on after the end of the endpoint")
	}
	if x := in.last(t); x.BytesIn != 600 || x.BytesOut != 600 || in.Status().Counters.BytesOut != 600 {
		t.Errorf("%+v", x)
	}
}

// TestBounds: what is over a bound is refused, and nothing else is.
func TestBounds(t *testing.T) {
	release := make(chan struct{})
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		if r.URL.Path == "/much" {
			w.Write(make([]byte, 5000))
		}
		io.Copy(io.Discard, r.Body)
	})
	in := open(t, api.Endpoint{Target: srv.URL, Limits: api.EndpointLimits{Active: 4, RequestBytes: 1000, ResponseBytes: 4000}}, nil)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if resp, err := http.Get(in.base + "/hang"); err == nil {
				resp.Body.Close()
			}
		})
	}
	until(t, func() bool { return in.Status().Counters.Active == 3 })
	code := func(method, path string, body io.Reader) string {
		req, _ := http.NewRequest(method, in.base+path, body)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return "error"
		}
		defer resp.Body.Close()
		if _, err := io.ReadAll(resp.Body); err != nil {
			return "cut"
		}
		return strings.TrimSpace(strconv.Itoa(resp.StatusCode) + " " + resp.Header.Get("X-Bridge-Error") + " " + resp.Header.Get("Retry-After"))
	}
	if got := code("GET", "/", nil); got != "200" {
		t.Errorf("beside three that hang: %s", got)
	}
	for _, c := range []struct {
		path, want string
		body       io.Reader
	}{
		{"/", "413 body_too_large", strings.NewReader(strings.Repeat("x", 1001))},
		{"/", "413 body_too_large", io.LimitReader(endless{}, 5000)},
		{"/", "200", strings.NewReader(strings.Repeat("x", 1000))},
		{"/much", "cut", nil},
	} {
		got := code("POST", c.path, c.body)
		if c.want == "cut" && got == "error" {
			got = "cut" // before its head was on the way
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.path, got, c.want)
		}
	}
	got := make(chan string, 6)
	for range 6 { // one goes on, four wait, and one is refused
		wg.Go(func() { got <- code("GET", "/hang", nil) })
	}
	if got := <-got; got != "429 concurrency_limit 1" {
		t.Errorf("with a full queue: %s", got)
	}
	until(t, func() bool { return in.Status().Counters.Active == 8 })
	close(release)
	wg.Wait()
	for range 5 {
		if got := <-got; got != "200" {
			t.Errorf("one that waited: %s", got)
		}
	}
	if got := code("GET", "/", nil); got != "200" {
		t.Errorf("afterwards: %s", got)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

func until(t *testing.T, what func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !what(); {
		if time.Now().After(end) {
			t.Fatal("it does not come about")
		}
		<-time.After(time.Millisecond)
	}
}
