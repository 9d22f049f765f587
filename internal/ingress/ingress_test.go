package ingress_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/ingress"
)

const (
	sandbox = "sb-0123456789abcdef"
	other   = "sb-fedcba9876543210"
	token   = "TOKEN-OF-THE-PORT"
)

// ports is a core whose sandboxes have servers on this machine.
type ports struct {
	mu   sync.Mutex
	open map[string]*openPort // by sandbox:port
	seen []core.PortRequest
}

type openPort struct {
	use   core.PortUse
	token string
}

// UsePort implements ingress.Core.
func (p *ports) UsePort(_ context.Context, r core.PortRequest) (*core.PortUse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, r)
	o := p.open[r.Sandbox+":"+strconv.Itoa(r.Port)]
	if o == nil || !o.use.Public && !slices.Contains(r.Tokens, o.token) {
		return nil, api.Errorf(api.CodeNotFound, "no")
	}
	return &o.use, nil
}

func (p *ports) last() core.PortRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[len(p.seen)-1]
}

// world is a server with one open port, 8000 of sandbox.
type world struct {
	t    *testing.T
	core *ports
	addr string
	base ingress.Base
	// closePort closes port 8000.
	closePort context.CancelFunc
	app       *httptest.Server
}

func (w *world) origin(sandbox string, port int) string { return w.base.Origin(sandbox, port) }

// client connects to the server whatever the name in a URL is.
func (w *world) client() *http.Client {
	jar, err := cookiejar.New(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", w.addr)
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true,
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Jar: jar}
}

// serve serves ports, of which 8000 is a server with the handler.
func serve(t *testing.T, h http.Handler, change func(*ingress.Options, *openPort)) *world {
	t.Helper()
	app := httptest.NewServer(h)
	t.Cleanup(app.Close)
	live, end := context.WithCancel(context.Background())
	t.Cleanup(end)
	port := &openPort{token: token, use: core.PortUse{Live: live, Dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", app.Listener.Addr().String())
	}}}
	c := &ports{open: map[string]*openPort{sandbox + ":8000": port}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := ingress.Options{Core: c, Base: ingress.Base{Scheme: "http", Domain: "localhost", Port: ln.Addr().(*net.TCPAddr).Port}}
	if change != nil {
		change(&o, port)
	}
	s := ingress.New(o)
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	t.Cleanup(func() {
		s.Shutdown()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return &world{t: t, core: c, addr: ln.Addr().String(), base: o.Base, closePort: end, app: app}
}

func (w *world) do(method, target string, header http.Header, body io.Reader) (*http.Response, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, target, body)
	if err != nil {
		w.t.Fatal(err)
	}
	for k, v := range header {
		r.Header[k] = v
	}
	if host := header.Get("Host"); host != "" {
		r.Host = host
	}
	c := w.client()
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := c.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp, string(data)
}

// with is the header of a program.
func with(pairs ...string) http.Header {
	h := http.Header{api.PortTokenHeader: {token}}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

// echo answers with what it got.
func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"host": r.Host, "uri": r.RequestURI, "header": r.Header, "method": r.Method})
}

type echoed struct {
	Host, URI, Method string
	Header            http.Header
}

func echoOf(t *testing.T, body string) (e echoed) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatalf("%v in %q", err, body)
	}
	return e
}

func TestBrowserExchangesTheTokenForACookie(t *testing.T) {
	w := serve(t, http.HandlerFunc(echo), nil)
	origin := w.origin(sandbox, 8000)
	resp, _ := w.do("GET", origin+"/a?x=1&cloche_token="+token+"&y=2", nil, nil)
	if got := resp.Header.Get("Location"); resp.StatusCode != http.StatusSeeOther || got != origin+"/a?x=1&y=2" {
		t.Fatalf("HTTP %d to %q", resp.StatusCode, got)
	}
	if !w.core.last().Exchange {
		t.Error("the exchange was not told")
	}
	set := resp.Header.Get("Set-Cookie")
	for _, want := range []string{"cloche_port=" + token, "HttpOnly", "SameSite=Lax", "Path=/"} {
		if !strings.Contains(set, want) {
			t.Errorf("Set-Cookie %q lacks %q", set, want)
		}
	}
	if strings.Contains(set, "Domain") || strings.Contains(set, "Secure") {
		t.Errorf("Set-Cookie %q", set)
	}
	if resp.Header.Get("Referrer-Policy") != "no-referrer" || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("the redirect can be kept or told: %v", resp.Header)
	}
	resp, _ = w.do("GET", origin+"/a?x=1&cloche_token=x", http.Header{"Cookie": {"a=b; cloche_port=" + token + "; c=d"}}, nil)
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("another token in the URL: HTTP %d", resp.StatusCode)
	}
	resp, body := w.do("POST", origin+"/a?x=1;y&cloche_token=x&%zz", http.Header{"Cookie": {"a=b; cloche_port=" + token + "; c=d"}}, strings.NewReader("body"))
	e := echoOf(t, body)
	if resp.StatusCode != http.StatusOK || e.URI != "/a?x=1;y&%zz" || e.Header.Get("Cookie") != "a=b; c=d" {
		t.Errorf("HTTP %d, the program got %+v", resp.StatusCode, e)
	}
}

