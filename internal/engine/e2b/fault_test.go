//go:build linux

package e2b_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/e2b"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
)

// proxy is before the real service and can fail in its place.
type proxy struct {
	*httptest.Server
	mu sync.Mutex
	// fault answers a request, or lets it pass.
	fault func(w http.ResponseWriter, r *http.Request) (answered bool)
	// change changes an answer.
	change func(r *http.Response) error
	// cut ends the requests that are under way.
	cut      context.CancelFunc
	underWay context.Context
}

func newProxy(t *testing.T, s service) *proxy {
	t.Helper()
	to, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{}
	p.underWay, p.cut = context.WithCancel(context.Background())
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1,
		ModifyResponse: func(r *http.Response) error {
			p.mu.Lock()
			change := p.change
			p.mu.Unlock()
			if change == nil {
				return nil
			}
			return change(r)
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		fault, underWay := p.fault, p.underWay
		p.mu.Unlock()
		if fault != nil && fault(w, r) {
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(underWay, cancel)()
		forward.ServeHTTP(w, r.WithContext(ctx))
	}))
	t.Cleanup(p.Close)
	t.Setenv(urlEnv, p.URL)
	return p
}

func (p *proxy) set(fault func(http.ResponseWriter, *http.Request) bool, change func(*http.Response) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.change = fault, change
}

// breakOff breaks every request that is under way.
func (p *proxy) breakOff() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
	p.underWay, p.cut = context.WithCancel(context.Background())
}

// times has the first n requests that match fail with a status.
func times(n int, status int, match func(*http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 || !match(r) {
			return false
		}
		n--
		w.Header().Set("Retry-After", "0")
		http.Error(w, `{"code":1,"message":"it is \u001b[31m too much"}`, status)
		return true
	}
}

func posts(path string) func(*http.Request) bool {
	return func(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Path == path }
}

// TestServiceFails runs the engine against a service that fails in ways of its own.
func TestServiceFails(t *testing.T) {
	s := start(t)
	buildInner(t)
	p := newProxy(t, s)
	im := enginetest.BuildImages(t, t.TempDir())
	e := newEngine(t)
	create := func(t *testing.T, e *e2b.Engine) (engine.Instance, error) {
		t.Helper()
		plan := enginetest.Plan(t, im)
		plan.Limits = engine.Limits{}
		i, err := e.Create(t.Context(), plan)
		t.Cleanup(func() {
			p.set(nil, nil)
			if i != nil {
				if err := i.Close(context.WithoutCancel(t.Context())); err != nil {
					t.Errorf("close: %v", err)
				}
			}
			if left := s.left(t, plan); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
		return i, err
	}
	alive := func(t *testing.T, i engine.Instance) {
		t.Helper()
		if err := enginetest.Echo(t.Context(), i, "are you there"); err != nil {
			t.Fatal(err)
		}
	}

	t.Run("limits its requests", func(t *testing.T) {
		p.set(times(2, http.StatusTooManyRequests, posts("/sandboxes")), nil)
		i, err := create(t, e)
		if err != nil {
			t.Fatal(err)
		}
		alive(t, i)
	})
	for _, test := range []struct {
		name   string
		fault  func(http.ResponseWriter, *http.Request) bool
		change func(*http.Response) error
		code   api.Code
		says   string
	}{
		{"has no capacity", times(9, http.StatusServiceUnavailable, posts("/sandboxes")), nil, api.CodeNoCapacity, "it is [31m too much"},
		{"limits for ever", times(99, http.StatusTooManyRequests, posts("/sandboxes")), nil, api.CodeNoCapacity, "limits its requests"},
		{"refuses the key", times(9, http.StatusUnauthorized, posts("/sandboxes")), nil, api.CodeUnavailable, "refuses the key"},
		{"fails", times(9, http.StatusInternalServerError, posts("/sandboxes")), nil, api.CodeUnavailable, "the service failed"},
		{"has no template", times(9, http.StatusNotFound, posts("/sandboxes")), nil, api.CodeNotFound, "no such template"},
		{"refuses the upload", times(9, http.StatusInsufficientStorage, posts("/files")), nil, api.CodeNoCapacity, "no capacity"},
		{"starts nothing", times(99, http.StatusNotFound, posts("/process.Process/Start")), nil, api.CodeUnavailable, "envd failed"},
		{"has no root", times(99, http.StatusUnauthorized, posts("/process.Process/Start")), nil, api.CodeUnavailable, "envd refuses it"},
		{"returns half a body", nil, func(r *http.Response) error {
			if r.Request.Method == http.MethodPost && r.Request.URL.Path == "/sandboxes" {
				b, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(b[:len(b)/2]), broken{}))
			}
			return nil
		}, api.CodeUnavailable, "cannot be reached"},
		{"returns nonsense", nil, func(r *http.Response) error {
			if r.Request.Method == http.MethodPost && r.Request.URL.Path == "/sandboxes" {
				_, _ = io.Copy(io.Discard, r.Body)
				r.Header.Del("Content-Length")
				r.Body = io.NopCloser(strings.NewReader(`{"sandboxID":"../other"}`))
			}
			return nil
		}, api.CodeUnavailable, ""},
		{"does not turn the network off", nil, func(r *http.Response) error {
			if r.Request.Method == http.MethodGet && strings.HasPrefix(r.Request.URL.Path, "/sandboxes/") {
				b, _ := io.ReadAll(r.Body)
				b = bytes.ReplaceAll(b, []byte(`"allowInternetAccess":false`), []byte(`"allowInternetAccess":null `))
				r.Body = io.NopCloser(bytes.NewReader(b))
			}
			return nil
		}, api.CodeUnsupported, "no network"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p.set(test.fault, test.change)
			_, err := create(t, e)
			if api.CodeOf(err) != test.code || !strings.Contains(err.Error(), test.says) || strings.ContainsRune(err.Error(), 0x1b) {
				t.Errorf("create: %v (%v), want %s", err, api.CodeOf(err), test.code)
			}
		})
	}
	t.Run("has no streams of input", func(t *testing.T) {
		p.set(times(-1, http.StatusNotFound, posts("/process.Process/StreamInput")), nil)
		i, err := create(t, e)
		if err != nil {
			t.Fatal(err)
		}
		alive(t, i)
		alive(t, i)
	})
	t.Run("breaks every connection", func(t *testing.T) {
		i, err := create(t, e)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			alive(t, i)
			p.breakOff()
			until := time.Now().Add(20 * time.Second)
			for enginetest.Echo(t.Context(), i, "again") != nil && time.Now().Before(until) {
				time.Sleep(50 * time.Millisecond) //nolint:forbidigo // no event says that the connections are gone
			}
		}
		alive(t, i)
		select {
		case <-i.Done():
			t.Error("a broken connection counts as the end of the sandbox")
		default:
		}
	})
	t.Run("is down for a while", func(t *testing.T) {
		i, err := create(t, e)
		if err != nil {
			t.Fatal(err)
		}
		alive(t, i)
		p.set(times(-1, http.StatusBadGateway, func(*http.Request) bool { return true }), nil)
		p.breakOff()
		var derr error
		for n := 0; n < 100 && derr == nil; n++ {
			conn, err := i.Dial(t.Context())
			if derr = err; err == nil {
				conn.Close()
			}
		}
		if api.CodeOf(derr) != api.CodeUnavailable {
			t.Errorf("dial: %v", derr)
		}
		if _, err := newEngine(t).Recover(t.Context(), i.State()); api.CodeOf(err) != api.CodeUnavailable {
			t.Errorf("recover: %v", err)
		}
		p.set(nil, nil)
		alive(t, i)
	})
}

