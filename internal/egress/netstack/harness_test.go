//go:build linux

package netstack

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/egress/resolver"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/egress/upstream"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// TestMain fails when goroutines of the package under test are left.
func TestMain(m *testing.M) {
	code := m.Run()
	for range 200 {
		buf := make([]byte, 1<<20)
		buf = buf[:runtime.Stack(buf, true)]
		if !strings.Contains(string(buf), "internal/egress.") && !strings.Contains(string(buf), "internal/egress/netstack.(*") {
			os.Exit(code)
		}
		runtime.Gosched()
		time.Sleep(10 * time.Millisecond) // the goroutines of others have no other signal
	}
	buf := make([]byte, 1<<20)
	fmt.Fprintf(os.Stderr, "goroutines are left:\n%s\n", buf[:runtime.Stack(buf, true)])
	os.Exit(1)
}

// names is a resolver that knows what it is told and counts what it is asked.
type names struct {
	mu    sync.Mutex
	addrs map[string][]netip.Addr
	asked []string
}

func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, host)
	if a, ok := n.addrs[strings.TrimSuffix(host, ".")]; ok {
		return a, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// ports is a dialer that leads each port of loopback somewhere else, and counts.
type ports struct {
	mu     sync.Mutex
	to     map[string]string
	dialed []string
}

func (p *ports) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	p.mu.Lock()
	p.dialed = append(p.dialed, address)
	if to, ok := p.to[address]; ok {
		address = to
	}
	p.mu.Unlock()
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

// log is an observer that keeps everything.
type log struct {
	mu      sync.Mutex
	opened  []egress.Flow
	closed  []egress.Flow
	refused []egress.Refused
	changed chan struct{}
}

func (l *log) note(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *log) Opened(f egress.Flow)     { l.note(func() { l.opened = append(l.opened, f) }) }
func (l *log) Closed(f egress.Flow)     { l.note(func() { l.closed = append(l.closed, f) }) }
func (l *log) Refused(r egress.Refused) { l.note(func() { l.refused = append(l.refused, r) }) }

// wait waits until ok, which is called under the lock.
func (l *log) wait(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		l.mu.Lock()
		good, changed := ok(), l.changed
		l.mu.Unlock()
		if good {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("waited for %s: opened %v closed %v refused %v", what, l.opened, l.closed, l.refused)
		}
	}
}

// fixture is a gateway with one link, and a sandbox's stack at its other end.
type fixture struct {
	t       testing.TB
	gateway *Gateway
	link    *Link
	gate    *egress.Gate
	names   *names
	ports   *ports
	log     *log
	theirs  *os.File
	guest   *stack.Stack
	table   *resolver.Table
	ended   sync.Once
}

type fixtureOptions struct {
	rules  []string
	limits egress.Limits
	idle   time.Duration
	proxy  *upstream.Proxy
	own    func(netip.Addr) bool
	// tap, where set, stands between the two ends.
	tap func(ours, theirs *os.File) (*os.File, *os.File)
}

