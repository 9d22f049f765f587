// Package httpapi is the native API server: the /v1 API over HTTP and WebSocket. It identifies the
// caller, decodes the request, calls core and encodes the answer. Core makes all decisions.
package httpapi

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// Limits that no configuration changes.
const (
	maxHeaderBytes = 64 << 10
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	// stallTimeout ends a transfer whose other side takes or gives nothing.
	stallTimeout = 5 * time.Minute
	// defaultMaxBody holds the largest request with files and stdin.
	defaultMaxBody = 32 << 20
	// minTokenLen keeps a token from being guessed over the network.
	minTokenLen = 16
)

// Options are what a Server works with. Core is required.
type Options struct {
	Core Core
	// Token is what callers over TCP show, beside the keys that Core knows; without
	// one TCP is not served. The server keeps its hash only.
	Token string
	// Hosts are names by which TCP callers may call this server, besides localhost
	// and addresses; see ValidHost.
	Hosts []string
	// Origins are browser origins, such as "https://tools.example", that may call
	// this server; see ValidOrigin. None may unless it is listed.
	Origins []string
	// Certificate has TCP spoken over TLS, by what it returns for each connection; nil
	// has it in the clear.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Version is the daemon's.
	Version string
	// MaxBody bounds a JSON body in bytes; 0 is 32 MiB. Raw uploads are streamed
	// and bounded by the sandbox's own limits.
	MaxBody int64
	// Deadlines are how long requests may take.
	Deadlines Deadlines
	// Logger gets one record for each request; nil discards them.
	Logger *slog.Logger
	// Redact takes the values of secrets out of errors; nil knows none.
	Redact func(string) string
	// Also is another API at the TCP listeners. It can be nil.
	Also Also
	// Answered is called for each request with the pattern of its route (empty if it has none),
	// the status and the duration. It can be nil.
	Answered func(route string, status int, took time.Duration)
}

// Also is an API that TCP listeners serve beside the native one. It checks the callers and the host
// names of its requests itself.
type Also interface {
	http.Handler
	// Serves reports whether a request is for this API.
	Serves(r *http.Request) bool
	// IdleTimeout is how long a connection of its clients may be idle.
	IdleTimeout() time.Duration
}

// Server serves the native API on any number of listeners. A unix socket's
// caller is the peer process; a TCP caller must show the token or an API key.
type Server struct {
	core      Core
	version   string
	maxBody   int64
	deadlines Deadlines
	token     *[sha256.Size]byte
	hosts     hostNames
	origins   map[string]bool
	// ownOrigins are the hosts of origins, with their ports.
	ownOrigins map[string]bool
	log        *slog.Logger
	uid        int
	redact     func(string) string
	also       Also
	answered   func(route string, status int, took time.Duration)
	// probes are the paths that ask for no token.
	probes map[string]bool
	mux    *http.ServeMux
	http   *http.Server
	// overTLS is whether TCP is: http has a configuration of its own without that too.
	overTLS bool
	// pingEvery and vanished are the constants, but in tests.
	pingEvery, vanished time.Duration

	// live ends when the server does; streams, which outlive their request in the
	// eyes of net/http, live in it and are counted.
	live    context.Context
	end     context.CancelFunc
	streams sync.WaitGroup

	mu   sync.Mutex
	done bool
}

