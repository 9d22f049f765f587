package egress_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/cloche-dev/cloche/internal/egress/intercept"
)

// BenchmarkHTTPS compares a host whose TLS is opened with one that is let through,
// in the same run: a small request on a connection that is there, and a large
// answer. The opened one searches the answer for the value of its secret.
func BenchmarkHTTPS(b *testing.B) {
	secret := keySecret(apiHost)
	w := newTestnet(b, testnetOptions{rules: []string{apiHost, otherHost}, secrets: []intercept.Secret{secret}})
	const large = 8 << 20
	answer := make([]byte, large)
	h := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			rw.Write(answer)
		}
	})
	w.host(apiHost, apiHost, 443, h, true)
	w.host(otherHost, otherHost, 443, h, true)
	for _, v := range []struct{ name, host string }{{"opened", apiHost}, {"through", otherHost}} {
		for _, path := range []string{"/small", "/large"} {
			for name, http2 := range map[string]bool{"h1": false, "h2": true} {
				b.Run(v.name+path+"/"+name, func(b *testing.B) {
					c := w.client(http2)
					get := func() {
						req := newRequest(b, "GET", "https://"+v.host+path, map[string]string{"Authorization": "Bearer " + secret.Placeholder}, nil)
						res, err := c.Do(req)
						if err != nil {
							b.Fatal(err)
						}
						defer res.Body.Close()
						if n, err := io.Copy(io.Discard, res.Body); err != nil || path == "/large" && n != large {
							b.Fatal(n, err)
						}
					}
					get()
					if path == "/large" {
						b.SetBytes(large)
					}
					for b.Loop() {
						get()
					}
				})
			}
		}
	}
}
