//go:build linux

// Package netstack brings the packets of sandboxes to their gates: one end of a
// socketpair that carries Ethernet frames, and behind it, while there is
// something to do, a TCP/IP stack of our own.
package netstack

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/cloche-dev/cloche/internal/egress/rule"
	"golang.org/x/sys/unix"
)

// Plan is what a link looks like from inside a sandbox. It is the same for every
// sandbox: no two share a link.
type Plan struct {
	// Guest is the address of the sandbox in its network, Gateway the route to
	// everything and the address of the resolver, by UDP and TCP at port 53.
	Guest   netip.Prefix
	Gateway netip.Addr
	// GuestMAC and GatewayMAC are fixed, so neither side has to ask.
	GuestMAC, GatewayMAC net.HardwareAddr
	// MTU is the largest IP packet, in bytes. A frame has 14 more.
	MTU int
}

// bits leave two addresses. For each neighbour that a sandbox asks for, the host's kernel has
// an entry in a table of the whole machine.
const bits = 30

// DefaultPlan is the plan of every link.
func DefaultPlan() Plan {
	wire := rule.Wire()
	gateway := wire.Addr().Next()
	return Plan{
		Guest: netip.PrefixFrom(gateway.Next(), bits), Gateway: gateway,
		GuestMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, GatewayMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		// Large packets are what makes a link fast: each costs as much as a small one.
		MTU: 65000,
	}
}

// socketBuffer is how many bytes may lie in one direction of a pair. Without the
// right to force it the machine's maximum holds, and large transfers are slower.
const socketBuffer = 4 << 20

// Pair makes the two ends of a link. Both are the caller's: ours goes to
// Gateway.Open, theirs to an engine.
func Pair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make link: %w", err)
	}
	for _, fd := range fds {
		for _, opt := range [][2]int{{unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}, {unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}} {
			if unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt[0], socketBuffer) != nil {
				_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt[1], socketBuffer) // as much as there is
			}
		}
	}
	return os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link of a sandbox"), nil
}
