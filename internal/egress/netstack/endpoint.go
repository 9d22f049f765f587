//go:build linux

package netstack

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/cloche-dev/cloche/internal/poll"
)

// endpoint is the link layer of a stack over our end of a pair. It starts no
// goroutine: who owns it calls receive.
type endpoint struct {
	plan Plan
	raw  syscall.RawConn
	// dispatcher is nil while the endpoint is not attached.
	dispatcher atomic.Pointer[stack.NetworkDispatcher]
}

func newEndpoint(plan Plan, raw syscall.RawConn) *endpoint { return &endpoint{plan: plan, raw: raw} }

var errGone = errors.New("the other end of the link is gone")

// receive reads one frame into buf and hands it to the stack. It waits until
// there is one; a deadline of the file ends the wait with an error. The pool that
// the packet's memory is from is the stack's own.
func (e *endpoint) receive(buf []byte) error {
	var n int
	var err error
	waited := e.raw.Read(func(fd uintptr) bool {
		for {
			n, err = receiveNow(int(fd), buf)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if err == nil && n == 0 && hungUp(int(fd)) {
			err = errGone
		}
		return !errors.Is(err, unix.EAGAIN)
	})
	switch {
	case waited != nil:
		return waited
	case errors.Is(err, unix.ECONNRESET):
		return errGone
	case err != nil:
		return os.NewSyscallError("recvfrom", err)
	}
	e.deliver(buf[:n])
	return nil
}

// receiveNow reads one frame that is there. Whether the socket waits is not left to its
// flags: they are of the description, which others hold too, an OCI runtime and the agent
// among them, and who clears them must not keep a thread of the daemon.
func receiveNow(fd int, buf []byte) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// deliver hands a copy of frame to the stack. The copy is as large as the frame,
// so that small frames cannot hold large buffers.
func (e *endpoint) deliver(frame []byte) {
	proto := header.IPv4ProtocolNumber
	switch e.plan.sort(frame) {
	case drop:
		return
	case neighbour:
		proto = header.ARPProtocolNumber
	}
	d := e.dispatcher.Load()
	if d == nil {
		return
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame)})
	defer pkt.DecRef()
	if _, ok := pkt.LinkHeader().Consume(etherHeader); !ok {
		return
	}
	pkt.NetworkProtocolNumber = proto
	pkt.RXChecksumValidated = true // nothing between the two ends can change a byte
	(*d).DeliverNetworkPacket(proto, pkt)
}

// hungUp tells a closed pair from an empty frame.
func hungUp(fd int) bool {
	gone, err := poll.HungUp(fd, 0)
	return gone || err != nil
}

// WritePackets implements stack.LinkWriter. What does not fit in the pair is
// dropped, as on any wire; TCP sends it again.
func (e *endpoint) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	var sent int
	var fail tcpip.Error
	err := e.raw.Write(func(fd uintptr) bool {
		for _, pkt := range pkts.AsSlice() {
			_, err := unix.SendmsgBuffers(int(fd), pkt.AsSlices(), nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if err != nil {
				fail = &tcpip.ErrNoBufferSpace{}
				if !errors.Is(err, unix.EAGAIN) {
					fail = &tcpip.ErrClosedForSend{}
				}
				break
			}
			sent++
		}
		return true
	})
	if err != nil {
		return sent, &tcpip.ErrClosedForSend{}
	}
	if sent > 0 {
		return sent, nil
	}
	return 0, fail
}

// Attach implements stack.NetworkLinkEndpoint.
func (e *endpoint) Attach(d stack.NetworkDispatcher) {
	if d == nil {
		e.dispatcher.Store(nil)
		return
	}
	e.dispatcher.Store(&d)
}

// IsAttached implements stack.NetworkLinkEndpoint.
func (e *endpoint) IsAttached() bool { return e.dispatcher.Load() != nil }

// MTU implements stack.NetworkLinkEndpoint.
func (e *endpoint) MTU() uint32 { return uint32(e.plan.MTU) }

// SetMTU implements stack.NetworkLinkEndpoint; the plan stands.
func (e *endpoint) SetMTU(uint32) {}

// MaxHeaderLength implements stack.NetworkLinkEndpoint.
func (e *endpoint) MaxHeaderLength() uint16 { return etherHeader }

// LinkAddress implements stack.NetworkLinkEndpoint.
func (e *endpoint) LinkAddress() tcpip.LinkAddress { return tcpip.LinkAddress(e.plan.GatewayMAC) }

// SetLinkAddress implements stack.NetworkLinkEndpoint; the plan stands.
func (e *endpoint) SetLinkAddress(tcpip.LinkAddress) {}

// Capabilities implements stack.NetworkLinkEndpoint.
func (e *endpoint) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload | stack.CapabilityTXChecksumOffload | stack.CapabilityResolutionRequired
}

// ARPHardwareType implements stack.NetworkLinkEndpoint.
func (e *endpoint) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }

// AddHeader implements stack.NetworkLinkEndpoint.
func (e *endpoint) AddHeader(pkt *stack.PacketBuffer) {
	header.Ethernet(pkt.LinkHeader().Push(etherHeader)).Encode(&header.EthernetFields{
		SrcAddr: pkt.EgressRoute.LocalLinkAddress, DstAddr: pkt.EgressRoute.RemoteLinkAddress, Type: pkt.NetworkProtocolNumber,
	})
}

// ParseHeader implements stack.NetworkLinkEndpoint.
func (e *endpoint) ParseHeader(pkt *stack.PacketBuffer) bool {
	_, ok := pkt.LinkHeader().Consume(etherHeader)
	return ok
}

// Wait implements stack.NetworkLinkEndpoint.
func (e *endpoint) Wait() {}

// Close implements stack.NetworkLinkEndpoint; the file is its owner's.
func (e *endpoint) Close() {}

// SetOnCloseAction implements stack.NetworkLinkEndpoint.
func (e *endpoint) SetOnCloseAction(func()) {}
