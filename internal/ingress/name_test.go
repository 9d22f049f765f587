package ingress_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/ingress"
)

func TestParseBase(t *testing.T) {
	for text, want := range map[string]ingress.Base{
		"http://*.localhost":             {Scheme: "http", Domain: "localhost"},
		"https://*.Box.example.org:8443": {Scheme: "https", Domain: "box.example.org", Port: 8443},
		"https://*.box.example.org/":     {Scheme: "https", Domain: "box.example.org"},
	} {
		if got, err := ingress.ParseBase(text); err != nil || got != want {
			t.Errorf("%s: %+v %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "box.example.org", "https://box.example.org", "ftp://*.x", "https://*.x/path", "https://*.x?q", "https://u@*.x", "https://*.1.2.3.4",
		"https://*.x:0", "https://*.x:99999", "https://*.-x", "https://*.x..y", "https://*." + strings.Repeat("a.", 150) + "a", "https://*.ä.de",
	} {
		if got, err := ingress.ParseBase(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
	if got := (ingress.Base{Scheme: "https", Domain: "x.org", Port: 443}).Origin(sandbox, 80); got != "https://80-0123456789abcdef.x.org" {
		t.Error(got)
	}
}

// FuzzHost tries hosts: none but the name of the open port is served.
func FuzzHost(f *testing.F) {
	for _, s := range []string{"8000-0123456789abcdef.localhost", "8000-0123456789abcdef.localhost:1", "x", "[::1]:80", "08000-0123456789abcdef.localhost"} {
		f.Add(s, "a=b; cloche_port=x", "cloche_token=x&y")
	}
	c := &ports{open: map[string]*openPort{}}
	s := ingress.New(ingress.Options{Core: c, Base: ingress.Base{Scheme: "http", Domain: "localhost"}})
	f.Fuzz(func(t *testing.T, host, cookie, query string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host, r.URL.RawQuery = host, query
		r.Header.Set("Cookie", cookie)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != http.StatusNotFound || bytes.Contains(w.Body.Bytes(), []byte("localhost")) {
			t.Errorf("%q: HTTP %d %s", host, w.Code, w.Body)
		}
		got := c.last()
		if got.Sandbox == "" != (got.Port == 0) || got.Sandbox != "" && !strings.HasPrefix(strings.ToLower(host), strconv.Itoa(got.Port)+"-"+got.Sandbox[3:]+".localhost") {
			t.Errorf("%q is %+v", host, got)
		}
	})
}
