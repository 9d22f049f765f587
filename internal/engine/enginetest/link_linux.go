package enginetest

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/poll"
)

// link makes a link; both ends are closed with the test.
func (s *suite) link() *engine.Link {
	s.Helper()
	s.need("egress")
	return s.makeLink()
}

// makeLink makes a link also for an engine that cannot use it.
func (s *suite) makeLink() *engine.Link {
	s.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		s.Fatal(err)
	}
	l := &engine.Link{
		Far: os.NewFile(uintptr(fds[0]), "far"), Guest: os.NewFile(uintptr(fds[1]), "guest"),
		Address: netip.MustParsePrefix("10.88.0.2/24"), Gateway: netip.MustParseAddr("10.88.0.1"),
		MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, GatewayMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, MTU: 9000,
	}
	s.Cleanup(func() {
		l.Far.Close()
		l.Guest.Close()
	})
	return l
}

// syn is the first packet of a connection of IPv4.
type syn struct {
	from, to netip.AddrPort
	seq      uint32
}

// nextSYN reads frames until one begins a connection. What an instance may send is
// IPv4 and ARP alone.
func (s *suite) nextSYN(far *os.File) syn {
	s.Helper()
	if err := far.SetReadDeadline(time.Now().Add(patience / 2)); err != nil {
		s.Fatal(err)
	}
	buf := make([]byte, 1<<16)
	for {
		n, err := far.Read(buf)
		if err != nil {
			s.Fatalf("wait for a frame: %v", err)
		}
		f := buf[:n]
		if n < 14+20 {
			s.Fatalf("a frame of %d bytes", n)
		}
		kind := binary.BigEndian.Uint16(f[12:])
		if kind != 0x0800 && kind != 0x0806 {
			s.Errorf("a frame of the kind %#x", kind)
		}
		if ip := f[14:]; kind == 0x0800 && ip[9] == unix.IPPROTO_TCP && ip[20+13]&0x12 == 2 {
			addr := func(b []byte, port []byte) netip.AddrPort {
				return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b)), binary.BigEndian.Uint16(port))
			}
			return syn{addr(ip[12:16], ip[20:]), addr(ip[16:20], ip[22:]), binary.BigEndian.Uint32(ip[24:])}
		}
	}
}

// reset is the answer that refuses a connection.
func (c syn) reset(l *engine.Link) []byte {
	tcp := make([]byte, 20)
	binary.BigEndian.PutUint16(tcp, c.to.Port())
	binary.BigEndian.PutUint16(tcp[2:], c.from.Port())
	binary.BigEndian.PutUint32(tcp[8:], c.seq+1)
	tcp[12], tcp[13] = 5<<4, 0x14 // RST and ACK; the instance need not look at the sum
	ip := []byte{0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, unix.IPPROTO_TCP, 0, 0}
	ip = append(append(ip, c.to.Addr().AsSlice()...), c.from.Addr().AsSlice()...)
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	return slices.Concat(l.MAC, l.GatewayMAC, []byte{0x08, 0x00}, ip, tcp)
}

// testLink sees packets go out and come in, and the link end with the instance.
func testLink(s *suite) {
	l := s.link()
	i, _ := s.create(func(p *engine.Plan) { p.Link = l })
	l.Guest.Close()
	ifaces := s.exec(i, Inside, "interfaces")
	lines := strings.Split(strings.TrimSpace(ifaces), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "lo ") || !strings.HasSuffix(lines[1], " [10.88.0.2/24]") {
		s.Errorf("the devices are not a loopback and the link:\n%s", ifaces)
	}
	for _, to := range []string{"10.99.0.1:7", "10.88.0.1:53"} {
		refused := make(chan Output, 1)
		go func() {
			o, err := Exec(s.ctx, i, Inside, "connect", to)
			if err != nil {
				o.Error = err.Error()
			}
			refused <- o
		}()
		got := s.nextSYN(l.Far)
		if got.to.String() != to || got.from.Addr() != l.Address.Addr() {
			s.Errorf("a connection to %s went from %s to %s", to, got.from, got.to)
		}
		if _, err := l.Far.Write(got.reset(l)); err != nil {
			s.Fatal(err)
		}
		if o := <-refused; o.Code == 0 || !strings.Contains(string(o.Output)+o.Error, "refused") {
			s.Errorf("a connection that was reset: %+v", o)
		}
	}
	s.close(i)
	s.hungUp(l.Far)
}

// hungUp waits for the end of a link.
func (s *suite) hungUp(far *os.File) {
	s.Helper()
	if gone, err := poll.HungUp(int(far.Fd()), 10*time.Second); !gone || err != nil {
		s.Errorf("the link is still there: %v", err)
	}
}

// testLinkEnds sees the link end when the instance is killed.
func testLinkEnds(s *suite) {
	l := s.link()
	i, _ := s.create(func(p *engine.Plan) { p.Link = l })
	l.Guest.Close()
	s.alive(i)
	s.Kill(s, i.State())
	s.done(i)
	s.hungUp(l.Far)
}

// testLinkAlone checks an instance whose link no other process holds any more. It loses its
// network, keeps running, and uses no CPU time for the link.
func testLinkAlone(s *suite) {
	l := s.link()
	i, _ := s.create(func(p *engine.Plan) { p.Link = l })
	l.Guest.Close()
	// What it is reading when the link is let go must not keep it from resting either.
	frame := syn{netip.MustParseAddrPort("10.88.0.2:7"), netip.MustParseAddrPort("10.88.0.1:7"), 0}.reset(l)
	for range 100 {
		if _, err := l.Far.Write(frame); err != nil {
			s.Fatal(err)
		}
	}
	l.Far.Close()
	if o, err := Exec(s.ctx, i, Inside, "connect", "10.99.0.1:7"); err != nil || o.Code == 0 {
		s.Errorf("a connection into nothing: %+v, %v", o, err)
	}
	s.alive(i)
	s.need("cpus") // without a cgroup there is no processor time to read
	before := s.stat(i)
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
	}
	if used := s.stat(i).CPU - before.CPU; used > 300*time.Millisecond {
		s.Errorf("it used %s of a second's processor time and had nothing to do", used)
	}
	s.alive(i)
}
