package httpapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"strings"

	"github.com/cloche-dev/cloche"
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

// door is through which listener a connection came.
type door struct {
	via    via
	caller core.Caller
	// uid of a unix peer in the daemon's own namespaces. It is -1 of every other peer,
	// which is named by the token it shows.
	uid int
	// tcp is the connection where it came over a network, and nil elsewhere.
	tcp *net.TCPConn
}

// doorListener marks the connections of one listener.
type doorListener struct {
	net.Listener
	door door
}

func (l doorListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	d := l.door
	if d.via == viaUnix {
		d.uid = peerUID(c)
	}
	d.tcp, _ = c.(*net.TCPConn)
	return doorConn{c, d}, nil
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

type doorConn struct {
	net.Conn
	door door
}

// CloseWrite lets net/http end an answer gently to a caller that still sends.
func (c doorConn) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return nil
}

type doorKey struct{}

func connContext(ctx context.Context, c net.Conn) context.Context {
	if dc, ok := c.(doorConn); ok {
		return context.WithValue(ctx, doorKey{}, dc.door)
	}
	return ctx
}

// admit names the caller of a request, or refuses it. Host and Origin are
// checked before the token, so that a web page that reaches this port by a name
// of its own or from another origin learns nothing, not even whether a guess of
// the token was right.
//
// live, where it is not nil, ends when the caller's right to be here does.
func (s *Server) admit(r *http.Request) (caller core.Caller, live context.Context, err error) {
	d, ok := r.Context().Value(doorKey{}).(door)
	if !ok {
		return core.Caller{}, nil, cloche.Errorf(cloche.CodeUnauthenticated, "the connection has no known origin")
	}
	if d.via == viaTCP && !s.hostAllowed(r) {
		return core.Caller{}, nil, cloche.Errorf(cloche.CodeDenied, "this daemon is not known by the host name of the request").
			WithHint("use localhost or the address that it listens at, or have the operator allow the name")
	}
	if err := s.checkOrigin(r); err != nil {
		return core.Caller{}, nil, err
	}
	switch d.via {
	case viaKnown:
		return d.caller, nil, nil
	case viaUnix:
		if socketIsOwners {
			return core.OwnerCaller(), nil, nil
		}
		// Only the daemon's own uid is the operator. Root can connect to anyone's
		// socket, and is a tenant like any other there: it has its own daemon.
		if d.uid >= 0 {
			return core.UnixCaller(d.uid, s.uid), nil, nil
		}
	}
	token, ok := bearer(r)
	if !ok && d.via == viaUnix {
		return core.Caller{}, nil, cloche.Errorf(cloche.CodeUnauthenticated, "the caller is not known to be in the namespaces of the daemon, so its user says nothing").
			WithHint("in a container, set CLOCHE_TOKEN to an API key of `cloche key create`")
	}
	if !ok {
		return core.Caller{}, nil, cloche.Errorf(cloche.CodeUnauthenticated, "the request shows no token, or not in a way that is known").
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
	allowed := len(origins) == 1 && s.origins[origins[0]]
	site := r.Header.Get("Sec-Fetch-Site")
	if allowed || len(origins) == 0 && (site == "" || site == "none") {
		return nil
	}
	return cloche.Errorf(cloche.CodeDenied, "a page of another origin may not call this daemon").
		WithHint("have the operator allow the origin")
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

// hostName is a Host header without port and brackets, in lower case.
func hostName(h string) string {
	if name, _, err := net.SplitHostPort(h); err == nil {
		h = name
	}
	h = strings.TrimSuffix(strings.TrimPrefix(h, "["), "]")
	return strings.ToLower(strings.TrimSuffix(h, "."))
}
