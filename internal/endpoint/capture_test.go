package endpoint_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/endpoint"
)

// TestCapture: what an endpoint puts on record of its requests holds no credential, is
// bounded, and is missing without a request for it.
func TestCapture(t *testing.T) {
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Set-Cookie", "cookie-value")
		w.Header().Set("X-Session", "session-value")
		w.Header().Set("X-Plain", "plain-value")
		switch r.URL.Path {
		case "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			io.WriteString(z, "hidden")
			z.Close()
		case "/binary":
			w.Write([]byte("\xff\x00\xfe"))
		default:
			io.WriteString(w, "you said "+string(body)+" with "+r.Header.Get("Authorization"))
		}
	})
	spec := func(a *api.EndpointAudit) api.Endpoint {
		return api.Endpoint{Target: srv.URL, Audit: a, HTTP: &api.EndpointHTTP{SecretHeaders: map[string]string{"Authorization": "key", "X-Other": "key"}}}
	}
	redact := func(o *endpoint.Options) {
		o.Redact = func(s string) string { return strings.ReplaceAll(s, "known-secret", "[redacted]") }
	}
	exchange := func(a *api.EndpointAudit, path, body string) *api.ExchangeCapture {
		t.Helper()
		in := open(t, spec(a), redact)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, in.base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Session", "session-value")
		req.Header.Set("Accept-Encoding", "gzip")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Fatal(err)
		}
		in.settled(t, 1)
		return in.last(t).Capture
	}
	if c := exchange(nil, "/", "x"); c != nil {
		t.Errorf("nobody asked for it: %+v", c)
	}
	heads := exchange(&api.EndpointAudit{Capture: api.CaptureHeaders, RedactHeaders: []string{"x-session"}}, "/", "x")
	if heads == nil || heads.RequestBody+heads.ResponseBody != "" || !strings.Contains(heads.ResponseHeader, "X-Plain: plain-value") ||
		!strings.Contains(heads.RequestHeader, "Authorization: [redacted]") || !strings.Contains(heads.RequestHeader, "X-Sandbox-Id: sb-1") {
		t.Errorf("%+v", heads)
	}
	whole := &api.EndpointAudit{Capture: api.CaptureBody, MaxBytes: 64, RedactHeaders: []string{"X-Session"}}
	said := exchange(whole, "/", "a known-secret, and the end")
	if said.RequestBody != "a [redacted], and the end" || said.ResponseBody != "you said a [redacted], and the end with [redacted]" || said.Cut {
		t.Errorf("%+v", said)
	}
	// What begins before the cut and ends behind it is taken out whole.
	cut := exchange(whole, "/", strings.Repeat("x", 58)+"known-secret"+strings.Repeat("y", 1<<20))
	if cut.RequestBody != strings.Repeat("x", 58)+"[redac" || len(cut.ResponseBody) != 64 || !cut.Cut {
		t.Errorf("%+v", cut)
	}
	rune4 := exchange(whole, "/", strings.Repeat("x", 62)+"\U0001F600")
	if rune4.RequestBody != strings.Repeat("x", 62) || !rune4.Cut {
		t.Errorf("%+v", rune4)
	}
	for path, want := range map[string]string{"/gzip": "response encoded", "/binary": "response binary"} {
		if c := exchange(whole, path, "x"); c.ResponseBody != "" || !slices.Equal(c.Omitted, []string{want}) || c.RequestBody != "x" {
			t.Errorf("%s: %+v", path, c)
		}
	}
	for _, c := range []*api.ExchangeCapture{heads, said, cut} {
		all := c.RequestHeader + c.ResponseHeader + c.RequestBody + c.ResponseBody
		for _, secret := range []string{"s3cret-value", "cookie-value", "session-value", "known-se", "secret,"} {
			if strings.Contains(all, secret) {
				t.Errorf("it tells %s: %s", secret, all)
			}
		}
	}
	// Many that take more room in the log than here leave room for the rest of the record.
	if c := exchange(&api.EndpointAudit{Capture: api.CaptureBody, MaxBytes: 8 << 10}, "/", strings.Repeat("\x01", 8<<10)); len(c.RequestBody) > 2<<10 || !c.Cut {
		t.Errorf("%d bytes, %v", len(c.RequestBody), c.Cut)
	}
}
