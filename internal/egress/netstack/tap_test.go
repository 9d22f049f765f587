//go:build linux

package netstack

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// tap carries frames between two pairs and keeps them.
type tap struct {
	t       testing.TB
	mu      sync.Mutex
	toGuest [][]byte
	toUs    [][]byte
	wg      sync.WaitGroup
	ends    []*os.File
}

func (p *tap) between(ours, mid1 *os.File) (*os.File, *os.File) {
	mid2, theirs, err := Pair()
	if err != nil {
		p.t.Fatal(err)
	}
	p.ends = []*os.File{mid1, mid2}
	carry := func(from, to *os.File, keep *[][]byte) {
		buf := make([]byte, 1<<16)
		for {
			n, err := from.Read(buf)
			if n == 0 || err != nil {
				break
			}
			p.mu.Lock()
			*keep = append(*keep, slices.Clone(buf[:n]))
			p.mu.Unlock()
			if _, err := to.Write(buf[:n]); err != nil {
				break
			}
		}
		for _, f := range p.ends {
			raw, err := f.SyscallConn()
			if err == nil {
				raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RDWR) })
			}
		}
	}
	p.wg.Go(func() { carry(mid1, mid2, &p.toGuest) })
	p.wg.Go(func() { carry(mid2, mid1, &p.toUs) })
	return ours, theirs
}

// wait ends the tap once both links did.
func (p *tap) wait() {
	p.wg.Wait()
	for _, f := range p.ends {
		f.Close()
	}
}

// sendUDP sends a datagram and returns the error that comes back for it.
func (h *fixture) sendUDP(to netip.AddrPort) tcpip.Error {
	h.t.Helper()
	var q waiter.Queue
	ep, err := h.guest.NewEndpoint(udp.ProtocolNumber, ipv4.ProtocolNumber, &q)
	if err != nil {
		h.t.Fatal(err)
	}
	defer ep.Close()
	if err := ep.Connect(tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4(to.Addr().As4()), Port: to.Port()}); err != nil {
		h.t.Fatal(err)
	}
	entry, came := waiter.NewChannelEntry(waiter.EventErr)
	q.EventRegister(&entry)
	defer q.EventUnregister(&entry)
	if _, err := ep.Write(strings.NewReader("initial"), tcpip.WriteOptions{}); err != nil {
		h.t.Fatal(err)
	}
	select {
	case <-came:
		return ep.LastError()
	case <-time.After(time.Minute):
		return nil
	}
}
