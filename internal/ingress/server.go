package ingress

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

const (
	// headerTimeout bounds how long the header of a request may take, and idleTimeout how long a
	// connection may wait for the next request. Bodies and answers take any time.
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	// maxHeader bounds the header of a request, in bytes.
	maxHeader = 64 << 10
	// maxConns bounds the connections of clients at each listener.
	maxConns = 4096
)

// Core is the part of package core that a Server needs.
type Core interface {
	// UsePort decides whether a request can use an open port, and records a refusal.
	UsePort(ctx context.Context, r core.PortRequest) (*core.PortUse, error)
}

// Options configures a Server. All fields but Certificate are required.
type Options struct {
	Core Core
	Base Base
	// Certificate returns the certificate of a TLS connection. Nil serves without TLS.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
}

// Server serves open ports of sandboxes. It is safe for concurrent use.
type Server struct {
	core  Core
	base  Base
	proxy *Proxy
	http  *http.Server
	// tls is whether clients use TLS here: http gets a configuration of its own without that too.
	tls bool

	// live ends when the Server does. Requests are counted, because those that became WebSockets
	// outlive their request in the eyes of net/http.
	live    context.Context //nolint:containedctx // it is the life of the server
	end     context.CancelFunc
	mu      sync.Mutex
	done    bool
	serving sync.WaitGroup
}

// New returns a Server, which listens to nothing before Serve.
func New(o Options) *Server {
	s := &Server{core: o.Core, base: o.Base, proxy: NewProxy()}
	s.live, s.end = context.WithCancel(context.Background()) //nolint:forbidigo // Shutdown ends it
	s.http = &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     log.New(io.Discard, "", 0), // what it says is of clients
	}
	if s.tls = o.Certificate != nil; s.tls {
		s.http.TLSConfig = &tls.Config{GetCertificate: o.Certificate, MinVersion: tls.VersionTLS12}
	}
	return s
}

// Serve serves a listener until Shutdown.
func (s *Server) Serve(ln net.Listener) error {
	ln = netutil.LimitListener(ln, maxConns)
	var err error
	if s.tls {
		err = s.http.ServeTLS(ln, "", "")
	} else {
		err = s.http.Serve(ln)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve ports of sandboxes: %w", err)
}

// Shutdown ends all exchanges and listeners. It returns when no request is served.
func (s *Server) Shutdown() {
	s.mu.Lock()
	s.done = true
	s.mu.Unlock()
	s.end()
	_ = s.http.Close() // nothing of these connections is kept
	s.serving.Wait()
	s.proxy.Close()
}

// begin counts a request, unless the server ends.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return false
	}
	s.serving.Add(1)
	return true
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.begin() {
		panic(http.ErrAbortHandler)
	}
	defer s.serving.Done()
	asked := core.PortRequest{Local: localOf(r), Remote: remoteOf(r)}
	var ok bool
	if asked.Sandbox, asked.Port, ok = s.base.parse(r.Host); !ok {
		asked.Sandbox, asked.Port = "", 0
	}
	token, exchange := parameter(r)
	if exchange = exchange && safe(r.Method); exchange {
		asked.Exchange, asked.Tokens = true, []string{token}
	} else {
		asked.Tokens = s.base.tokens(r, asked.Sandbox)
	}
	use, err := s.core.UsePort(core.WithRequestID(r.Context(), api.NewID("rq-")), asked)
	switch {
	case err != nil && api.CodeOf(err) != api.CodeNotFound:
		unavailable(w, r, "The request could not be recorded.", "Try again later.", string(api.CodeOf(err)))
		return
	case err != nil:
		refused(w, r)
		return
	}
	origin := s.base.Origin(asked.Sandbox, asked.Port)
	if exchange {
		s.giveCookie(w, r, origin, token, use)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(use.Live, cancel)()
	defer context.AfterFunc(s.live, cancel)()
	s.proxy.ServePort(w, r.WithContext(ctx), Target{
		Sandbox: asked.Sandbox, Port: asked.Port, Origin: origin, KeepHost: use.KeepHost, Dial: use.Dial,
	})
}

// giveCookie exchanges the token in the URL for a cookie of this origin, and has the browser load
// the URL again without it.
func (s *Server) giveCookie(w http.ResponseWriter, r *http.Request, origin, token string, use *core.PortUse) {
	if !use.Public {
		c := &http.Cookie{Name: s.base.cookieName(), Value: token, Path: "/", HttpOnly: true, Secure: s.base.Secure(), SameSite: http.SameSiteLaxMode}
		if !use.ExpiresAt.IsZero() {
			c.MaxAge = max(1, int(time.Until(use.ExpiresAt).Seconds()))
		}
		http.SetCookie(w, c)
	}
	to := *r.URL
	to.RawQuery = withoutToken(to.RawQuery)
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	// The complete URL, because a path that begins with two slashes would name another host.
	h.Set("Location", origin+to.RequestURI())
	w.WriteHeader(http.StatusSeeOther)
}

// localOf is the address of this machine at which a request arrived.
func localOf(r *http.Request) netip.AddrPort {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		if tcp, ok := a.(*net.TCPAddr); ok {
			return tcp.AddrPort()
		}
	}
	return netip.AddrPort{}
}

func remoteOf(r *http.Request) netip.AddrPort {
	a, _ := netip.ParseAddrPort(r.RemoteAddr) // a listener has no others
	return a
}
