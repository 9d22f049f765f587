// Package client talks to a Cloche daemon, over its unix socket or TCP. It is
// what agent code programs against: the same program runs against a laptop's
// daemon and a server's.
//
// Every error of the API is a *api.Error, so errors.Is(err,
// api.ErrDenied) and errors.As work as if the daemon were in the same
// process.
//
// A call whose answer was lost is reported as an error and not repeated, unless
// the caller named what it makes: an exec or a process with an ExecID, a sandbox with
// an IdempotencyKey. What is
// followed (Events, Logs with Follow, an Attachment) makes its connection again
// when it breaks and goes on where it was, with nothing repeated and nothing
// lost; Options can switch that off.
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

// Options say which daemon to talk to. The zero value is the local daemon at
// DefaultHost.
type Options struct {
	// Host is "unix:///path/to/socket", "tcp://host:port", or an "http://" or
	// "https://" address without path; empty is DefaultHost().
	Host string
	// Token is sent as bearer token; a daemon asks for it over TCP. It is never
	// in an error, and a redirect never carries it on.
	Token string
	// Dial replaces how connections are made; nil is the network's own. It gets
	// "unix" with the socket's path, or "tcp" with host:port.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS is the configuration for an "https://" host; nil is the system's.
	TLS *tls.Config
	// CAFile is a file of PEM certificates by which an "https://" host is verified,
	// in addition to the system's or those of TLS; empty adds none.
	CAFile string
	// UserAgent is added to the daemon's log; empty is "cloche-go".
	UserAgent string
	// Silence is how long the daemon may answer nothing while a call waits, whatever the
	// call is for: then it ends with an error of code unavailable. The daemon is asked for a
	// sign of life meanwhile, so calls that take long are no silence. 0 is
	// DefaultSilence, and less waits indefinitely.
	Silence time.Duration
	// NoReconnect ends what is followed, and attachments, with the error of the
	// connection that broke. Without it they make a new one, after 3 s, doubling to
	// 60 s, and go on where they were.
	NoReconnect bool
	// OnReconnect is called before each wait for another attempt to connect, with
	// what ended the last one. It may be called from several goroutines at once.
	OnReconnect func(err error, wait time.Duration)
}

// Client is one daemon as one caller sees it. It is safe for concurrent use and
// holds only idle connections. Make one with New or FromEnv.
type Client struct {
	host  string
	base  string
	token string
	agent string
	http  *http.Client
	// silence is Options.Silence, or its default.
	silence time.Duration

	noReconnect bool
	onReconnect func(error, time.Duration)
	// reached is true once a daemon has answered.
	reached atomic.Bool
}

// dialTimeout bounds one attempt to connect; calls themselves are bounded by their
// context, by the daemon's deadlines and by Options.Silence.
const dialTimeout = 10 * time.Second

// New makes a client. It connects to nothing: a daemon that is not there shows
// in the first call.
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
		// A redirect would carry the token or the body somewhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// maxRoots is the largest file of roots, in bytes.
const maxRoots = 8 << 20

// withRoots is a configuration that verifies by the certificates in a file too.
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

// Host is the address that the client was made for.
func (c *Client) Host() string { return c.host }

// Close drops idle connections. Calls in progress go on.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// maxSocketPath is what fits a unix socket address on every platform.
const maxSocketPath = 103

// parseHost splits a host into the network and address to dial and the base of
// every URL.
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
		p := strings.TrimPrefix(host, "unix://") // as it is: a path may hold a %
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
