package egress_test

import (
	"bufio"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/egress/intercept"
	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// seen is what a server got.
type seen struct {
	mu   sync.Mutex
	last *http.Request
	body string
	n    int
}

func (s *seen) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.last, s.body = r, string(b)
	s.n++
	s.mu.Unlock()
	fmt.Fprintf(w, "%s %s", r.Method, r.URL.Path)
}

func (s *seen) get(t *testing.T) (*http.Request, string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		t.Fatal("the server saw no request")
	}
	return s.last, s.body
}

func (s *seen) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

func TestPlaceholderBecomesTheValueOnItsWay(t *testing.T) {
	for _, v := range []struct {
		name           string
		client, server bool // HTTP/2
	}{{"1 to 1", false, false}, {"2 to 2", true, true}, {"2 to 1", true, false}, {"1 to 2", false, true}} {
		t.Run(v.name, func(t *testing.T) {
			secret := keySecret(apiHost)
			w := newTestnet(t, testnetOptions{rules: []string{apiHost}, secrets: []intercept.Secret{secret}})
			site := &seen{}
			w.host(apiHost, apiHost, 443, site, v.server)
			basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+secret.Placeholder))
			c := w.client(v.client)
			status, _, _ := do(t, c, newRequest(t, "POST", "https://"+apiHost+"/v1/x?q=1", map[string]string{
				"Authorization": "Bearer " + secret.Placeholder, "X-Basic": basic, "X-Forwarded-For": "1.2.3.4",
			}, strings.NewReader("the body has "+secret.Placeholder)))
			got, body := site.get(t)
			if status != 200 || got.Header.Get("Authorization") != "Bearer "+secretValue || got.Host != apiHost || got.URL.RawQuery != "q=1" {
				t.Errorf("%d, Authorization %q, Host %q, %q", status, got.Header.Get("Authorization"), got.Host, got.URL)
			}
			if want := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+secretValue)); got.Header.Get("X-Basic") != want {
				t.Errorf("basic is %q", got.Header.Get("X-Basic"))
			}
			if got.Header.Get("X-Forwarded-For") != "1.2.3.4" || body != "the body has "+secret.Placeholder {
				t.Errorf("changed on the way: %q, %q", got.Header, body)
			}
			c.CloseIdleConnections()
			<-w.ended
			w.mu.Lock()
			if len(w.closed) != 1 || w.closed[0].Reason != "" {
				t.Errorf("a flow that the client closed ended with %+v", w.closed)
			}
			defer w.mu.Unlock()
			if len(w.used) != 1 || w.used[0].Status != 200 || w.used[0].Secrets[0] != "key" || w.used[0].Name != apiHost || w.used[0].Method != "POST" || w.used[0].Path != "/v1/x" {
				t.Errorf("on record: %+v", w.used)
			}
		})
	}
}

