package endpoint_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestSecretInHeads: a target that writes what the host added into the name of a field, an
// informational answer or a trailer tells the sandbox nothing.
func TestSecretInHeads(t *testing.T) {
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		secret := r.Header.Get("X-Key")
		w.Header().Set("X-"+secret, "name")
		w.Header().Set("Link", "</"+secret+">")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Vary", "X-"+strings.ToUpper(secret))
		w.Header().Set("Trailer", "X-Sum, T-"+secret)
		fmt.Fprint(w, "body")
		w.Header().Set("X-Sum", "sum of "+secret)
		w.Header().Set("T-"+secret, "announced")
		w.Header().Set(http.TrailerPrefix+"U-"+secret, "not announced")
	})
	in := open(t, api.Endpoint{Target: srv.URL, HTTP: &api.EndpointHTTP{SecretHeaders: map[string]string{"X-Key": "key"}}}, nil)
	answer := in.say(t, "GET / HTTP/1.1\r\nHost: "+in.addr+"\r\nTE: trailers\r\nConnection: close\r\n\r\n")
	if !strings.Contains(answer, " 103 ") || !strings.Contains(answer, "sum of [redacted]") || !strings.Contains(answer, "body") {
		t.Errorf("%q", answer)
	}
	for _, secret := range []string{"s3cret"} {
		if strings.Contains(strings.ToLower(answer), secret) {
			t.Errorf("%q is in %q", secret, answer)
		}
	}
}

// TestNamesThatAreTakenForOthers: a name with other characters than letters, digits and "-"
// does not reach a target, which could take it for one that the host sets.
func TestNamesThatAreTakenForOthers(t *testing.T) {
	names := make(chan []string, 1)
	srv := target(t, func(_ http.ResponseWriter, r *http.Request) {
		// As WSGI, CGI and PHP name them.
		var all []string
		for name, values := range r.Header {
			name = strings.NewReplacer("-", "_", ".", "_").Replace(strings.ToUpper(name))
			all = append(all, name+"="+strings.Join(values, ","))
		}
		slices.Sort(all)
		names <- all
	})
	in := open(t, api.Endpoint{Target: srv.URL, HTTP: &api.EndpointHTTP{
		SecretHeaders: map[string]string{"X-Api-Key": "key"}, SetHeaders: map[string]string{"X-Role": "guest"}, PassHeaders: []string{"X_Passed"},
	}}, nil)
	answer := in.say(t, "GET / HTTP/1.1\r\nHost: "+in.addr+"\r\nX_Sandbox_Id: other\r\nX-Sandbox_Id: other\r\nX_Api_Key: mine\r\nx_api-key: mine\r\nX.Api.Key: mine\r\n"+
		"X_Role: admin\r\nX_Passed: 1\r\nCookie_: 1\r\nX~Y: 1\r\nX-Mine: 1\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 200 ") {
		t.Fatalf("%q", answer)
	}
	want := []string{"X_API_KEY=s3cret-value", "X_ENDPOINT=model", "X_MINE=1", "X_ROLE=guest", "X_SANDBOX_ID=sb-1"}
	if got := <-names; !slices.Equal(got, want) {
		t.Errorf("the target got %q, want %q", got, want)
	}
}

// TestTrailersSayNothingOfWhoAsks: the trailer of a request has what its header may have,
// announced or not.
func TestTrailersSayNothingOfWhoAsks(t *testing.T) {
	names := make(chan []string, 1)
	srv := target(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		var all []string
		for name, values := range r.Trailer {
			all = append(all, name+"="+strings.Join(values, ","))
		}
		slices.Sort(all)
		names <- all
	})
	in := open(t, api.Endpoint{Target: srv.URL, HTTP: &api.EndpointHTTP{
		SecretHeaders: map[string]string{"X-Key": "key"}, SetHeaders: map[string]string{"X-Role": "guest"}, PassHeaders: []string{"Authorization"},
	}}, nil)
	var trailer strings.Builder
	for _, name := range []string{"X-Sandbox-Id", "X_Sandbox_Id", "X-Endpoint", "X-Key", "X-Role", "Authorization", "Cookie", "X-Forwarded-For", "Proxy-Authorization", "Connection", "Host", "Content-Type", "X-Sum"} {
		fmt.Fprintf(&trailer, "%s: forged\r\n", name)
	}
	for _, c := range []struct {
		announced string
		want      []string
	}{
		{"X-Sum, X-Sandbox-Id, X_Sandbox_Id, X-Key, Authorization, Host", []string{"X-Sum=forged"}},
		{"X-Sum", []string{"X-Sum=forged"}},
		{"X-Sandbox-Id", []string{"X-Sum=forged"}},
	} {
		answer := in.say(t, "POST / HTTP/1.1\r\nHost: "+in.addr+"\r\nTE: trailers\r\nTrailer: "+c.announced+"\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"+
			"5\r\nhello\r\n0\r\n"+trailer.String()+"\r\n")
		if !strings.HasPrefix(answer, "HTTP/1.1 200 ") {
			t.Fatalf("%q", answer)
		}
		if got := <-names; !slices.Equal(got, c.want) {
			t.Errorf("announced %s: the target got %q, want %q", c.announced, got, c.want)
		}
	}
}