func TestSecureCookie(t *testing.T) {
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	defer cert.Close()
	w := serve(t, http.HandlerFunc(echo), func(o *ingress.Options, _ *openPort) {
		o.Base.Scheme, o.Base.Domain = "https", "box.example.org"
		o.Certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert.TLS.Certificates[0], nil }
	})
	resp, _ := w.do("GET", w.origin(sandbox, 8000)+"/?cloche_token="+token, nil, nil)
	if set := resp.Header.Get("Set-Cookie"); !strings.HasPrefix(set, "__Host-cloche_port=") || !strings.Contains(set, "Secure") || resp.ProtoMajor != 2 {
		t.Errorf("%s, Set-Cookie %q", resp.Proto, set)
	}
	resp, body := w.do("GET", w.origin(sandbox, 8000)+"/", http.Header{"Cookie": {"__Host-cloche_port=" + token}}, nil)
	if e := echoOf(t, body); resp.StatusCode != 200 || e.Header.Get("X-Forwarded-Proto") != "https" || e.Header.Get("Cookie") != "" {
		t.Errorf("HTTP %d %+v", resp.StatusCode, e)
	}
}

func TestProgramGetsTheRequestAsIfItWereLocal(t *testing.T) {
	w := serve(t, http.HandlerFunc(echo), nil)
	origin := w.origin(sandbox, 8000)
	_, body := w.do("GET", origin+"//x/../y%2Fz", with("Origin", origin, "X-Forwarded-For", "6.6.6.6", "Forwarded", "for=6.6.6.6",
		"X-Forwarded-Host", "forged", "Connection", "X-Hop", "X-Hop", "1", "Upgrade", "h2c"), nil)
	e := echoOf(t, body)
	u, _ := url.Parse(origin)
	for what, pair := range map[string][2]string{
		"host": {e.Host, "localhost:8000"}, "uri": {e.URI, "//x/../y%2Fz"}, "origin": {e.Header.Get("Origin"), "http://localhost:8000"},
		"for": {e.Header.Get("X-Forwarded-For"), "127.0.0.1"}, "forwarded host": {e.Header.Get("X-Forwarded-Host"), u.Host},
		"proto": {e.Header.Get("X-Forwarded-Proto"), "http"}, "forwarded": {e.Header.Get("Forwarded"), ""},
		"token": {e.Header.Get(api.PortTokenHeader), ""}, "hop": {e.Header.Get("X-Hop"), ""}, "upgrade": {e.Header.Get("Upgrade"), ""},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %q, want %q", what, pair[0], pair[1])
		}
	}
}

func TestKeepHost(t *testing.T) {
	w := serve(t, http.HandlerFunc(echo), func(_ *ingress.Options, p *openPort) { p.use.KeepHost = true })
	origin := w.origin(sandbox, 8000)
	_, body := w.do("GET", origin+"/", with("Origin", origin), nil)
	if e := echoOf(t, body); "http://"+e.Host != origin || e.Header.Get("Origin") != origin {
		t.Errorf("%+v", e)
	}
}

