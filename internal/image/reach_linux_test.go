package image

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/cloche-dev/cloche/api"
)

// TestWhatARegistryErrorSays: each error of a registry has its code, whether to try again
// and a hint; none is about the login to Cloche.
func TestWhatARegistryErrorSays(t *testing.T) {
	ref, err := api.ParseImageRef("registry.example/app:1")
	must(t, err)
	dial := func(op string, err error) error { return &net.OpError{Op: op, Net: "tcp", Err: err} }
	for what, c := range map[string]struct {
		err       error
		code      api.Code
		retryable bool
		says      string
		hint      string
	}{
		"login":              {fmt.Errorf("x: %w", errCredentials), api.CodeUnavailable, false, "the login for host:5 cannot be read", "Docker configuration"},
		"plain":              {fmt.Errorf("x: %w", errPlain), api.CodeUnavailable, false, "speaks plain HTTP", "insecure registries"},
		"link-local":         {fmt.Errorf("x: %w", errLinkLocal), api.CodeUnavailable, false, "link-local", "check the name"},
		"loopback":           {fmt.Errorf("x: %w", errLoopback), api.CodeUnavailable, false, "loopback", "another registry"},
		"certificate":        {&tls.CertificateVerificationError{Err: errors.New("x")}, api.CodeUnavailable, false, "the certificate of host:5 is not trusted", "add its authority"},
		"refused":            {dial("dial", syscall.ECONNREFUSED), api.CodeUnavailable, true, "cannot be reached: the connection was refused", "cloche image ls"},
		"no name":            {dial("dial", &net.DNSError{IsNotFound: true}), api.CodeUnavailable, true, "its name has no address here", "cloche image ls"},
		"no name server":     {dial("dial", &net.DNSError{}), api.CodeUnavailable, true, "no name server told its address", "cloche image ls"},
		"slow name server":   {dial("dial", &net.DNSError{IsTimeout: true}), api.CodeTimeout, true, "did not answer within 5s", "cloche image ls"},
		"proxy":              {dial("proxyconnect", syscall.ECONNREFUSED), api.CodeUnavailable, true, "the proxy that this machine is set to use", "cloche image ls"},
		"no route":           {dial("dial", syscall.EHOSTUNREACH), api.CodeUnavailable, true, "there is no connection to it", "cloche image ls"},
		"slow":               {dial("dial", os.ErrDeadlineExceeded), api.CodeTimeout, true, "did not answer within 5s: there is no connection", "cloche image ls"},
		"broken connection":  {dial("read", syscall.ECONNRESET), api.CodeUnavailable, true, "cannot be reached for a layer", "try again later"},
		"silent":             {errSilent, api.CodeTimeout, true, "did not answer within 9s when asked for a layer", "try again later"},
		"slow to answer":     {dial("read", os.ErrDeadlineExceeded), api.CodeTimeout, true, "within 9s", "try again later"},
		"broken off":         {io.ErrUnexpectedEOF, api.CodeUnavailable, true, "broke off while sending a layer", "try again later"},
		"ended":              {io.EOF, api.CodeUnavailable, true, "broke off", "try again later"},
		"full disk":          {syscall.ENOSPC, api.CodeNoCapacity, true, "no space is left", "prune"},
		"anything":           {errors.New("x"), api.CodeUnavailable, true, "cannot be reached for a layer", "image_aliases"},
		"said already":       {api.Errorf(api.CodeTooLarge, "said").WithHint("h"), api.CodeTooLarge, false, "said", "h"},
		"not found":          {&statusError{code: 404}, api.CodeNotFound, false, "no such image or tag", "check the name and the tag"},
		"401":                {&statusError{code: 401}, api.CodeNotFound, false, "without a login", "docker login host:5"},
		"403 by the library": {&transport.Error{StatusCode: 403}, api.CodeNotFound, false, "without a login", "docker login host:5"},
		"429":                {&statusError{code: 429}, api.CodeNoCapacity, true, "no more requests", "use a mirror"},
		"499":                {&statusError{code: 499}, api.CodeUnavailable, false, "answered 499", "check that it is a registry"},
		"500":                {&statusError{code: 500}, api.CodeUnavailable, true, "answered 500 when asked for a layer", "try again later"},
	} {
		t.Run(what, func(t *testing.T) {
			r := &remote{ref: ref, timeout: 9 * time.Second, guard: &guard{retryAfter: 7 * time.Second}}
			e := wantError(t, r.classify(t.Context(), &endpoint{host: "host:5"}, "a layer", c.err), c.code, c.retryable, c.says)
			if !strings.Contains(e.Hint, c.hint) {
				t.Errorf("the hint is %q, want %q", e.Hint, c.hint)
			}
			if after := what == "429" || what == "500"; after != (e.RetryAfterMS == 7000) {
				t.Errorf("retry after %d ms", e.RetryAfterMS)
			}
			if what != "said already" && !errors.Is(e, c.err) && what != "certificate" {
				t.Errorf("the cause of %v is lost", e)
			}
			if status := statusOf(c.err) != 0; (status || c.retryable && what != "full disk") && e.Field != "image" {
				t.Errorf("the field is %q", e.Field)
			}
		})
	}
	r := &remote{ref: ref, timeout: 2 * time.Second, guard: &guard{}}
	wantError(t, r.classify(t.Context(), &endpoint{host: "host:5"}, "a layer", dial("dial", os.ErrDeadlineExceeded)), api.CodeTimeout, true, "within 2s")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantError(t, r.classify(ctx, &endpoint{}, "a layer", errors.New("x")), api.CodeCanceled, false, "canceled")
	ctx, cancel = context.WithTimeout(t.Context(), -1)
	defer cancel()
	if e := wantError(t, r.classify(ctx, &endpoint{}, "a layer", &statusError{code: 404}), api.CodeTimeout, true); e.Hint == "" {
		t.Error("no hint")
	}
	if got := (&statusError{code: 418}).Error(); got != "the registry answered 418" {
		t.Errorf("it says %q", got)
	}
}

