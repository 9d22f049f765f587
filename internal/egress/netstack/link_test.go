//go:build linux

package netstack

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/egress/upstream"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
)

func TestOpaqueFlowServerSpeaksFirst(t *testing.T) {
	h := build(t, fixtureOptions{rules: []string{"smtp.example.com:587"}})
	h.serve("smtp.example.com", 587, func(c net.Conn) {
		io.WriteString(c, "220 hello\r\n")
		b, _ := io.ReadAll(c)
		io.WriteString(c, "got "+string(b)) // after the other half is closed
	})
	c, err := h.dialName("smtp.example.com", 587)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 11)
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "220 hello\r\n" {
		t.Fatalf("greeting %q, %v", buf, err)
	}
	io.WriteString(c, "quit")
	c.CloseWrite()
	rest, err := io.ReadAll(c)
	if err != nil || string(rest) != "got quit" {
		t.Fatalf("after half-close %q, %v", rest, err)
	}
	h.log.wait(t, "the flow's record", func() bool { return len(h.log.closed) == 1 })
	f := h.log.closed[0]
	if f.Name != "smtp.example.com" || f.Port != 587 || f.BytesOut != 4 || f.BytesIn != 19 || f.Reason != "" ||
		f.Rule != "smtp.example.com:587" || f.Protocol != egress.Opaque || f.ResolvedBy != upstream.ByUs || f.Addr != netip.MustParseAddr("93.184.215.1") {
		t.Fatalf("record %+v", f)
	}
}

func TestLargeTransferBothWays(t *testing.T) {
	h := build(t, fixtureOptions{rules: []string{"echo.example.com:7"}})
	h.serve("echo.example.com", 7, func(c net.Conn) { io.Copy(c, c); c.(*net.TCPConn).CloseWrite() })
	c, err := h.dialName("echo.example.com", 7)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := make([]byte, 8<<20)
	rand.Read(want)
	go func() {
		c.Write(want)
		c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes came back, %v", len(got), err)
	}
}

// TestNothingLeaves looks at every frame on the link of a sandbox with an empty
// list, while it tries what a program would try.
func TestNothingLeaves(t *testing.T) {
	tap := &tap{t: t}
	h := build(t, fixtureOptions{tap: tap.between})
	for _, network := range []string{"udp", "tcp"} {
		_, err := h.resolver(network).LookupNetIP(t.Context(), "ip", "secret-data.example.com.")
		if err == nil {
			t.Fatalf("%s: a name was resolved", network)
		}
	}
	for _, to := range []string{"93.184.215.1:80", "169.254.169.254:80", "198.18.0.1:443", "10.88.0.1:80", "10.88.0.77:80", "8.8.8.8:53", "10.0.0.1:22"} {
		start := time.Now()
		if c, err := h.dial(netip.MustParseAddrPort(to)); err == nil {
			c.Close()
			t.Errorf("%s: connected", to)
		} else if took := time.Since(start); took > 3*time.Second {
			t.Errorf("%s: refused after %s, not at once", to, took)
		}
	}
	if len(h.names.asked) != 0 || len(h.ports.dialed) != 0 {
		t.Fatalf("asked %v, dialed %v", h.names.asked, h.ports.dialed)
	}
	h.end()
	tap.wait()
	plan := DefaultPlan()
	for _, f := range tap.toGuest {
		if len(f) < etherHeader+ipHeader || f[12] != 8 || f[13] != 0 {
			continue
		}
		ip := f[etherHeader:]
		src := netip.AddrFrom4([4]byte(ip[12:]))
		switch {
		case ip[9] == 6 && ip[ipHeader+13]&4 != 0: // RST
		case src == plan.Gateway && (ip[9] == 17 || ip[9] == 6): // our resolver
		default:
			t.Errorf("a frame to the sandbox: % x", f[:min(len(f), 60)])
		}
		if ip[9] == 17 && bytes.Contains(ip, []byte{198, 18}) {
			t.Errorf("an answer has an address in it: % x", ip)
		}
	}
	if len(tap.toGuest) == 0 || len(tap.toUs) == 0 {
		t.Fatal("the tap saw nothing")
	}
	h.log.wait(t, "refusals", func() bool { return len(h.log.refused) >= 6 })
	if len(h.log.opened)+len(h.log.closed) != 0 {
		t.Fatalf("flows %v %v", h.log.opened, h.log.closed)
	}
}