// broken is a body that breaks off.
type broken struct{}

// Read implements io.Reader.
func (broken) Read([]byte) (int, error) { return 0, errors.New("broken off") }

// TestOptions: a key is sent to a service over TLS or on this machine only, and never to the place of a
// redirect.
func TestOptions(t *testing.T) {
	for _, test := range []struct{ key, url, what string }{
		{"", "http://127.0.0.1:1", "no key"},
		{"a key", "http://127.0.0.1:1", "no header can have"},
		{"k", "http://192.0.2.1", "no TLS"},
		{"k", "http://api.example.com", "no TLS"},
		{"k", "ftp://api.example.com", "no URL"},
		{"k", "https://user@api.example.com", "no URL"},
		{"k", "https://api.example.com/?x=1", "no URL"},
		{"k", "bad domain/", "no URL"},
	} {
		e, err := e2b.New(e2b.Options{APIKey: test.key, APIURL: test.url, Inner: func() ([]byte, error) { return nil, nil }})
		if err != nil {
			t.Fatal(err)
		}
		r := e.Probe(t.Context())
		if r.Usable || len(r.Problems) != 1 || !strings.Contains(r.Problems[0].What, test.what) || r.Problems[0].Mend == "" {
			t.Errorf("%q at %q: %+v", test.key, test.url, r.Problems)
		}
		e.Close()
	}
	asked := make(chan http.Header, 10)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header }))
	defer other.Close()
	first := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer first.Close()
	e, err := e2b.New(e2b.Options{APIKey: key, APIURL: first.URL, Inner: func() ([]byte, error) { return nil, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if r := e.Probe(t.Context()); r.Usable || strings.Contains(r.Problems[0].What, key) {
		t.Errorf("a service that redirects: %+v", r.Problems)
	}
	select {
	case h := <-asked:
		t.Errorf("the redirect was followed with %v", h)
	default:
	}
}