// TestWhereASecretDoesNotGo: a placeholder at a place or a host that its secret is
// not for goes nowhere, and neither does the value.
func TestWhereASecretDoesNotGo(t *testing.T) {
	secret := keySecret(apiHost)
	secret.Headers = []string{"Authorization"}
	w := newTestnet(t, testnetOptions{
		rules: []string{apiHost, otherHost, apiHost + ":8443"}, secrets: []intercept.Secret{secret},
		requests: []string{otherHost},
	})
	site, other := &seen{}, &seen{}
	w.host(apiHost, apiHost, 443, site, false)
	w.host(otherHost, otherHost, 443, other, false)
	w.host(apiHost, apiHost, 8443, other, false)
	plain := w.client(false)
	p := secret.Placeholder
	for _, v := range []struct{ name, url, field, value, allow string }{
		{"another host", "https://" + otherHost + "/", "Authorization", "Bearer " + p, "hosts: [" + otherHost},
		{"another host, basic", "https://" + otherHost + "/", "Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("u:"+p)), "hosts: ["},
		{"another host, query", "https://" + otherHost + "/?k=" + p, "X", "y", "hosts: ["},
		{"another host, path", "https://" + otherHost + "/" + p, "X", "y", "hosts: ["},
		{"another field", "https://" + apiHost + "/", "X-Echo", p, "headers: [X-Echo]"},
		{"query", "https://" + apiHost + "/?k=" + p, "X", "y", "query: true"},
		{"path", "https://" + apiHost + "/" + p, "X", "y", ""},
		{"path, escaped", "https://" + apiHost + "/%63" + p[1:], "X", "y", ""},
	} {
		status, body, _ := do(t, plain, newRequest(t, "GET", v.url, map[string]string{v.field: v.value}, nil))
		var ref rule.Refusal
		if err := json.Unmarshal([]byte(body), &ref); err != nil || status != 403 || ref.Rule != rule.RuleSecret || !strings.Contains(ref.Allow, v.allow) || v.allow == "" && ref.Allow != "" {
			t.Errorf("%s: %d %s", v.name, status, body)
		}
		if strings.Contains(body, secretValue) {
			t.Errorf("%s: the answer has the value", v.name)
		}
	}
	// At another port the TLS is not opened, so what goes is what the program has.
	if status, _, _ := do(t, plain, newRequest(t, "GET", "https://"+apiHost+":8443/", map[string]string{"Authorization": p}, nil)); status != 200 {
		t.Errorf("at another port: %d", status)
	}
	if got, _ := other.get(t); got.Header.Get("Authorization") != p || other.count() != 1 || site.count() != 0 {
		t.Errorf("%q came, %d and %d requests", got.Header.Get("Authorization"), other.count(), site.count())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.refused) != 8 || len(w.used) != 0 {
		t.Errorf("%d refusals and %d uses are on record", len(w.refused), len(w.used))
	}
}

func TestPlaceholderInTheClear(t *testing.T) {
	secret := keySecret(apiHost)
	w := newTestnet(t, testnetOptions{
		rules: []string{apiHost}, secrets: []intercept.Secret{secret}, requests: []string{"GET " + apiHost},
	})
	site := &seen{}
	s := w.host(apiHost, apiHost, 443, site, false)
	_ = s
	w.route(apiHost, 80, plainServer(t, site))
	c := w.client(false)
	for _, v := range []struct {
		method, target, auth string
		status               int
	}{{"GET", "/", "Bearer " + secret.Placeholder, 403}, {"GET", "/?" + secret.Placeholder, "x", 403}, {"POST", "/", "x", 403}, {"GET", "/", "x", 200}} {
		if status, body, _ := do(t, c, newRequest(t, v.method, "http://"+apiHost+v.target, map[string]string{"Authorization": v.auth}, nil)); status != v.status {
			t.Errorf("%s %s: %d %s", v.method, v.target, status, body)
		}
	}
	if site.count() != 1 {
		t.Errorf("the server saw %d requests", site.count())
	}
}

// TestRedirectLosesTheSecret: a client that follows to another host takes the
// placeholder there, and nothing else.
func TestRedirectLosesTheSecret(t *testing.T) {
	secret := keySecret(apiHost)
	w := newTestnet(t, testnetOptions{rules: []string{apiHost, otherHost}, secrets: []intercept.Secret{secret}})
	other := &seen{}
	w.host(apiHost, apiHost, 443, http.RedirectHandler("https://"+otherHost+"/there", http.StatusTemporaryRedirect), false)
	w.host(otherHost, otherHost, 443, other, false)
	c := w.client(false)
	c.CheckRedirect = func(r *http.Request, via []*http.Request) error {
		r.Header = via[0].Header.Clone() // as clients do that trust too much
		return nil
	}
	status, _, _ := do(t, c, newRequest(t, "GET", "https://"+apiHost+"/", map[string]string{"Authorization": "Bearer " + secret.Placeholder}, nil))
	got, _ := other.get(t)
	if status != 200 || got.Header.Get("Authorization") != "Bearer "+secret.Placeholder {
		t.Errorf("%d, the other host got %q", status, got.Header.Get("Authorization"))
	}
}

func TestOnlyTheRequestsThatAreAllowed(t *testing.T) {
	w := newTestnet(t, testnetOptions{rules: []string{apiHost, apiHost + ":8443"}, requests: []string{"GET,HEAD " + apiHost + "/v1/*,/health", "POST " + apiHost + "/v1/ask"}})
	site := &seen{}
	w.host(apiHost, apiHost, 443, site, true)
	w.host(apiHost, apiHost, 8443, site, false)
	for _, v := range []struct {
		method, target string
		status         int
	}{
		{"GET", "/v1/x", 200}, {"GET", "/health", 200}, {"POST", "/v1/ask", 200}, {"GET", "/v1/a%20b", 200}, {"GET", "/v1/x?y=/../z", 200},
		{"POST", "/v1/x", 403}, {"DELETE", "/v1/ask", 403}, {"GET", "/v2", 403}, {"GET", "/v1", 403}, {"GET", "/healthy", 403}, {"GET", "/", 403},
		{"GET", "/v1/../admin", 403}, {"GET", "/v1/%2e%2e/admin", 403}, {"GET", "/v1//admin", 403}, {"GET", "/v1/..%2fadmin", 403},
		{"GET", `/v1/..\admin`, 403}, {"GET", "/v1/%5c..", 403}, {"GET", "/v1/..;/admin", 403}, {"GET", "/v1/%252e%252e/admin", 403}, {"get", "/v1/x", 403},
	} {
		for _, port := range []string{"", ":8443"} { // opaque by its rule, and still opened
			r := newRequest(t, v.method, "https://"+apiHost+port+"/", nil, nil)
			r.URL.Opaque = "//" + apiHost + port + v.target
			status, body, _ := do(t, w.client(port == ""), r)
			if status != v.status || status == 403 && !strings.Contains(body, rule.RuleRequests) {
				t.Errorf("%s %s: %d %s, want %d", v.method, v.target, status, body, v.status)
			}
		}
	}
	status, body, _ := do(t, w.client(true), newRequest(t, "PUT", "https://"+apiHost+"/v1/x", nil, nil))
	if want := `"allow":"PUT ` + apiHost + `/v1/x"`; status != 403 || !strings.Contains(body, want) {
		t.Errorf("%d %s, want %s", status, body, want)
	}
}

// TestAuthorityInside: what a request inside says of its host must be the host.
func TestAuthorityInside(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		w := newTestnet(t, testnetOptions{rules: []string{apiHost, otherHost}, requests: []string{apiHost}})
		site := &seen{}
		w.host(apiHost, apiHost, 443, site, http2)
		for host, want := range map[string]int{otherHost: 403, apiHost: 200, apiHost + ":443": 200, apiHost + ":444": 403, "API.example.COM": 200, "a@" + apiHost: 403} {
			if http2 && strings.Contains(host, "@") {
				continue // no client sends it
			}
			r := newRequest(t, "GET", "https://"+apiHost+"/", nil, nil)
			r.Host = host
			if status, body, _ := do(t, w.client(http2), r); status != want && !(status == 400 && want == 403) {
				t.Errorf("HTTP/2 %v, host %q: %d %s", http2, host, status, body)
			}
		}
	}
}

// TestValueDoesNotComeBack: a server that repeats what it was sent does not reach the sandbox with it.
func TestValueDoesNotComeBack(t *testing.T) {
	secret := keySecret(apiHost)
	secret.Query = true
	w := newTestnet(t, testnetOptions{rules: []string{apiHost}, secrets: []intercept.Secret{secret}})
	w.values["key"] = "v%/+ alue with more"
	var coding, asked string
	w.host(apiHost, apiHost, 443, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		coding, asked = r.Header.Get("Accept-Encoding"), r.Header.Get("Range")+r.Header.Get("If-Range")
		rw.Header().Set("X-Echo", r.Header.Get("Authorization"))
		text := "auth=" + r.Header.Get("Authorization") + " query=" + r.URL.RawQuery + " end"
		if r.URL.Path == "/slow" { // in the middle of the value
			for _, part := range []string{text[:12], text[12:30], text[30:]} {
				io.WriteString(rw, part)
				rw.(http.Flusher).Flush()
			}
			return
		}
		rw.Header().Set("Trailer", "X-Last")
		io.WriteString(rw, text)
		rw.Header().Set("X-Last", r.Header.Get("Authorization"))
	}), false)
	for _, path := range []string{"/", "/slow"} {
		for _, auth := range []string{"Bearer " + secret.Placeholder, "Basic " + base64.StdEncoding.EncodeToString([]byte("u:"+secret.Placeholder))} {
			res, err := w.client(true).Do(newRequest(t, "GET", "https://"+apiHost+path+"?k="+secret.Placeholder, map[string]string{"Authorization": auth, "Range": "bytes=20-24", "If-Range": "*"}, nil))
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			status, body, h, trailer := res.StatusCode, string(text), res.Header, res.Trailer
			coded := base64.StdEncoding.EncodeToString([]byte("u:" + w.values["key"]))
			all := body + h.Get("X-Echo") + trailer.Get("X-Last")
			if path == "/" && !strings.Contains(trailer.Get("X-Last"), "***") {
				t.Errorf("the trailer is %q", trailer)
			}
			if status != 200 || strings.Contains(all, "alue with") || strings.Contains(all, coded) || strings.Contains(all, "alue+with") || !strings.HasSuffix(body, " end") || !strings.Contains(body, "***") {
				t.Errorf("%s: %d %q %q", path, status, body, h.Get("X-Echo"))
			}
		}
	}
	if coding != "identity" || asked != "" {
		t.Errorf("the server was asked for %q and the range %q", coding, asked)
	}
}

