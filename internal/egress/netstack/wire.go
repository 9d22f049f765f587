//go:build linux

package netstack

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/internal/egress"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	nic     = 1
	dnsPort = 53
	// maxOpening is how many connections may be between their first packet and
	// their answer; the first packets of more are dropped, and are sent again.
	maxOpening = 256
	// maxQuestion is the longest DNS question by UDP.
	maxQuestion = 4096
	// How long the stack remembers a connection that was closed. A sandbox may use
	// its port again at once, and would not be answered meanwhile.
	timeWait = 20 * time.Millisecond
	finWait  = 10 * time.Second
	// synRetries bounds how long a sandbox may leave our answer to its first packet
	// unanswered: some seven seconds.
	synRetries = 2
)

// wire is the stack of one link while it is awake.
type wire struct {
	gate    *egress.Gate
	journal *Journal
	gateway netip.Addr
	stack   *stack.Stack
	dns     *gonet.UDPConn
	conns   atomic.Int64 // that were accepted and are not closed

	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup // of connections and of the resolver
}

// newWire makes the stack over ep and starts to answer. Nothing is received
// before a call of ep.receive.
func newWire(plan Plan, ep *endpoint, gate *egress.Gate, journal *Journal) (*wire, error) {
	w := &wire{gate: gate, journal: journal, gateway: plan.Gateway, stack: stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})}
	if err := w.configure(plan, ep); err != nil {
		w.stack.Destroy()
		return nil, fmt.Errorf("make stack of link: %s", err)
	}
	var err error
	w.dns, err = gonet.DialUDP(w.stack, &tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4(plan.Gateway.As4()), Port: dnsPort}, nil, ipv4.ProtocolNumber)
	if err != nil {
		w.stack.Destroy()
		return nil, fmt.Errorf("make resolver of link: %w", err)
	}
	w.wg.Go(w.serveDNS)
	return w, nil
}

// configure makes the stack own every address: whatever a sandbox connects to is
// ours to answer.
func (w *wire) configure(plan Plan, ep *endpoint) tcpip.Error {
	s := w.stack
	if err := s.CreateNIC(nic, ep); err != nil {
		return err
	}
	ours := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{
		Address: tcpip.AddrFrom4(plan.Gateway.As4()), PrefixLen: plan.Guest.Bits(),
	}}
	if err := s.AddProtocolAddress(nic, ours, stack.AddressProperties{}); err != nil {
		return err
	}
	if err := s.SetPromiscuousMode(nic, true); err != nil {
		return err
	}
	if err := s.SetSpoofing(nic, true); err != nil {
		return err
	}
	s.SetRouteTable([]tcpip.Route{{Destination: ours.AddressWithPrefix.Subnet(), NIC: nic}})
	if err := s.AddStaticNeighbor(nic, ipv4.ProtocolNumber, tcpip.AddrFrom4(plan.Guest.Addr().As4()), tcpip.LinkAddress(plan.GuestMAC)); err != nil {
		return err
	}
	// A sandbox that does not read can make us hold one buffer for each flow; narrow
	// bounds them all together. What was closed is not remembered for long: no packet
	// is late on this wire.
	const buf = 512 << 10
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(true)
	timeWait, linger, syns := tcpip.TCPTimeWaitTimeoutOption(timeWait), tcpip.TCPLingerTimeoutOption(finWait), tcpip.TCPSynRetriesOption(synRetries)
	for _, o := range []tcpip.SettableTransportProtocolOption{
		&tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: buf, Max: 2 * buf},
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: buf, Max: 2 * buf},
		&sack, &moderate, &timeWait, &linger, &syns,
	} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return err
		}
	}
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(s, 0, maxOpening, w.connect).HandlePacket)
	s.SetTransportProtocolHandler(udp.ProtocolNumber, w.datagram)
	return nil
}

