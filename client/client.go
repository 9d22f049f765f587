// Package client is the Go client of the Cloche daemon, over its unix socket or TCP. The same
// program works with the daemon of a laptop and of a server. Create a client with [FromEnv] or
// [New].
//
// Every error of the API is a *api.Error, so errors.Is(err, api.ErrDenied) and errors.As work as if
// the daemon were in the same process.
//
// If the answer to a call is lost, the call returns an error and is not repeated, unless the caller
// named what the call creates: an exec or a process with an ExecID, a sandbox with an
// IdempotencyKey. Calls that follow something (Events, Logs with Follow, an Attachment) replace a
// connection that breaks and continue where it ended, without repetition or loss. Options can
// disable that.
package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Options selects the daemon. The zero value is the local daemon at DefaultHost.
type Options struct {
	// Host is "unix:///path/to/socket", "tcp://host:port", or an "http://" or "https://" address
	// without a path. Empty is DefaultHost().
	Host string
	// Token is sent as a bearer token. A daemon requires it over TCP. No error contains it, and a
	// redirect never forwards it.
	Token string
	// Dial replaces the function that opens connections. Nil is the default of package net. It is
	// called with "unix" and the path of the socket, or with "tcp" and host:port.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS is the configuration for an "https://" host. Nil is the default.
	TLS *tls.Config
	// CAFile is a file of PEM certificates that an "https://" host is verified with, in addition
	// to those of the system or of TLS. Empty is no file.
	CAFile string
	// UserAgent appears in the daemon's log. Empty is "cloche-go".
	UserAgent string
	// Silence is how long the daemon can be unresponsive while any call waits. After that the
	// call fails with code unavailable. The client checks that the daemon responds while it
	// waits, so a long call does not count as silence. 0 is DefaultSilence, and a negative value
	// means indefinitely.
	Silence time.Duration
	// NoReconnect makes attachments and calls that follow something fail with the error of a
	// connection that breaks. Otherwise they reconnect, after a wait of 3 s that doubles up to 60
	// s, and continue where they were.
	NoReconnect bool
	// OnReconnect is called before each wait for another attempt to connect, with the error of
	// the last one. It can be called from several goroutines at once.
	OnReconnect func(err error, wait time.Duration)
}

// Client is the connection of one caller to one daemon. It is safe for concurrent use and holds
// only idle connections. Create one with New or FromEnv.
type Client struct {
	host  string
	base  string
	token string
	agent string
	http  *http.Client
	// silence is Options.Silence or its default.
	silence time.Duration

	noReconnect bool
	onReconnect func(error, time.Duration)
	// reached is true once a daemon has answered.
	reached atomic.Bool
}

// dialTimeout limits one attempt to connect. Calls themselves are limited by their context, by the
// daemon's deadlines and by Options.Silence.
const dialTimeout = 10 * time.Second

