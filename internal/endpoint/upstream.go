package endpoint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/endpoint/recording"
)

const (
	// maxAddrs is how many addresses of a target are tried.
	maxAddrs = 8
	// idleConnTime is how long a connection to a target is kept for the next request.
	idleConnTime = 90 * time.Second
	// maxResponseHead bounds the head of a response.
	maxResponseHead = 256 << 10
)

// upstream is one target, with the connections to it.
type upstream struct {
	e    *Endpoint
	spec api.Endpoint
	// base is the URL that requests go below; nil for raw targets.
	base *url.URL
	// host and port are where to dial; empty where clients attach.
	host string
	port uint16
	// socket is the path of one to dial instead.
	socket    string
	ranges    []netip.Prefix
	transport *pool // nil for raw targets
	// play answers instead of a target.
	play *recording.Player
}

// newUpstream prepares a target, and connects to nothing.
func (e *Endpoint) newUpstream(spec api.Endpoint, ranges []netip.Prefix) (*upstream, error) {
	u := &upstream{e: e, spec: spec, ranges: ranges}
	switch {
	case spec.Target == api.TargetClient:
		u.base = &url.URL{Scheme: "http", Host: authorityOf(spec)}
	case spec.Target == api.TargetClientTCP:
	case strings.HasPrefix(spec.Target, "unix://"):
		u.socket = strings.TrimPrefix(spec.Target, "unix://")
		u.base = &url.URL{Scheme: "http", Host: "localhost"}
	case strings.HasPrefix(spec.Target, "unix+tcp://"):
		u.socket = strings.TrimPrefix(spec.Target, "unix+tcp://")
	case strings.HasPrefix(spec.Target, api.TargetReplay):
		u.base = &url.URL{Scheme: "http", Host: authorityOf(spec)}
		u.play = e.o.Play
		if u.play == nil {
			return nil, fmt.Errorf("parse target of endpoint %s: there is no recording", spec.Name)
		}
	default:
		base, err := url.Parse(spec.Target)
		if err != nil {
			return nil, fmt.Errorf("parse target of endpoint %s: %w", spec.Name, err)
		}
		port := base.Port()
		if port == "" {
			port = map[string]string{"http": "80", "https": "443"}[base.Scheme]
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("parse target of endpoint %s: port %q", spec.Name, port)
		}
		u.host, u.port = base.Hostname(), uint16(n)
		if base.Scheme != "tcp" {
			u.base = base
		}
	}
	if u.base != nil {
		l := spec.Limits
		u.transport = &pool{}
		u.transport.Transport = &http.Transport{
			// No proxy of the environment's, nothing decoded, and no more connections than
			// requests: those that are idle are kept, so that many requests need few.
			Proxy: nil, DisableCompression: true, MaxConnsPerHost: l.Active, MaxIdleConnsPerHost: l.Active, MaxIdleConns: l.Active,
			IdleConnTimeout: idleConnTime, ResponseHeaderTimeout: ms(l.HeaderMS), MaxResponseHeaderBytes: maxResponseHead,
			ExpectContinueTimeout: time.Second, TLSHandshakeTimeout: ms(l.ConnectMS),
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
			DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return u.dialPooled(ctx) },
		}
	}
	return u, nil
}

// authorityOf is what an endpoint is called inside.
func authorityOf(spec api.Endpoint) string {
	if spec.Socket() != "" {
		return "localhost"
	}
	return "127.0.0.1:" + strconv.Itoa(spec.Port())
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// confined says that requests reach only a part of the target.
func (u *upstream) confined() bool {
	return u.base != nil && strings.Trim(u.base.Path, "/") != "" || u.spec.HTTP != nil && len(u.spec.HTTP.Paths) > 0
}

// retire ends the unused connections; the others end when they are idle.
func (u *upstream) retire() {
	if u.transport != nil {
		u.transport.CloseIdleConnections()
	}
}

// dialPooled is dial for requests, which share connections.
func (u *upstream) dialPooled(ctx context.Context) (net.Conn, error) {
	if ctx.Value(upgrading{}) != nil {
		return u.dial(ctx)
	}
	if err := u.transport.enter(ctx); err != nil {
		return nil, err
	}
	conn, err := u.dial(ctx)
	if err != nil {
		u.transport.leave()
		return nil, err
	}
	return &pooledConn{Conn: conn, leave: sync.OnceFunc(u.transport.leave)}, nil
}

// dial opens a connection to the target, or to a client that is attached. An error
// has a code.
func (u *upstream) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, ms(u.spec.Limits.ConnectMS))
	defer cancel()
	sockets := u.e.o.Sockets
	if u.host == "" && u.socket == "" {
		sockets = nil // a client that is attached has one connection for all
	}
	if !sockets.take() {
		return nil, &codedError{codeBusy, errSockets}
	}
	conn, err := u.open(ctx)
	if err == nil {
		u.e.dialed.Add(1)
		if sockets == nil {
			return conn, nil
		}
		return &farConn{Conn: conn, free: sync.OnceFunc(sockets.release)}, nil
	}
	sockets.release()
	if _, ok := errors.AsType[*codedError](err); ok {
		return nil, err
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, &codedError{codeConnectTime, err}
	}
	return nil, &codedError{codeUnreachable, err}
}

func (u *upstream) open(ctx context.Context) (net.Conn, error) {
	if u.socket != "" {
		return u.openSocket(ctx)
	}
	if u.host == "" {
		return u.e.reverse(ctx)
	}
	addrs, err := u.lookup(ctx)
	if err != nil {
		return nil, err
	}
	var failed []error
	denied := 0
	for _, a := range addrs {
		to := netip.AddrPortFrom(a, u.port)
		if err := u.judge(to); err != nil {
			failed = append(failed, err)
			denied++
			continue
		}
		// What is dialled is the address that was judged, and no name.
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", to.String())
		if err == nil {
			return conn, nil
		}
		failed = append(failed, err)
	}
	err = errors.Join(failed...)
	if denied == len(addrs) {
		return nil, &codedError{codeTargetDenied, fmt.Errorf("dial %s: %w", u.host, errors.Join(err, errNoAddress))}
	}
	return nil, fmt.Errorf("dial %s: %w", u.host, err)
}

var errSockets = errors.New("there are as many connections to targets as this process may have")

var errNoAddress = errors.New("no address of it is allowed")

func (u *upstream) lookup(ctx context.Context) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(u.host); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	r := u.e.o.Resolver
	if r == nil {
		r = net.DefaultResolver
	}
	found, err := r.LookupNetIP(ctx, "ip", u.host)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", u.host, err)
	}
	for i, a := range found {
		found[i] = a.Unmap()
	}
	// IPv4 first: most of what runs on a machine for itself listens there.
	slices.SortStableFunc(found, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return found[:min(len(found), maxAddrs)], nil
}

// judge says of a real address why it is no target. It is asked at every dial, so
// that a name cannot come to mean another address after it was checked.
func (u *upstream) judge(to netip.AddrPort) error {
	a := to.Addr()
	if u.e.o.Own != nil && u.e.o.Own(to) {
		return fmt.Errorf("%s is the daemon's own", to)
	}
	class := rule.Class(a)
	if class == "" {
		return nil
	}
	if rule.Never(a) {
		return fmt.Errorf("%s is %s", a, class)
	}
	if slices.ContainsFunc(u.ranges, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return nil
	}
	return fmt.Errorf("%s is %s, which no rule of the operator's allows", a, class)
}
