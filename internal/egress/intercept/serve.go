package intercept

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/internal/egress/rule"
)

const (
	maxHead = 64 << 10
	// maxStreams is how many requests at once one connection of HTTP/2 may carry.
	maxStreams = 100
	// maxUpstream is how many connections to the host serve one of the sandbox: a host
	// may speak HTTP/1 only where the sandbox speaks HTTP/2.
	maxUpstream = 16
)

// Flow is one connection whose TLS is to be opened.
type Flow struct {
	ID string
	// Name is the host that the connection goes to, and its hello names.
	Name rule.Name
	Port uint16
	// Client is the sandbox's end; what is read from it begins with the hello.
	Client net.Conn
	// Dial opens a connection to the host. All that it opened are closed by its owner
	// when Serve has returned.
	Dial func(context.Context) (net.Conn, error)
	// Refused is told of requests that do not go on; it may be nil.
	Refused func(method, target string, r *rule.Refusal)
	// First bounds the handshake and each head, Idle the time between requests.
	First, Idle time.Duration
}

// Use is one request into which secrets were put.
type Use struct {
	Time    time.Time
	Flow    string // its id
	Secrets []string
	Name    rule.Name
	Port    uint16
	Method  string
	// Path is without the query, and cut.
	Path string
	// Status is what the host answered; 0 is nothing.
	Status int
}

// Serve carries one connection until it ends, or ctx does. A caller that cancels ctx
// closes the connections as well. An error is one of the connection: what became
// of requests was answered inside it.
func (i *Interceptor) Serve(ctx context.Context, f Flow) error {
	conf := &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return i.authority.leaf(f.Name)
		},
		// A ticket would be good for another host of this sandbox.
		SessionTicketsDisabled: true,
	}
	client := tls.Server(f.Client, conf)
	hand, cancel := context.WithTimeout(ctx, f.First)
	err := client.HandshakeContext(hand)
	cancel()
	if err != nil {
		return fmt.Errorf("open TLS with the sandbox: %w", err)
	}
	s := &session{i: i, f: f, base: ctx}
	s.handlers.idle = sync.NewCond(&s.handlers.mu)
	s.proxy = s.newProxy()
	l := &single{conn: make(chan net.Conn, 1), done: make(chan struct{}), addr: f.Client.LocalAddr()}
	l.conn <- client
	server := &http.Server{
		Handler: s, TLSConfig: conf, MaxHeaderBytes: maxHead, ReadHeaderTimeout: f.First, IdleTimeout: f.Idle,
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog:    stdlog.New(io.Discard, "", 0), // it speaks of what clients do, which is on record elsewhere
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed || state == http.StateHijacked {
				l.end()
			}
		},
	}
	err = server.Serve(l)
	s.handlers.wait()
	s.transport.CloseIdleConnections()
	if !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("serve the sandbox's requests: %w", err)
	}
	return nil
}

// single is a listener to which one connection comes. It is closed when that one
// is.
type single struct {
	conn chan net.Conn
	done chan struct{}
	once sync.Once
	addr net.Addr
}

// Accept implements net.Listener.
func (l *single) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *single) end() { l.once.Do(func() { close(l.done) }) }

// Close implements net.Listener.
func (l *single) Close() error { return nil }

// Addr implements net.Listener.
func (l *single) Addr() net.Addr { return l.addr }

// counted are the requests under way. With HTTP/2 some may outlive their
// connection for a moment.
type counted struct {
	mu   sync.Mutex
	idle *sync.Cond
	n    int
	over bool
}

func (c *counted) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return false
	}
	c.n++
	return true
}

func (c *counted) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	c.idle.Broadcast()
}

// wait returns when none is left, and no other can begin.
func (c *counted) wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for c.n > 0 {
		c.idle.Wait()
	}
}

// session is one connection that was opened.
type session struct {
	i         *Interceptor
	f         Flow
	base      context.Context
	proxy     *httputil.ReverseProxy
	transport *http.Transport
	handlers  counted
}

func (s *session) newProxy() *httputil.ReverseProxy {
	s.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if s.base.Err() != nil {
				return nil, context.Cause(s.base)
			}
			return s.f.Dial(ctx)
		},
		TLSClientConfig:    &tls.Config{ServerName: string(s.f.Name), RootCAs: s.i.roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:  true,
		DisableCompression: true, // what the sandbox asks for is what it gets
		MaxConnsPerHost:    maxUpstream, MaxIdleConnsPerHost: maxUpstream,
		TLSHandshakeTimeout: s.f.First, ExpectContinueTimeout: time.Second, IdleConnTimeout: s.f.Idle,
		MaxResponseHeaderBytes: 4 * maxHead,
	}
	return &httputil.ReverseProxy{
		Rewrite:        s.rewrite,
		Transport:      s.transport,
		FlushInterval:  -1,
		ModifyResponse: s.answered,
		ErrorHandler:   s.failed,
		ErrorLog:       stdlog.New(io.Discard, "", 0),
	}
}

// rewrite lets the request go on as it came, and takes back what a proxy that
// wants to be seen would do.
func (s *session) rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme = "https"
	r.Out.URL.Host = s.authority()
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	r.Out.Host = r.In.Host
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v := r.In.Header[name]; v != nil {
			r.Out.Header[name] = v
		}
	}
}