// TestStreamsAreNotHeldUp: an event comes when it was sent, and what a client sends
// arrives while the answer is under way.
func TestStreamsAreNotHeldUp(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		secret := keySecret(apiHost)
		w := newTestnet(t, testnetOptions{rules: []string{apiHost}, secrets: []intercept.Secret{secret}})
		w.host(apiHost, apiHost, 443, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			http.NewResponseController(rw).EnableFullDuplex()
			rw.WriteHeader(200)
			rw.(http.Flusher).Flush()
			lines := bufio.NewScanner(r.Body)
			for lines.Scan() {
				fmt.Fprintf(rw, "echo %s\n", lines.Text())
				rw.(http.Flusher).Flush()
			}
		}), http2)
		pr, pw := io.Pipe()
		res, err := w.client(http2).Do(newRequest(t, "POST", "https://"+apiHost+"/", nil, pr))
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(res.Body)
		for i := range 5 {
			fmt.Fprintf(pw, "line %d\n", i)
			if got, err := lines.ReadString('\n'); err != nil || got != fmt.Sprintf("echo line %d\n", i) {
				t.Fatalf("HTTP/2 %v: %q, %v", http2, got, err)
			}
		}
		pw.Close()
		if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
			t.Errorf("the end: %q, %v", rest, err)
		}
		res.Body.Close()
	}
}