func TestAnswersStayInTheirOrigin(t *testing.T) {
	w := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Add("Set-Cookie", "cloche_port=forged; Path=/")
		h.Add("Set-Cookie", "__host-cloche_port=forged")
		h.Add("Set-Cookie", "session=1; Domain=localhost; Path=/; HttpOnly")
		h.Set("Clear-Site-Data", `"cookies"`)
		h.Set("Alt-Svc", `h2="evil:1"`)
		h.Set("Location", r.URL.Query().Get("to"))
		w.WriteHeader(http.StatusFound)
	}), nil)
	origin := w.origin(sandbox, 8000)
	for to, want := range map[string]string{
		"http://localhost:8000/login": origin + "/login", "http://127.0.0.1:8000": origin, "http://[::1]:8000/?a=http://localhost:8000": origin + "/?a=http://localhost:8000",
		"/relative": "/relative", "https://example.org/": "https://example.org/", "http://localhost:8000@evil/": "http://localhost:8000@evil/",
		"http://localhost:80001/": "http://localhost:80001/",
	} {
		resp, _ := w.do("GET", origin+"/?to="+url.QueryEscape(to), with(), nil)
		if got := resp.Header.Get("Location"); got != want {
			t.Errorf("Location %q became %q, want %q", to, got, want)
		}
		if got := resp.Header["Set-Cookie"]; !slices.Equal(got, []string{"session=1; Path=/; HttpOnly"}) {
			t.Errorf("Set-Cookie %q", got)
		}
		if resp.Header.Get("Clear-Site-Data") != "" || resp.Header.Get("Alt-Svc") != "" {
			t.Errorf("header %v", resp.Header)
		}
	}
}

func TestStreamsAndBodies(t *testing.T) {
	next := make(chan struct{})
	w := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 3 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				w.(http.Flusher).Flush()
				<-next
			}
		case "/size":
			n, _ := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n)
		}
	}), nil)
	origin := w.origin(sandbox, 8000)
	r, _ := http.NewRequestWithContext(t.Context(), "GET", origin+"/events", nil)
	r.Header = with()
	resp, err := w.client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for i := range 3 {
		if !lines.Scan() || lines.Text() != "data: "+strconv.Itoa(i) {
			t.Fatalf("event %d is %q", i, lines.Text())
		}
		lines.Scan()
		next <- struct{}{} // only now the program goes on: nothing was held back
	}
	const size = 64 << 20
	if _, body := w.do("POST", origin+"/size", with(), io.LimitReader(zeros{}, size)); body != strconv.Itoa(size) {
		t.Errorf("the program got %s bytes", body)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func socketEcho(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer ws.CloseNow()
	for {
		kind, data, err := ws.Read(r.Context())
		if err != nil || ws.Write(r.Context(), kind, data) != nil {
			return
		}
	}
}

func TestWebSocketEndsWithThePort(t *testing.T) {
	w := serve(t, http.HandlerFunc(socketEcho), nil)
	origin := w.origin(sandbox, 8000)
	// The library compares Origin with Host: the program sees both as local.
	ws, _, err := websocket.Dial(t.Context(), origin+"/", &websocket.DialOptions{HTTPClient: w.client(), HTTPHeader: with("Origin", origin)})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if err := ws.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, data, err := ws.Read(t.Context()); err != nil || string(data) != "hello" {
		t.Fatalf("%q %v", data, err)
	}
	w.closePort()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, _, err := ws.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("after the port was closed: %v", err)
	}
}