func TestAddressWithoutNameGoesNowhere(t *testing.T) {
	h := build(t, fixtureOptions{rules: []string{"*", "203.0.114.9:7000"}})
	h.serve("a.example.com", 80, func(c net.Conn) { io.Copy(io.Discard, c) })
	if _, err := h.lookup("a.example.com"); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"93.184.215.1:80", "198.18.0.2:80", "198.19.255.255:443", "203.0.114.9:7001"} {
		if c, err := h.dial(netip.MustParseAddrPort(to)); err == nil {
			c.Close()
			t.Errorf("%s: connected", to)
		}
	}
	h.log.wait(t, "refusals", func() bool { return len(h.log.refused) == 4 })
	for _, r := range h.log.refused {
		if r.Rule != rule.RuleAddress {
			t.Errorf("refusal %+v", r)
		}
	}
	// The listed one is dialled as it is.
	h.ports.mu.Lock()
	h.ports.to["203.0.114.9:7000"] = h.ports.to["93.184.215.1:80"]
	h.ports.mu.Unlock()
	c, err := h.dial(netip.MustParseAddrPort("203.0.114.9:7000"))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	h.log.wait(t, "the listed flow", func() bool { return len(h.log.closed) == 1 })
	if f := h.log.closed[0]; f.ResolvedBy != upstream.ByRule || f.Name != "" || f.Addr.String() != "203.0.114.9" {
		t.Errorf("record %+v", f)
	}
}

func TestUDPIsUnreachableAtOnce(t *testing.T) {
	h := build(t, fixtureOptions{rules: []string{"quic.example.com"}})
	addr, err := h.lookup("quic.example.com")
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []netip.AddrPort{netip.AddrPortFrom(addr, 443), netip.MustParseAddrPort("8.8.8.8:53")} {
		if _, ok := h.sendUDP(to).(*tcpip.ErrConnectionRefused); !ok {
			t.Errorf("%s: not refused", to)
		}
	}
	h.log.wait(t, "refusals", func() bool { return len(h.log.refused) == 2 })
	if r := h.log.refused[0]; r.Stage != egress.StageDatagram || r.Name != "quic.example.com" || r.Rule != rule.RuleProtocol {
		t.Errorf("refusal %+v", r)
	}
}

func TestLinkSleepsAndWakes(t *testing.T) {
	h := build(t, fixtureOptions{rules: []string{"a.example.com:7"}, idle: 50 * time.Millisecond})
	h.serve("a.example.com", 7, func(c net.Conn) { io.Copy(c, c) })
	if h.link.Awake() {
		t.Fatal("awake before the first packet")
	}
	for range 5 {
		c, err := h.dialName("a.example.com", 7)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 { // longer than idle, and the flow holds it awake
			io.WriteString(c, "x")
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			<-time.After(60 * time.Millisecond)
		}
		c.Close()
		for deadline := time.Now().Add(time.Minute); h.link.Awake(); <-time.After(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("still awake")
			}
		}
	}
}

func TestLinkIsDoneWhenTheOtherEndIsGone(t *testing.T) {
	for _, awake := range []bool{false, true} {
		h := build(t, fixtureOptions{})
		if awake {
			h.lookup("nothing.example.com")
		}
		h.guest.Destroy()
		h.theirs.Close()
		select {
		case <-h.link.Done():
		case <-time.After(time.Minute):
			t.Fatalf("awake %t: not done", awake)
		}
	}
}

// TestSignalsEndNoLink: a link that is there stays there, whatever signal interrupts the
// look at it. The runtime sends such signals to preempt goroutines.
func TestSignalsEndNoLink(t *testing.T) {
	ours, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer theirs.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var over atomic.Bool
	var wg sync.WaitGroup
	thread := unix.Gettid()
	wg.Go(func() {
		for !over.Load() {
			_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG)
		}
	})
	defer wg.Wait()
	defer over.Store(true)
	fd := int(ours.Fd())
	for range 200_000 {
		if hungUp(fd) {
			t.Fatal("an interrupted look at a link ends it")
		}
	}
}

// TestFewNeighbours: a sandbox can make the host's kernel look for no more than our end of
// its link. The kernel has one table of them for the machine, of 1,024 entries.
func TestFewNeighbours(t *testing.T) {
	p := DefaultPlan()
	if p.Guest.Bits() != 30 || !p.Guest.Contains(p.Gateway) {
		t.Errorf("the sandbox is %s in a network with %s", p.Guest, p.Gateway)
	}
	if wire := rule.Wire(); !wire.Contains(p.Guest.Addr()) || wire.Bits() > p.Guest.Bits() {
		t.Errorf("%s is not all of what is reserved for links, %s", p.Guest, wire)
	}
}