// TestHostThatIsNotWhatItSays: a certificate that is not good is a 502 and nothing
// is sent.
func TestHostThatIsNotWhatItSays(t *testing.T) {
	secret := keySecret(apiHost)
	w := newTestnet(t, testnetOptions{rules: []string{apiHost}, secrets: []intercept.Secret{secret}})
	site := &seen{}
	w.host(apiHost, otherHost, 443, site, false)
	status, body, _ := do(t, w.client(true), newRequest(t, "GET", "https://"+apiHost+"/", map[string]string{"Authorization": secret.Placeholder}, nil))
	if status != 502 || !strings.Contains(body, "certificate") || site.count() != 0 || strings.Contains(body, secretValue) {
		t.Errorf("%d %s, %d requests", status, body, site.count())
	}
}

func TestSecretThatCannotBeRead(t *testing.T) {
	secret := keySecret(apiHost)
	w := newTestnet(t, testnetOptions{rules: []string{apiHost}, secrets: []intercept.Secret{secret}})
	site := &seen{}
	w.host(apiHost, apiHost, 443, site, false)
	c := w.client(true)
	ask := func() (int, string) {
		status, body, _ := do(t, c, newRequest(t, "GET", "https://"+apiHost+"/", map[string]string{"Authorization": secret.Placeholder}, nil))
		return status, body
	}
	w.mu.Lock()
	w.fails = errors.New("open /etc/hidden/place: gone")
	w.mu.Unlock()
	if status, body := ask(); status != 502 || strings.Contains(body, "hidden") || site.count() != 0 {
		t.Errorf("%d %s", status, body)
	}
	w.mu.Lock()
	w.fails, w.values["key"] = nil, "two\r\nlines: x"
	w.mu.Unlock()
	if status, body := ask(); status != 502 || strings.Contains(body, "lines") || site.count() != 0 {
		t.Errorf("%d %s", status, body)
	}
	w.mu.Lock()
	w.values["key"] = "another-value" // rotated
	w.mu.Unlock()
	if status, _ := ask(); status != 200 {
		t.Error(status)
	}
	if got, _ := site.get(t); got.Header.Get("Authorization") != "another-value" {
		t.Errorf("the host got %q", got.Header.Get("Authorization"))
	}
}

