package egress_test

import (
	"crypto/tls"
	"net/http"
	"sync/atomic"
	"testing"
)

// sessionCache counts the sessions that a client is offered to resume later.
type sessionCache struct {
	tls.ClientSessionCache
	offered atomic.Int64
}

// Put implements tls.ClientSessionCache.
func (c *sessionCache) Put(key string, s *tls.ClientSessionState) {
	if s != nil {
		c.offered.Add(1)
	}
	c.ClientSessionCache.Put(key, s)
}

// TestOpenedTLSIsNotResumed: a client is given nothing by which a session with one host
// could be resumed on another connection. A host whose TLS is not opened decides itself.
func TestOpenedTLSIsNotResumed(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		w := newTestnet(t, testnetOptions{rules: []string{apiHost, otherHost}, requests: []string{apiHost}})
		w.host(apiHost, apiHost, 443, &seen{}, false)
		w.host(otherHost, otherHost, 443, &seen{}, false)
		for host, opened := range map[string]bool{apiHost: true, otherHost: false} {
			cache := &sessionCache{ClientSessionCache: tls.NewLRUClientSessionCache(8)}
			c := w.client(false)
			tr := c.Transport.(*http.Transport)
			tr.DisableKeepAlives = true
			tr.TLSClientConfig.MaxVersion, tr.TLSClientConfig.ClientSessionCache = version, cache
			for i := range 2 {
				res, err := c.Do(newRequest(t, "GET", "https://"+host+"/", nil, nil))
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
				if want := !opened && i > 0; res.TLS.DidResume != want {
					t.Errorf("%s, connection %d to %s: resumed %v, want %v", tls.VersionName(version), i, host, res.TLS.DidResume, want)
				}
			}
			if n := cache.offered.Load(); (n > 0) == opened {
				t.Errorf("%s: %s offered %d sessions", tls.VersionName(version), host, n)
			}
		}
	}
}
