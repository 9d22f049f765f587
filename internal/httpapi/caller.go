package httpapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/peercred"
)

// via is how a connection's caller is named.
type via int

const (
	viaUnix via = iota + 1
	viaTCP
	viaKnown
)

// listener says through which listener a connection came.
type listener struct {
	via    via
	caller core.Caller
	// uid of a unix peer in the daemon's own namespaces. It is -1 of every other peer,
	// which is named by the token it shows.
	uid int
	// tcp is the connection where it came over a network, and nil elsewhere.
	tcp *net.TCPConn
}

// markedListener marks the connections of one listener.
type markedListener struct {
	net.Listener
	listener listener
}

func (l markedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	d := l.listener
	if d.via == viaUnix {
		d.uid = peerUID(c)
	}
	d.tcp, _ = c.(*net.TCPConn)
	return listenerConn{c, d}, nil
}

// peerUID is the uid of the process that connected. It is -1 when it cannot be known,
// and when that process is not proved to be in the daemon's own user and process
// namespaces: root in a sandbox or a container may have the daemon's uid.
func peerUID(c net.Conn) int {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return -1
	}
	uid, err := peercred.UID(uc)
	if err != nil {
		return -1
	}
	return uid
}

type listenerConn struct {
	net.Conn
	listener listener
}

// CloseWrite lets net/http end an answer gently to a caller that still sends.
func (c listenerConn) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return nil
}

type listenerKey struct{}

func connContext(ctx context.Context, c net.Conn) context.Context {
	if over, ok := c.(*tls.Conn); ok {
		c = over.NetConn()
	}
	if dc, ok := c.(listenerConn); ok {
		return context.WithValue(ctx, listenerKey{}, dc.listener)
	}
	return ctx
}

// addressed refuses a request that a web page may have sent. Host and Origin are
// checked before the token, so that a page that reaches this port by a name of its own
// or from another origin learns nothing, not even whether a guess of the token was
// right.
func (s *Server) addressed(r *http.Request) (listener, error) {
	d, ok := r.Context().Value(listenerKey{}).(listener)
	if !ok {
		return listener{}, api.Errorf(api.CodeUnauthenticated, "the connection has no known origin")
	}
	if name := hostName(r.Host); d.via == viaTCP && !s.hostAllowed(name) {
		return listener{}, api.Errorf(api.CodeDenied, "this daemon is not known by the host name %q of the request", clip(name, 255)).
			WithHint("call it by its address or as localhost, or have the operator put the name into hosts of settings.yaml (cloche serve --host-name)")
	}
	return d, s.checkOrigin(r)
}

// admit names the caller of a request, or refuses it. live, where it is not nil, ends
// when the caller's right to be here does.
func (s *Server) admit(r *http.Request, d listener) (caller core.Caller, live context.Context, err error) {
	switch d.via {
	case viaKnown:
		return d.caller, nil, nil
	case viaUnix:
		if socketIsOwners {
			return core.OwnerCaller(), nil, nil
		}
		// Only the daemon's own uid is the operator. Root can connect to the socket of any user,
		// and is an ordinary tenant there: it has its own daemon.
		if d.uid >= 0 {
			return core.UnixCaller(d.uid, s.uid), nil, nil
		}
	}
	token, ok := bearer(r)
	if !ok && d.via == viaUnix {
		return core.Caller{}, nil, api.Errorf(api.CodeUnauthenticated, "the caller is not known to be in the namespaces of the daemon, so its user says nothing").
			WithHint("in a container, set CLOCHE_TOKEN to an API key of `cloche key create`")
	}
	if !ok {
		return core.Caller{}, nil, api.Errorf(api.CodeUnauthenticated, "the request shows no token, or not in a way that is known").
			WithHint("set CLOCHE_TOKEN, or send the header Authorization: Bearer TOKEN")
	}
	if s.tokenOK(token) {
		return core.TCPCaller(), nil, nil
	}
	return s.core.Authenticate(token)
}

// checkOrigin refuses what a browser sends for another site's page. A browser
// sets Origin on every WebSocket and every request that is not a plain read, and
// Sec-Fetch-Site on all; programs send neither.
func (s *Server) checkOrigin(r *http.Request) error {
	origins := r.Header.Values("Origin")
	site := r.Header.Get("Sec-Fetch-Site")
	switch {
	case len(origins) == 0 && (site == "" || site == "none"), s.allowedOrigin(r) != "":
		return nil
	case len(origins) == 0 && site == "same-origin" && s.ownOrigins[strings.ToLower(r.Host)]:
		// A plain read by a page of an allowed origin, behind a proxy that keeps Host.
		return nil
	}
	from := "another origin"
	if len(origins) > 0 {
		from = fmt.Sprintf("the origin %q", clip(strings.Join(origins, ", "), 255))
	}
	return api.Errorf(api.CodeDenied, "a page of %s may not call this daemon", from).
		WithHint("have the operator put the origin into origins of settings.yaml (cloche serve --origin)")
}