// TestOtherHostsAreNotOpened: their certificates are their own.
func TestOtherHostsAreNotOpened(t *testing.T) {
	secret := keySecret(apiHost)
	w := newTestnet(t, testnetOptions{rules: []string{apiHost, otherHost}, secrets: []intercept.Secret{secret}})
	w.host(otherHost, otherHost, 443, &seen{}, true)
	w.host(apiHost, apiHost, 443, &seen{}, true)
	for host, issuer := range map[string]string{otherHost: "root of the test network", apiHost: "cloche egress of test"} {
		res, err := w.client(true).Get("https://" + host + "/")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if got := res.TLS.PeerCertificates[0].Issuer.CommonName; got != issuer {
			t.Errorf("%s has a certificate of %q", host, got)
		}
	}
}

func TestClientThatDoesNotTrustUs(t *testing.T) {
	w := newTestnet(t, testnetOptions{rules: []string{apiHost}, requests: []string{apiHost}})
	w.host(apiHost, apiHost, 443, &seen{}, true)
	c := w.client(true)
	c.Transport.(*http.Transport).TLSClientConfig.RootCAs = nil
	if _, err := c.Get("https://" + apiHost + "/"); err == nil {
		t.Fatal("it was trusted")
	}
	<-w.ended
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.closed) != 1 || w.closed[0].Protocol != egress.HTTPS || !strings.Contains(w.closed[0].Reason, "open TLS with the sandbox") {
		t.Errorf("on record: %+v", w.closed)
	}
}

// TestOpenedFlowEnds: when rules change, the budget is used up or the gate closes,
// an opened flow ends at once, with all that hangs on it.
func TestOpenedFlowEnds(t *testing.T) {
	for name, end := range map[string]func(*testnet){
		"rules": func(w *testnet) { w.gate.SetRules(nil) },
		"close": func(w *testnet) { w.gate.Close() },
	} {
		w := newTestnet(t, testnetOptions{rules: []string{apiHost}, requests: []string{apiHost}})
		arrived, gone := make(chan struct{}, 8), make(chan struct{}, 8)
		w.host(apiHost, apiHost, 443, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			arrived <- struct{}{}
			<-r.Context().Done()
			gone <- struct{}{}
		}), false)
		c := w.client(true) // several at once, each with a connection to the host
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if res, err := c.Get("https://" + apiHost + "/"); err == nil {
					res.Body.Close()
					t.Errorf("%s: answered %d", name, res.StatusCode)
				}
			})
		}
		for range 3 {
			<-arrived
		}
		end(w)
		wg.Wait()
		for range 3 {
			select {
			case <-gone:
			case <-time.After(time.Minute):
				t.Fatalf("%s: the host has the request still", name)
			}
		}
		w.gate.Close()
		if n := w.gate.Flows(); n != 0 {
			t.Errorf("%s: %d flows are left", name, n)
		}
	}
}