func TestOneAnswerForUnknownAndUnauthorised(t *testing.T) {
	w := serve(t, http.HandlerFunc(echo), nil)
	origin := w.origin(sandbox, 8000)
	host := strings.TrimPrefix(origin, "http://")
	id := strings.TrimPrefix(sandbox, "sb-")
	headers := func(pairs ...string) http.Header {
		h := with(pairs...)
		h.Del(api.PortTokenHeader)
		return h
	}
	cases := map[string]http.Header{
		"no token":          headers(),
		"another token":     {api.PortTokenHeader: {"x"}},
		"empty token":       {api.PortTokenHeader: {""}},
		"closed port":       with("Host", strings.Replace(host, "8000", "8001", 1)),
		"other sandbox":     with("Host", strings.Replace(host, id, strings.TrimPrefix(other, "sb-"), 1)),
		"rebinding":         with("Host", "attacker.example"),
		"address":           with("Host", w.addr),
		"domain":            with("Host", "localhost"),
		"below":             with("Host", "x."+host),
		"longer domain":     with("Host", "8000-"+id+".localhost.evil"),
		"dot":               with("Host", "8000-"+id+".localhost."),
		"leading zero":      with("Host", "08000-"+id+".localhost"),
		"sign":              with("Host", "+8000-"+id+".localhost"),
		"big port":          with("Host", "73536-"+id+".localhost"),
		"prefix":            with("Host", "8000-sb-"+id+".localhost"),
		"user":              with("Host", "8000-"+id+".localhost:80@evil"),
		"bad port":          with("Host", "8000-"+id+".localhost:8x"),
		"unicode":           with("Host", "8000-"+id+".localhosţ"),
		"cookie, other":     headers("Cookie", "__Host-cloche_port="+token),
		"cookie, evil page": headers("Cookie", "cloche_port="+token, "Origin", "http://evil.example"),
		"cookie, sibling":   headers("Cookie", "cloche_port="+token, "Origin", w.origin(other, 8000)),
		"cookie, null":      headers("Cookie", "cloche_port="+token, "Origin", "null"),
		"cookie, image":     headers("Cookie", "cloche_port="+token, "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"),
		"cookie, frame":     headers("Cookie", "cloche_port="+token, "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"),
	}
	var want string
	for name, h := range cases {
		resp, body := w.do("GET", origin+"/", h, nil)
		resp.Header.Del("Date")
		got := fmt.Sprint(resp.StatusCode, resp.Header, body)
		if want == "" {
			want = got
		}
		if resp.StatusCode != http.StatusNotFound || got != want {
			t.Errorf("%s: %s\nwant %s", name, got, want)
		}
	}
	if resp, _ := w.do("GET", origin+"/", headers("Cookie", "cloche_port="+token, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"), nil); resp.StatusCode != 200 {
		t.Errorf("a link from another page: HTTP %d", resp.StatusCode)
	}
	if resp, _ := w.do("GET", origin+"/", headers("Cookie", "cloche_port="+token, "Origin", w.origin(sandbox, 3000), "Sec-Fetch-Site", "same-site"), nil); resp.StatusCode != 200 {
		t.Errorf("a page of the same sandbox: HTTP %d", resp.StatusCode)
	}
	if resp, _ := w.do("GET", origin+"/", with("Host", strings.ToUpper(host)), nil); resp.StatusCode != 200 {
		t.Errorf("upper case: HTTP %d", resp.StatusCode)
	}
	// A cookie that another origin has added does not hide the right one.
	if resp, _ := w.do("GET", origin+"/", headers("Cookie", "cloche_port=tossed; cloche_port="+token), nil); resp.StatusCode != 200 {
		t.Errorf("two cookies: HTTP %d", resp.StatusCode)
	}
	resp, body := w.do("GET", origin+"/", headers("Accept", "text/html"), nil)
	if !strings.Contains(resp.Header.Get("Content-Security-Policy"), "default-src 'none'") || strings.Contains(body, "<script") || strings.Contains(body, id) {
		t.Errorf("page %v %s", resp.Header, body)
	}
}

func TestRedirectStaysAtTheOrigin(t *testing.T) {
	w := serve(t, http.HandlerFunc(echo), nil)
	origin := w.origin(sandbox, 8000)
	resp, _ := w.do("GET", origin+"//evil.example/%2e?cloche_token="+token, nil, nil)
	if got := resp.Header.Get("Location"); got != origin+"//evil.example/%2e" {
		t.Errorf("Location %q", got)
	}
	if resp, _ := w.do("GET", origin+"/?cloche_token="+token+"&cloche_token="+token, nil, nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("two tokens: HTTP %d", resp.StatusCode)
	}
}

func TestErrorsOfThePort(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		status int
		text   string
	}{
		"nothing listens": {api.Errorf(api.CodeUnavailable, "x"), http.StatusBadGateway, "no program"},
		"paused":          {func() error { e := api.Errorf(api.CodeState, "x"); e.Retryable = true; return e }(), http.StatusServiceUnavailable, "paused"},
		"ended":           {api.Errorf(api.CodeState, "x"), http.StatusNotFound, "No open port"},
		"full":            {api.Errorf(api.CodeNoCapacity, "x"), http.StatusServiceUnavailable, "too many"},
		"lost":            {api.Errorf(api.CodeSandboxLost, "x"), http.StatusServiceUnavailable, "does not answer"},
		"broken":          {io.ErrUnexpectedEOF, http.StatusBadGateway, "closed the connection"},
	} {
		w := serve(t, http.HandlerFunc(echo), func(_ *ingress.Options, p *openPort) {
			p.use.Dial = func(context.Context) (net.Conn, error) { return nil, c.err }
		})
		for _, accept := range []string{"text/html,*/*", "application/json"} {
			resp, body := w.do("GET", w.origin(sandbox, 8000)+"/", with("Accept", accept), nil)
			if resp.StatusCode != c.status || !strings.Contains(body, c.text) || strings.HasPrefix(body, "{") != (accept == "application/json") {
				t.Errorf("%s, %s: HTTP %d %s", name, accept, resp.StatusCode, body)
			}
		}
	}
}