// TestRetryAfter: a registry says in seconds or with a date when to come back, at most in
// a day.
func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "-1": 0, "soon": 0, "17": 17 * time.Second, "86400": 24 * time.Hour, "86401": 24 * time.Hour,
		at(0): 0, at(-time.Minute): 0, at(time.Minute): time.Minute, at(48 * time.Hour): 24 * time.Hour,
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}

// TestAddressesOfRegistries: which addresses are the loopback device's, and which are
// never dialled.
func TestAddressesOfRegistries(t *testing.T) {
	for host, is := range map[string]bool{"localhost": true, "127.0.0.1": true, "127.9.9.9": true, "::1": true, "::ffff:127.0.0.1": true, "10.0.0.1": false, "example": false, "": false} {
		if loopback(host) != is {
			t.Errorf("%q is on the loopback device: %v", host, !is)
		}
	}
	for host, want := range map[string]string{"host:5000": "host", "host": "host", "[::1]:80": "::1"} {
		if got := hostname(host); got != want {
			t.Errorf("%q is %q", host, got)
		}
	}
	for address, refused := range map[string]bool{"169.254.169.254:80": true, "[fe80::1]:80": true, "[::ffff:169.254.169.254]:80": true, "10.0.0.1:80": false, "[2001:db8::1]:80": false, "x": false} {
		if err := refuseLinkLocal("tcp", address, nil); errors.Is(err, errLinkLocal) != refused || err != nil && !refused {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestEndpointsOfARegistry: mirrors come first, with their prefix, and the registry last;
// what answered is asked first.
func TestEndpointsOfARegistry(t *testing.T) {
	ref, err := api.ParseImageRef("registry.example/team/app:1")
	must(t, err)
	names := func(r *remote) (all string) {
		for _, e := range r.endpoints {
			all += fmt.Sprintf("%s/%s insecure %v, ", e.host, e.repo, e.insecure)
		}
		return all
	}
	r := newRemote(ref, RegistryConfig{
		Mirrors:  map[string][]string{"registry.example": {"one:5", "two/prefix/"}, "other": {"three"}},
		Insecure: []string{"two", "registry.example"},
	})
	if got, want := names(r), "one:5/team/app insecure false, two/prefix/team/app insecure true, registry.example/team/app insecure true, "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if r.guard.local || r.timeout != defaultRegistryTimeout || r.guard.strict.ResponseHeaderTimeout != defaultRegistryTimeout {
		t.Errorf("local %v, timeout %s", r.guard.local, r.timeout)
	}
	r.prefer(r.endpoints[1])
	if got, want := names(r), "two/prefix/team/app insecure true, one:5/team/app insecure false, registry.example/team/app insecure true, "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	r = newRemote(ref, RegistryConfig{Mirrors: map[string][]string{"registry.example": {"localhost:5"}}, Timeout: time.Second})
	if !r.guard.local || r.timeout != time.Second {
		t.Errorf("with a mirror here: local %v, timeout %s", r.guard.local, r.timeout)
	}
}

// TestRegistryThatIsBusy: a registry that answers 503 says when to come back.
func TestRegistryThatIsBusy(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Retry-After", q.URL.Query().Get("after"))
		w.WriteHeader(map[string]int{"/busy": 503, "/many": 429, "/good": 200}[q.URL.Path])
	}))
	defer srv.Close()
	g := newGuard(RegistryConfig{})
	g.local = true
	defer g.strict.CloseIdleConnections()
	for _, c := range []struct {
		path string
		want time.Duration
	}{{"/busy?after=3", 3 * time.Second}, {"/many?after=4", 4 * time.Second}, {"/good?after=5", 4 * time.Second}, {"/busy", 0}} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+c.path, nil)
		must(t, err)
		resp, err := g.RoundTrip(req)
		must(t, err)
		_ = resp.Body.Close()
		if got := g.wait(); got != c.want {
			t.Errorf("after %s it waits %s, want %s", c.path, got, c.want)
		}
	}
}

// TestLoginHelperThatHangs: a program that keeps the logins is waited for as long as its
// caller waits.
func TestLoginHelperThatHangs(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "docker-credential-hangs", "#!/bin/sh\nexec sleep 0.4\n", 0o755)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("DOCKER_CONFIG", dir)
	repo, err := name.NewRepository("registry.example/app")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte("{"), 0o600))
	if _, err := credentials(t.Context(), repo); !errors.Is(err, errCredentials) {
		t.Errorf("a configuration that is torn: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"credHelpers":{"registry.example":"hangs"}}`), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err = credentials(ctx, repo)
	if !errors.Is(err, errCredentials) || !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) >= 400*time.Millisecond {
		t.Errorf("after %s: %v", time.Since(begin), err)
	}
}