// New makes a Server. It listens to nothing before Serve.
func New(o Options) (*Server, error) {
	if o.Core == nil {
		return nil, errors.New("make http server: no core")
	}
	s := &Server{
		core: o.Core, version: o.Version, maxBody: o.MaxBody, log: o.Logger, redact: o.Redact, also: o.Also, answered: o.Answered, uid: os.Geteuid(),
		pingEvery: pingEvery, vanished: vanished, deadlines: o.Deadlines.filled(),
		probes: map[string]bool{}, origins: map[string]bool{}, ownOrigins: map[string]bool{},
	}
	if s.maxBody <= 0 {
		s.maxBody = defaultMaxBody
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if o.Token != "" {
		if len(o.Token) < minTokenLen {
			return nil, api.Invalid("token", "the token has %d characters", len(o.Token)).
				WithHint("use at least %d, such as the output of `openssl rand -hex 32`", minTokenLen)
		}
		sum := sha256.Sum256([]byte(o.Token))
		s.token = &sum
	}
	var err error
	if s.hosts, err = newHostNames(o.Hosts); err != nil {
		return nil, err
	}
	for _, v := range o.Origins {
		origin, host := browserOrigin(v)
		if origin == "" {
			return nil, api.Invalid("origins", "%q is no origin of a page", clip(v, 255)).WithHint("write it as browsers do, such as https://tools.example.org")
		}
		s.origins[origin], s.ownOrigins[host] = true, true
	}
	s.live, s.end = context.WithCancel(context.Background())
	s.mux = http.NewServeMux()
	for _, r := range (system{s}).probeRoutes() {
		s.probes[r.path] = true
	}
	for _, r := range slices.Concat(system{s}.probeRoutes(), s.routes(), oldRoutes(s.routes())) {
		s.mux.HandleFunc(r.method+" "+r.path, s.handle(r))
	}
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.edge),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnContext:       connContext,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	if s.also != nil {
		s.http.IdleTimeout = max(idleTimeout, s.also.IdleTimeout())
	}
	if o.Certificate != nil {
		s.overTLS = true
		s.http.TLSConfig = &tls.Config{GetCertificate: o.Certificate, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	}
	return s, nil
}

// Serve serves a unix or TCP listener until Shutdown, and then returns nil. It
// closes the listener.
func (s *Server) Serve(ln net.Listener) error {
	switch addr := ln.Addr().(type) {
	case *net.UnixAddr:
		return s.serve(ln, listener{via: viaUnix})
	case *net.TCPAddr:
		if s.token == nil {
			ln.Close()
			return api.Errorf(api.CodeInvalid, "serve %s: there is no token", addr).
				WithHint("TCP is only served with a token; set CLOCHE_TOKEN, or listen at a unix socket")
		}
		return s.serve(ln, listener{via: viaTCP})
	}
	ln.Close()
	return fmt.Errorf("serve %s: want a unix or a TCP listener", ln.Addr().Network())
}

// ServeAs serves a listener inside this process, every connection of which is
// known to be of one caller, until Shutdown.
func (s *Server) ServeAs(ln net.Listener, caller core.Caller) error {
	return s.serve(ln, listener{via: viaKnown, caller: caller})
}

func (s *Server) serve(ln net.Listener, d listener) error {
	var err error
	if d.via == viaTCP && s.overTLS {
		err = s.http.ServeTLS(markedListener{ln, d}, "", "")
	} else {
		err = s.http.Serve(markedListener{ln, d})
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve %s: %w", ln.Addr(), err)
}

// Shutdown stops listening, lets requests in progress end until ctx does, ends
// streams at once, and waits for all of them. Execs go on without their streams;
// the sandboxes of runs are removed.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.done = true
	s.mu.Unlock()
	s.end()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	s.streams.Wait()
	return err
}

// beginStream counts a stream, unless the server is ending.
func (s *Server) beginStream() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return shuttingDown()
	}
	s.streams.Add(1)
	return nil
}

// shuttingDown is what a caller gets whose request the server no longer serves,
// or ends.
func shuttingDown() *api.Error {
	e := api.Errorf(api.CodeUnavailable, "the daemon is shutting down").WithHint("ask again when it is back")
	e.Retryable = true
	return e
}

// lasting is the context of a request that may last: it ends with the server
// too, which does not wait for it. Its cause is then what the caller is told.
func (s *Server) lasting(r request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(s.live, func() { cancel(shuttingDown()) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// cut is err as its caller is told of it: when the server ended the request,
// that is why.
func cut(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*api.Error](context.Cause(ctx)); ok {
		return e
	}
	return err
}