// close ends every connection and waits until nothing of the stack is left. The
// flows of the gate end because their connections do, those that are dialling
// when the gate ends them.
func (w *wire) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.dns.Close()
	// An opening that was begun before may put its endpoint into the stack after
	// this; left alone it would wait minutes for an answer to its SYN-ACK.
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		w.wg.Wait()
	}()
	for again := time.NewTicker(closeAgain); ; {
		w.stack.Close()
		select {
		case <-idle:
			again.Stop()
			w.stack.Destroy()
			return
		case <-again.C:
		}
	}
}

// closeAgain is how often a stack is closed until all that it served is over.
const closeAgain = 20 * time.Millisecond

// begin counts one connection in, unless the wire is closing.
func (w *wire) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.wg.Add(1)
	return true
}

// connect is called for each first packet of a connection, on a goroutine of its
// own.
func (w *wire) connect(r *tcp.ForwarderRequest) {
	if !w.begin() {
		r.Complete(false)
		return
	}
	defer w.wg.Done()
	id := r.ID()
	to := netip.AddrPortFrom(netip.AddrFrom4(id.LocalAddress.As4()), id.LocalPort)
	o := &opening{r, w}
	if to == netip.AddrPortFrom(w.gateway, dnsPort) {
		w.gate.ServeDNS(o)
		return
	}
	defer w.journal.begin(tuple{id.RemotePort, to})()
	w.gate.Connect(to, o)
}

// datagram is called for datagrams that are not for the resolver. The stack goes on to
// answer it with "port unreachable", so that a client falls back at once.
func (w *wire) datagram(id stack.TransportEndpointID, _ *stack.PacketBuffer) bool {
	w.gate.Datagram(netip.AddrPortFrom(netip.AddrFrom4(id.LocalAddress.As4()), id.LocalPort))
	return false
}

func (w *wire) serveDNS() {
	buf := make([]byte, maxQuestion)
	for {
		n, from, err := w.dns.ReadFrom(buf)
		if err != nil {
			return
		}
		if a := w.gate.Answer(buf[:n]); a != nil {
			_, _ = w.dns.WriteTo(a, from) // a lost answer is asked for again
		}
	}
}

// opening is a connection of the stack that was not answered yet.
type opening struct {
	r    *tcp.ForwarderRequest
	wire *wire
}

// Accept implements egress.Opening.
func (o *opening) Accept() (egress.Conn, error) {
	var q waiter.Queue
	ep, err := o.r.CreateEndpoint(&q)
	if err != nil {
		o.r.Complete(true)
		return nil, fmt.Errorf("accept connection: %s", err)
	}
	o.r.Complete(false)
	narrow(ep, o.wire.conns.Add(1))
	return &conn{TCPConn: gonet.NewTCPConn(&q, ep), ep: ep, wire: o.wire}, nil
}

// Refuse implements egress.Opening.
func (o *opening) Refuse() { o.r.Complete(true) }

const (
	// wide is how many connections of a sandbox have full buffers. Those after
	// them share about as much again, so that a sandbox can make the daemon hold tens of
	// megabytes and not hundreds.
	wide = 16
	// shared is the size of the buffers of both directions that is divided.
	shared = 8 << 20
)

// narrow bounds what is held for the nth connection at once.
func narrow(ep tcpip.Endpoint, n int64) {
	if n <= wide {
		return
	}
	ep.SocketOptions().SetSendBufferSize(shared/n, true)
	ep.SocketOptions().SetReceiveBufferSize(shared/n, true)
}

// conn is a connection of the stack.
type conn struct {
	*gonet.TCPConn
	ep     tcpip.Endpoint
	wire   *wire
	closed atomic.Bool
}

// Reset implements egress.Conn.
func (c *conn) Reset() { c.ep.Abort() }

// Close implements net.Conn.
func (c *conn) Close() error {
	if !c.closed.Swap(true) {
		c.wire.conns.Add(-1)
	}
	return c.TCPConn.Close()
}