func compile(t testing.TB, rules ...string) *rule.Set {
	t.Helper()
	var out []rule.Rule
	for _, s := range rules {
		r, err := rule.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	set, err := rule.Compile(out)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func build(t testing.TB, o fixtureOptions) *fixture {
	t.Helper()
	h := &fixture{
		t: t, names: &names{addrs: map[string][]netip.Addr{}}, ports: &ports{to: map[string]string{}}, log: &log{changed: make(chan struct{})},
	}
	var err error
	if h.table, err = resolver.NewTable(nil, nil); err != nil {
		t.Fatal(err)
	}
	if o.own == nil {
		o.own = func(netip.Addr) bool { return false }
	}
	h.gate = egress.New(t.Context(), egress.Options{
		Rules: compile(t, o.rules...), Table: h.table, Observer: h.log, Limits: o.limits, Own: o.own,
		Upstream: &upstream.Dialer{Resolver: h.names, Dialer: h.ports, Proxy: o.proxy},
	})
	if h.gateway, err = New(t.Context(), Options{Idle: o.idle}); err != nil {
		t.Fatal(err)
	}
	ours, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	if o.tap != nil {
		ours, theirs = o.tap(ours, theirs)
	}
	h.theirs = theirs
	if h.link, err = h.gateway.Open(ours, h.gate, nil); err != nil {
		t.Fatal(err)
	}
	h.guest = guestStack(t, theirs)
	t.Cleanup(func() {
		h.end()
		if err := h.gateway.Close(); err != nil {
			t.Error(err)
		}
		theirs.Close()
	})
	return h
}

// end ends the sandbox and then its link, as daemons do. The other way round the
// sandbox's end would read nothing without rest, for a pair whose other end is
// closed always has nothing to read.
func (h *fixture) end() {
	h.ended.Do(func() {
		h.guest.Destroy()
		if err := h.link.Close(); err != nil {
			h.t.Error(err)
		}
	})
}

// guestStack is what a sandbox has at its end: the same stack, with the link
// endpoint that engines use.
func guestStack(t testing.TB, theirs *os.File) *stack.Stack {
	t.Helper()
	plan := DefaultPlan()
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	ep, err := fdbased.New(&fdbased.Options{
		FDs: []int{int(theirs.Fd())}, MTU: uint32(plan.MTU), EthernetHeader: true, Address: tcpip.LinkAddress(plan.GuestMAC),
		PacketDispatchMode: fdbased.RecvMMsg, RXChecksumOffload: true, TXChecksumOffload: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	fail := func(err tcpip.Error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	fail(s.CreateNIC(1, ep))
	fail(s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{
		Address: tcpip.AddrFrom4(plan.Guest.Addr().As4()), PrefixLen: plan.Guest.Bits(),
	}}, stack.AddressProperties{}))
	gw := tcpip.AddrFrom4(plan.Gateway.As4())
	fail(s.AddStaticNeighbor(1, ipv4.ProtocolNumber, gw, tcpip.LinkAddress(plan.GatewayMAC)))
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, Gateway: gw, NIC: 1}})
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: 1 << 20, Max: 4 << 20}
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: 1 << 20, Max: 4 << 20}
	fail(s.SetTransportProtocolOption(tcp.ProtocolNumber, &snd))
	fail(s.SetTransportProtocolOption(tcp.ProtocolNumber, &rcv))
	return s
}

// serve runs f for each connection to a server on loopback to which name at port
// leads, and returns when it listens.
func (h *fixture) serve(name string, port uint16, f func(net.Conn)) {
	h.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				f(c)
			})
		}
	})
	h.t.Cleanup(func() { l.Close(); h.end(); wg.Wait() })
	h.route(name, port, l.Addr().String())
}

// route leads name at port to where; the real address seems to be a public one.
func (h *fixture) route(name string, port uint16, where string) {
	h.names.mu.Lock()
	real := netip.AddrFrom4([4]byte{93, 184, 215, byte(len(h.names.addrs) + 1)})
	if a := h.names.addrs[name]; a != nil {
		real = a[0]
	}
	h.names.addrs[name] = []netip.Addr{real}
	h.names.mu.Unlock()
	h.ports.mu.Lock()
	defer h.ports.mu.Unlock()
	h.ports.to[netip.AddrPortFrom(real, port).String()] = where
}

// dial connects from inside the sandbox.
func (h *fixture) dial(to netip.AddrPort) (*gonet.TCPConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return gonet.DialContextTCP(ctx, h.guest, tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4(to.Addr().As4()), Port: to.Port()}, ipv4.ProtocolNumber)
}

// dialName asks for a name and connects to what it got.
func (h *fixture) dialName(name string, port uint16) (*gonet.TCPConn, error) {
	h.t.Helper()
	addr, err := h.lookup(name)
	if err != nil {
		return nil, err
	}
	return h.dial(netip.AddrPortFrom(addr, port))
}

// lookup asks our resolver, as a Go program inside would.
func (h *fixture) lookup(name string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	addrs, err := h.resolver("udp").LookupNetIP(ctx, "ip4", name+".")
	if err != nil {
		return netip.Addr{}, err
	}
	return addrs[0].Unmap(), nil
}

func (h *fixture) resolver(network string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		to := tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4(DefaultPlan().Gateway.As4()), Port: 53}
		if network == "tcp" {
			return gonet.DialContextTCP(ctx, h.guest, to, ipv4.ProtocolNumber)
		}
		return gonet.DialUDP(h.guest, nil, &to, ipv4.ProtocolNumber)
	}}
}
