package bridge_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche"
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
	in := open(t, cloche.Endpoint{Target: srv.URL, HTTP: &cloche.EndpointHTTP{SecretHeaders: map[string]string{"X-Key": "key"}}}, nil)
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