// allowedOrigin is the origin of the page that sends a request, where the operator allows
// it, and else "".
func (s *Server) allowedOrigin(r *http.Request) string {
	if l := r.Header.Values("Origin"); len(l) == 1 && s.origins[l[0]] {
		return l[0]
	}
	return ""
}

// share lets a page of an allowed origin read the answer, which a browser keeps from it
// otherwise. It reports whether the request is the browser's own question about that,
// which is then answered: it carries no token. No cookie counts here, so none is asked for.
func (s *Server) share(w http.ResponseWriter, r *http.Request) (answered bool) {
	origin := s.allowedOrigin(r)
	if origin == "" {
		return false
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Vary", "Origin")
	h.Set("Access-Control-Expose-Headers", headerRequestID+", Retry-After")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, "+headerRequestID)
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// bearer is the token of a request.
func bearer(r *http.Request) (token string, ok bool) {
	h := r.Header.Values("Authorization")
	if len(h) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(h[0], " ")
	return token, ok && strings.EqualFold(scheme, "Bearer") && token != ""
}

// tokenOK compares hashes, so that the time it takes says nothing of the token,
// its length included.
func (s *Server) tokenOK(token string) bool {
	sum := sha256.Sum256([]byte(token))
	return s.token != nil && subtle.ConstantTimeCompare(sum[:], s.token[:]) == 1
}

// within is ctx until live ends, whose cause it then has. A nil live never does.
func within(ctx context.Context, live context.Context) (context.Context, context.CancelFunc) {
	if live == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(live, func() { cancel(context.Cause(live)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// hostNames are names by which callers over TCP may call this server, beside localhost
// and addresses.
type hostNames struct {
	exact map[string]bool
	// below are suffixes that begin with a dot.
	below []string
}

func newHostNames(names []string) (hostNames, error) {
	out := hostNames{exact: map[string]bool{"localhost": true}}
	for _, v := range names {
		if !ValidHost(v) {
			return out, api.Invalid("hosts", "%q is no name of a host", clip(v, 255)).WithHint("write a name such as box.example.org, or *.example.org")
		}
		if rest, ok := strings.CutPrefix(hostName(v), "*"); ok {
			out.below = append(out.below, rest)
		} else {
			out.exact[hostName(v)] = true
		}
	}
	return out, nil
}

// hostAllowed reports whether the Host of a request is one of this server's own names. An address
// is always allowed, except the unspecified one. Refused are names that another party made point to
// this server, because a web page that was loaded under such a name sends it as Host.
func (s *Server) hostAllowed(name string) bool {
	if a, err := netip.ParseAddr(name); err == nil {
		return !a.Unmap().IsUnspecified()
	}
	return s.hosts.exact[name] || slices.ContainsFunc(s.hosts.below, func(suffix string) bool {
		return len(name) > len(suffix) && strings.HasSuffix(name, suffix)
	})
}

// ValidHost reports whether Options.Hosts takes a name: one with labels of letters,
// digits, - and _, or *. and such a name, which is every name below it. A port and a dot
// at the end count for nothing.
func ValidHost(v string) bool {
	if strings.ContainsAny(v, "/@") {
		return false
	}
	name := hostName(v)
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	name = strings.TrimPrefix(name, "*.")
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// browserOrigin returns an origin as a browser writes it, and the Host of a request to it. Both are
// empty if v is not an origin.
func browserOrigin(v string) (origin, host string) {
	u, err := url.Parse(strings.ToLower(v))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || !ValidHost(u.Hostname()) || strings.HasPrefix(u.Hostname(), "*") ||
		strings.HasSuffix(u.Hostname(), ".") || u.User != nil || u.Path != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(u.Host, ":") || strings.Contains(v, "#") {
		return "", ""
	}
	if port := u.Port(); port == "80" && u.Scheme == "http" || port == "443" && u.Scheme == "https" {
		u.Host = strings.TrimSuffix(u.Host, ":"+port)
	}
	return u.Scheme + "://" + u.Host, u.Host
}

// ValidOrigin reports whether Options.Origins takes an origin: http or https, a host, and
// its port where that is not the usual one.
func ValidOrigin(v string) bool {
	origin, _ := browserOrigin(v)
	return origin != ""
}

// hostName is a Host header without port and brackets, in lower case.
func hostName(h string) string {
	if name, _, err := net.SplitHostPort(h); err == nil {
		h = name
	}
	h = strings.TrimSuffix(strings.TrimPrefix(h, "["), "]")
	return strings.ToLower(strings.TrimSuffix(h, "."))
}