// raw sends bytes, and returns all that comes back.
func (w *world) raw(t *testing.T, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		return ""
	}
	_ = c.(*net.TCPConn).CloseWrite()
	data, _ := io.ReadAll(c)
	return string(data)
}

func TestSmuggledRequests(t *testing.T) {
	var mu sync.Mutex
	var got []string
	w := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.Method+" "+r.RequestURI+" "+strconv.Itoa(len(body)))
	}), nil)
	head := "Host: " + strings.TrimPrefix(w.origin(sandbox, 8000), "http://") + "\r\n" + api.PortTokenHeader + ": " + token + "\r\n"
	hidden := "GET /hidden HTTP/1.1\r\n\r\n"
	for name, text := range map[string]string{
		"both lengths":      "POST /a HTTP/1.1\r\n" + head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n" + hidden,
		"two lengths":       "POST /a HTTP/1.1\r\n" + head + "Content-Length: 0\r\nContent-Length: 26\r\n\r\n" + hidden,
		"odd coding":        "POST /a HTTP/1.1\r\n" + head + "Transfer-Encoding: xchunked\r\n\r\n" + hidden,
		"space":             "POST /a HTTP/1.1\r\n" + head + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + hidden,
		"folded":            "POST /a HTTP/1.1\r\n" + head + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + hidden,
		"chunk size":        "POST /a HTTP/1.1\r\n" + head + "Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" + hidden,
		"upgrade with body": "POST /a HTTP/1.1\r\n" + head + "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 26\r\n\r\n" + hidden,
		"connect":           "CONNECT localhost:22 HTTP/1.1\r\n" + head + "\r\n",
		"asterisk":          "OPTIONS * HTTP/1.1\r\n" + head + "\r\n",
		"two hosts":         "GET /a HTTP/1.1\r\n" + head + head + "\r\n",
		"absolute":          "GET http://evil.example/a HTTP/1.1\r\n" + head + "\r\n",
		"no host":           "GET /a HTTP/1.0\r\n\r\n",
		"huge header":       "GET /a HTTP/1.1\r\n" + head + "X: " + strings.Repeat("x", 1<<20) + "\r\n\r\n",
		"many headers":      "GET /a HTTP/1.1\r\n" + head + strings.Repeat("X: y\r\n", 50_000) + "\r\n",
		"many cookies":      "GET /a HTTP/1.1\r\nHost: x\r\nCookie: " + strings.Repeat("cloche_port=x;", 4000) + "\r\n\r\n",
		"not HTTP":          "\x16\x03\x01\x00\x00",
	} {
		path := " /" + url.PathEscape(name) + " "
		// Two have one meaning here: their first request is valid, and the hidden one has no Host.
		most := 0
		if name == "both lengths" || name == "folded" {
			most = 1
		}
		if answer := w.raw(t, strings.Replace(text, " /a ", path, 1)); strings.Count(answer, "HTTP/1.1 200") > most {
			t.Errorf("%s: answered %.200q", name, answer)
		}
	}
	w.app.Close() // waits for the requests that the program still reads
	slices.Sort(got)
	if len(slices.Compact(slices.Clone(got))) != len(got) {
		t.Errorf("a request came twice: %q", got)
	}
	for _, g := range got {
		if !strings.HasPrefix(g, "POST /") || !strings.HasSuffix(g, " 0") {
			t.Errorf("the program got %q", g)
		}
	}
	if !slices.Contains(got, "POST /both%20lengths 0") {
		t.Errorf("the program got %q, and not the one request that is valid", got)
	}
}

func TestSlowHeader(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the timeout of headers, 10 seconds")
	}
	w := serve(t, http.HandlerFunc(echo), nil)
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	begun := time.Now()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nX: ")
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	data, err := io.ReadAll(c)
	if took := time.Since(begun); err != nil || took > 20*time.Second {
		t.Errorf("a header without an end was waited for %v: %q %v", took, data, err)
	}
}
