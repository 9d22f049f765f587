//go:build linux

package gvisor

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// linkName is what the link is called inside.
const linkName = "eth0"

// networkArgs describe the sandbox's devices: its loopback and, where there is one,
// the link.
func networkArgs(l *engine.Link) *network {
	args := linkArgs(l)
	args.LoopbackLinks = []loopbackLink{loopback()}
	return args
}

// linkArgs describe the link, where there is one. What the loopback does not take goes to the link's other end, whose
// hardware address is told beforehand. No address of IPv6 is on the link and no
// route of it leads there.
func linkArgs(l *engine.Link) *network {
	args := &network{}
	if l == nil {
		return args
	}
	gateway := net.IP(l.Gateway.AsSlice())
	args.FilePayload = urpc.FilePayload{Files: []*os.File{l.Guest}}
	args.FDLinks = []fdLink{{
		Name: linkName, MTU: l.MTU, NumChannels: 1, LinkAddress: l.MAC,
		Addresses: []address{{Address: net.IP(l.Address.Addr().AsSlice()), PrefixLen: l.Address.Bits()}},
		Routes: []route{{Destination: net.IPNet{
			IP: net.IP(l.Address.Masked().Addr().AsSlice()), Mask: net.CIDRMask(l.Address.Bits(), 32),
		}}},
		Neighbors: []neighbor{{IP: gateway, HardwareAddr: l.GatewayMAC}},
		// Nothing between the two ends can change a byte.
		RXChecksumOffload: true, TXChecksumOffload: true,
	}}
	args.Defaultv4Gateway = defaultRoute{
		Name:  linkName,
		Route: route{Destination: net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, Gateway: gateway},
	}
	return args
}

// holdFar gives the sentry the far end of the link, to hold and not to use. Without
// it a link without another holder would be closed, which the sentry's network
// stack reads as empty frames in an endless loop.
func (c *creation) holdFar() error {
	if c.plan.Link == nil {
		return nil
	}
	far, err := duplicateLink(c.plan.Link.Far)
	if err != nil {
		return err
	}
	c.sentry.add(far)
	return nil
}

func duplicateLink(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(pidfd.RawFD(f), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("duplicate link: %w", err)
	}
	return os.NewFile(uintptr(fd), "link"), nil
}