// New returns a client. It does not connect: if the daemon is not running, the first call fails.
func New(o Options) (*Client, error) {
	if o.Host == "" {
		o.Host = DefaultHost()
	}
	network, addr, base, err := parseHost(o.Host)
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(o.Token, "\r\n\x00 ") {
		return nil, api.Invalid("token", "the token holds a space or a line break").
			WithHint("pass the token alone, without the word Bearer")
	}
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	config := o.TLS
	if o.CAFile != "" && strings.HasPrefix(base, "https:") {
		if config, err = withRoots(o.TLS, o.CAFile); err != nil {
			return nil, err
		}
	}
	t := &http.Transport{
		DisableCompression:     true,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    dialTimeout,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        60 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		WriteBufferSize:        64 << 10,
		ReadBufferSize:         64 << 10,
	}
	t.DialContext = func(ctx context.Context, n, a string) (net.Conn, error) {
		if network == "unix" {
			n, a = network, addr
		}
		conn, err := dial(ctx, n, a)
		if err != nil {
			return nil, &dialError{err}
		}
		return conn, nil
	}
	if network != "unix" && o.Dial == nil {
		t.Proxy = http.ProxyFromEnvironment
	}
	c := &Client{
		host: o.Host, base: base, token: o.Token, agent: o.UserAgent,
		silence: cmp.Or(o.Silence, DefaultSilence), noReconnect: o.NoReconnect, onReconnect: o.OnReconnect,
	}
	if c.agent == "" {
		c.agent = "cloche-go"
	}
	c.http = &http.Client{
		Transport: &pulse{base: t, url: base + "/healthz", silence: c.silence},
		// A redirect would send the token or the body to another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// maxRoots is the maximum size of a file of root certificates, in bytes.
const maxRoots = 8 << 20

// withRoots returns a configuration that also trusts the certificates in a file.
func withRoots(c *tls.Config, file string) (*tls.Config, error) {
	bad := func(err error) error {
		return api.Invalid("ca_file", "the roots for https cannot be read: %w", err).
			WithHint("%s names a file of certificates in PEM", EnvCAFile)
	}
	if c == nil {
		c = &tls.Config{}
	}
	c = c.Clone()
	if c.RootCAs == nil {
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		c.RootCAs = roots
	} else {
		c.RootCAs = c.RootCAs.Clone()
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, bad(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRoots))
	if err != nil {
		return nil, bad(err)
	}
	if !c.RootCAs.AppendCertsFromPEM(data) {
		return nil, bad(fmt.Errorf("%s has no certificate", file))
	}
	return c, nil
}

// Host returns the address that the client was created for.
func (c *Client) Host() string { return c.host }

// Close closes idle connections. Calls in progress continue.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// maxSocketPath is the longest socket path that every platform supports.
const maxSocketPath = 103

// parseHost splits a host into the network and address to dial and the base of every URL.
func parseHost(host string) (network, addr, base string, err error) {
	bad := func(format string, args ...any) error {
		return api.Invalid("host", "host %q: "+format, append([]any{host}, args...)...).
			WithHint("give unix:///path/to/cloche.sock, tcp://host:port or https://host:port")
	}
	u, perr := url.Parse(host)
	if perr != nil || u.Scheme == "" {
		return "", "", "", api.Invalid("host", "host %q is not an address", host).
			WithHint("give unix:///path/to/cloche.sock, tcp://host:port or https://host:port")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", "", "", bad("it has more than a scheme and an address")
	}
	switch u.Scheme {
	case "unix":
		p := strings.TrimPrefix(host, "unix://") // not decoded: a path may contain a %
		if p == host || !filepath.IsAbs(filepath.FromSlash(p)) && !strings.HasPrefix(p, "/") {
			return "", "", "", bad("the socket's path is not absolute")
		}
		if len(p) > maxSocketPath {
			return "", "", "", bad("the socket's path has %d bytes, and an address holds %d", len(p), maxSocketPath)
		}
		return "unix", p, "http://cloche", nil
	case "tcp", "http", "https":
		if u.Host == "" || u.Path != "" && u.Path != "/" {
			return "", "", "", bad("want an address and no path")
		}
		if u.Scheme == "tcp" {
			if u.Port() == "" {
				return "", "", "", bad("the port is missing")
			}
			u.Scheme = "http"
		}
		return "tcp", u.Host, u.Scheme + "://" + u.Host, nil
	}
	return "", "", "", bad("scheme %q is unknown", u.Scheme)
}

type contextKey struct{}

// NewContext returns a context that carries c, for code that gets its client from its caller.
func NewContext(ctx context.Context, c *Client) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// FromContext returns the client of NewContext. Without one, the error is api.ErrUnavailable.
// There is no fallback, and code never runs on the host instead.
func FromContext(ctx context.Context) (*Client, error) {
	if c, ok := ctx.Value(contextKey{}).(*Client); ok && c != nil {
		return c, nil
	}
	return nil, api.Errorf(api.CodeUnavailable, "no sandbox runtime is attached to this context").
		WithHint("the program that starts this code attaches one with client.NewContext")
}