func TestBudgetOfOpenedFlows(t *testing.T) {
	w := newTestnet(t, testnetOptions{rules: []string{apiHost}, requests: []string{apiHost}, limits: egress.Limits{BytesIn: 100_000}})
	w.host(apiHost, apiHost, 443, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Write(make([]byte, 1<<20))
	}), false)
	res, err := w.client(true).Get("https://" + apiHost + "/")
	if err == nil {
		n, err := io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if err == nil || n > 100_000 {
			t.Errorf("%d bytes came, %v", n, err)
		}
	}
	if u := w.gate.Usage(); u.BytesIn != 100_000 {
		t.Errorf("usage %+v", u)
	}
}

func TestCompressedAnswerGoesThrough(t *testing.T) {
	w := newTestnet(t, testnetOptions{rules: []string{apiHost}, requests: []string{apiHost}})
	w.host(apiHost, apiHost, 443, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "gzip" {
			t.Errorf("asked for %q", r.Header.Get("Accept-Encoding"))
		}
		rw.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(rw)
		io.WriteString(z, strings.Repeat("text ", 1000))
		z.Close()
	}), true)
	if _, body, _ := do(t, w.client(true), newRequest(t, "GET", "https://"+apiHost+"/", nil, nil)); body != strings.Repeat("text ", 1000) {
		t.Errorf("%d bytes came", len(body))
	}
}

// TestValueInHeads: a host that writes a value into the name of a field, in whatever letters,
// into an informational answer or a trailer does not tell it.
func TestValueInHeads(t *testing.T) {
	secret := keySecret(apiHost)
	w := newTestnet(t, testnetOptions{rules: []string{apiHost}, secrets: []intercept.Secret{secret}})
	w.values["key"] = "sk-LiveSecret1"
	w.host(apiHost, apiHost, 443, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, value, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		rw.Header().Set("X-"+value, "name")
		rw.Header().Set("Link", "</"+value+">")
		rw.WriteHeader(http.StatusEarlyHints)
		rw.Header().Set("Vary", "X-"+strings.ToUpper(value))
		if r.URL.Path == "/coded" { // a body that cannot be searched
			rw.Header().Set("Content-Encoding", "br")
		}
		rw.Header().Set("Trailer", "X-Sum, T-"+value)
		io.WriteString(rw, "body")
		rw.Header().Set("X-Sum", "sum of "+value)
		rw.Header().Set("T-"+value, "announced")
		rw.Header().Set(http.TrailerPrefix+"U-"+value, "not announced")
	}), false)
	for _, path := range []string{"/", "/coded"} {
		all, hints := "", 0
		req := newRequest(t, "GET", "https://"+apiHost+path, map[string]string{"Authorization": "Bearer " + secret.Placeholder}, nil)
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			hints++
			all += fmt.Sprint(h)
			return nil
		}}))
		res, err := w.client(true).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || string(body) != "body" {
			t.Errorf("%s: %q, %v", path, body, err)
		}
		all += fmt.Sprint(res.Header, res.Trailer)
		if hints != 1 || !strings.HasPrefix(res.Trailer.Get("X-Sum"), "sum of ***") {
			t.Errorf("%s: %d informational answers, the trailer is %v", path, hints, res.Trailer)
		}
		if strings.Contains(strings.ToLower(all), "livesecret") {
			t.Errorf("%s: %s", path, all)
		}
	}
}
