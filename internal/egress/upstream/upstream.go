// Package upstream opens the real connection of a flow: it finds the addresses of
// a name, has each judged before it is dialled, or asks the operator's proxy by
// name.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/cloche-dev/cloche/internal/egress/rule"
)

// Resolver finds addresses; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// ContextDialer connects to an address that is given in numbers; *net.Dialer is
// one.
type ContextDialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// ResolvedBy is who found the real address of a flow.
type ResolvedBy string

// The ways.
const (
	// ByUs: we asked the machine's resolver and judged what it said.
	ByUs ResolvedBy = "cloche"
	// ByUpstream: a proxy was asked by name, so the address is not known here.
	ByUpstream ResolvedBy = "upstream"
	// ByRule: the operator listed the address, or a rule names it.
	ByRule ResolvedBy = "rule"
)

// Dialer opens connections. The zero value uses the machine's resolver and no
// proxy. It may be shared and must not be changed while it is in use.
type Dialer struct {
	Resolver Resolver      // nil is the machine's
	Dialer   ContextDialer // nil is the machine's
	// Hosts are addresses of names that no resolver and no proxy is asked for.
	Hosts map[rule.Name][]netip.Addr
	// Proxy is asked for everything except its exceptions; it may be nil.
	Proxy *Proxy
	// Timeout bounds resolving and dialling together; 0 is 10 seconds.
	Timeout time.Duration
}

const (
	defaultTimeout = 10 * time.Second
	// maxAddrs is how many addresses of a name are tried.
	maxAddrs = 8
	// headStart is how long an attempt may take before the next one begins beside
	// it.
	headStart = 250 * time.Millisecond
)

// Flow is a connection that was opened.
type Flow struct {
	Conn net.Conn
	// Addr is the real address; not valid when a proxy was asked.
	Addr netip.AddrPort
	By   ResolvedBy
}

// Host opens a connection to a port of a name. Judge says whether an address may
// be used, and nothing is sent to one that it refuses; when it refuses all, its
// first refusal is the error. It is not asked where a proxy finds the address.
func (d *Dialer) Host(ctx context.Context, n rule.Name, port uint16, judge func(netip.Addr) *rule.Refusal) (Flow, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout())
	defer cancel()
	listed, own := d.Hosts[n]
	if d.Proxy != nil && !own && !d.Proxy.excepts(n) {
		conn, err := d.Proxy.connect(ctx, d.dialer(), net.JoinHostPort(string(n), strconv.Itoa(int(port))))
		return Flow{Conn: conn, By: ByUpstream}, err
	}
	addrs, by := listed, ByRule
	if !own {
		var err error
		if addrs, err = d.lookup(ctx, n); err != nil {
			return Flow{}, fmt.Errorf("resolve %s: %w", n, err)
		}
		by = ByUs
	}
	var first *rule.Refusal
	var good []netip.AddrPort
	for _, a := range addrs {
		if ref := judge(a); ref == nil {
			good = append(good, netip.AddrPortFrom(a, port))
		} else if first == nil {
			first = ref
		}
	}
	switch {
	case len(good) == 0 && first != nil:
		return Flow{}, first
	case len(good) == 0:
		return Flow{}, fmt.Errorf("resolve %s: no address", n)
	}
	conn, addr, err := d.race(ctx, good)
	if err != nil {
		return Flow{}, fmt.Errorf("dial %s: %w", n, err)
	}
	return Flow{Conn: conn, Addr: addr, By: by}, nil
}

// Address opens a connection to an address that the operator listed.
func (d *Dialer) Address(ctx context.Context, to netip.AddrPort) (Flow, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout())
	defer cancel()
	if d.Proxy != nil && !d.Proxy.exceptsAddr(to.Addr()) {
		conn, err := d.Proxy.connect(ctx, d.dialer(), to.String())
		return Flow{Conn: conn, Addr: to, By: ByRule}, err
	}
	conn, err := d.dialer().DialContext(ctx, "tcp", to.String())
	if err != nil {
		return Flow{}, fmt.Errorf("dial %s: %w", to, err)
	}
	return Flow{Conn: conn, Addr: to, By: ByRule}, nil
}

// Again opens one more connection to where an earlier one went: to the same
// address, or by the proxy when addr is not valid.
func (d *Dialer) Again(ctx context.Context, n rule.Name, port uint16, addr netip.Addr) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout())
	defer cancel()
	if !addr.IsValid() {
		if d.Proxy == nil {
			return nil, fmt.Errorf("dial %s: it has no address and there is no proxy", n)
		}
		return d.Proxy.connect(ctx, d.dialer(), net.JoinHostPort(string(n), strconv.Itoa(int(port))))
	}
	conn, err := d.dialer().DialContext(ctx, "tcp", netip.AddrPortFrom(addr, port).String())
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", n, err)
	}
	return conn, nil
}

func (d *Dialer) timeout() time.Duration {
	if d.Timeout > 0 {
		return d.Timeout
	}
	return defaultTimeout
}

func (d *Dialer) dialer() ContextDialer {
	if d.Dialer != nil {
		return d.Dialer
	}
	return &net.Dialer{}
}

// lookup finds at most maxAddrs addresses, the two families in turn. An IPv4
// address in IPv6 form is what some resolvers mean by an IPv4 address, and the
// judge is asked about what is dialled.
func (d *Dialer) lookup(ctx context.Context, n rule.Name) ([]netip.Addr, error) {
	r := d.Resolver
	if r == nil {
		r = net.DefaultResolver
	}
	// The dot keeps the machine's search list out of it.
	found, err := r.LookupNetIP(ctx, "ip", string(n)+".")
	if err != nil {
		return nil, err
	}
	var v4, v6, out []netip.Addr
	for _, a := range found {
		if a = a.Unmap(); a.Is4() {
			v4 = append(v4, a)
		} else {
			v6 = append(v6, a)
		}
	}
	for i := range max(len(v4), len(v6)) {
		if i < len(v4) {
			out = append(out, v4[i])
		}
		if i < len(v6) {
			out = append(out, v6[i])
		}
	}
	return out[:min(len(out), maxAddrs)], nil
}

type attempt struct {
	conn net.Conn
	addr netip.AddrPort
	err  error
}

// race dials the addresses, each a little after the one before or when that one
// failed, and keeps the first connection. It returns when no attempt is left.
func (d *Dialer) race(ctx context.Context, addrs []netip.AddrPort) (net.Conn, netip.AddrPort, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan attempt)
	dial := func(to netip.AddrPort) {
		conn, err := d.dialer().DialContext(ctx, "tcp", to.String())
		results <- attempt{conn, to, err}
	}
	var won attempt
	var failed []error
	next, running := 0, 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for won.conn == nil && (next < len(addrs) || running > 0) {
		select {
		case <-timer.C:
			if next < len(addrs) {
				go dial(addrs[next])
				next, running = next+1, running+1
				timer.Reset(headStart)
			}
		case a := <-results:
			running--
			if a.err == nil {
				won = a
				break
			}
			failed = append(failed, a.err)
			timer.Reset(0)
		}
	}
	cancel()
	for ; running > 0; running-- {
		if a := <-results; a.err == nil {
			a.conn.Close()
		}
	}
	if won.conn == nil {
		return nil, netip.AddrPort{}, errors.Join(failed...)
	}
	return won.conn, won.addr, nil
}
