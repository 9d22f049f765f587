//go:build linux

package netstack

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/egress/resolver"
)

// raw is a link whose other end is written by hand.
func raw(t *testing.T, rules ...string) (*Link, func(frame []byte), func()) {
	t.Helper()
	g, err := New(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	table, err := resolver.NewTable(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := g.Open(ours, egress.New(t.Context(), egress.Options{Rules: compile(t, rules...), Table: table}), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Address("a.org"); err != nil {
		t.Fatal(err)
	}
	write := func(frame []byte) {
		theirs.SetWriteDeadline(time.Now().Add(5 * time.Second))
		if _, err := theirs.Write(frame); err != nil {
			t.Fatal(err)
		}
	}
	return l, write, func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		theirs.Close()
	}
}

// tcpFrame is a TCP packet from the sandbox.
func tcpFrame(plan Plan, from uint16, to netip.AddrPort, flags byte) []byte {
	f := append([]byte(plan.GatewayMAC), plan.GuestMAC...)
	f = append(f, 8, 0)
	f = append(f, 0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0)
	f = append(f, plan.Guest.Addr().AsSlice()...)
	f = append(f, to.Addr().AsSlice()...)
	f = binary.BigEndian.AppendUint16(f, from)
	f = binary.BigEndian.AppendUint16(f, to.Port())
	f = append(f, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	return f
}

// TestCloseDoesNotWaitForTheSandbox: a first packet, and never an answer to ours.
func TestCloseDoesNotWaitForTheSandbox(t *testing.T) {
	l, write, closeAll := raw(t, "a.org")
	for port := range uint16(300) {
		write(tcpFrame(DefaultPlan(), 40000+port, netip.MustParseAddrPort("198.18.0.1:8080"), 2))
	}
	for deadline := time.Now().Add(time.Minute); l.Gate().Flows() == 0; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no connection came")
		}
	}
	start := time.Now()
	closeAll()
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("closing took %s", took)
	}
}

// TestCloseOfSocketThatWaits: an OCI runtime clears the flag of descriptors that it
// passes on, and so can the agent.
func TestCloseOfSocketThatWaits(t *testing.T) {
	l, write, closeAll := raw(t, "a.org")
	conn, err := l.file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := conn.Control(func(fd uintptr) { err = unix.SetNonblock(int(fd), false) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	write(tcpFrame(DefaultPlan(), 40000, netip.MustParseAddrPort("198.18.0.1:8080"), 2))
	for deadline := time.Now().Add(time.Minute); l.Gate().Flows() == 0; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no connection came")
		}
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		closeAll()
	}()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("closing waits for a frame")
		write(tcpFrame(DefaultPlan(), 40000, netip.MustParseAddrPort("198.18.0.1:8080"), 2)) // lets it go on
		<-closed
	}
}

func TestSort(t *testing.T) {
	p := DefaultPlan()
	good := tcpFrame(p, 1, netip.MustParseAddrPort("198.18.0.1:80"), 2)
	edit := func(at int, to ...byte) []byte {
		f := append([]byte(nil), good...)
		copy(f[at:], to)
		return f
	}
	for what, c := range map[string]struct {
		frame []byte
		want  kind
	}{
		"TCP":                {good, packet},
		"to the resolver":    {edit(30, 10, 88, 0, 1), packet},
		"UDP":                {edit(23, 17), packet},
		"SCTP":               {edit(23, 132), packet}, // the stack says that it is not spoken
		"ARP to all":         {append([]byte{255, 255, 255, 255, 255, 255}, edit(12, 8, 6)[6:]...), neighbour},
		"IPv4 to all":        {append([]byte{255, 255, 255, 255, 255, 255}, good[6:]...), drop},
		"IPv6":               {edit(12, 0x86, 0xdd), drop},
		"a tag":              {edit(12, 0x81, 0), drop},
		"to another machine": {edit(0, 2, 0, 0, 0, 0, 9), drop},
		"forged source":      {edit(26, 10, 88, 0, 1), drop},
		"forged source 2":    {edit(26, 8, 8, 8, 8), drop},
		"to itself":          {edit(30, 10, 88, 0, 2), drop},
		"options":            {edit(14, 0x46), drop},
		"short header":       {edit(14, 0x44), drop},
		"IPv6 in IPv4":       {edit(14, 0x65), drop},
		"fragment":           {edit(20, 0x20), drop},
		"later fragment":     {edit(20, 0, 7), drop},
		"multicast":          {edit(30, 224, 0, 0, 251), drop},
		"broadcast":          {edit(30, 255, 255, 255, 255), drop},
		"loopback":           {edit(30, 127, 0, 0, 1), drop},
		"ping to the world":  {edit(23, 1), drop},
		"empty":              {nil, drop},
		"cut":                {good[:33], drop},
	} {
		if got := p.sort(c.frame); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
	}
}

// TestNoise: whatever frames a sandbox sends, the daemon lives and the link still
// closes.
func TestNoise(t *testing.T) {
	l, write, closeAll := raw(t, "a.org", "*:9")
	rng := rand.New(rand.NewPCG(1, 2))
	base := tcpFrame(DefaultPlan(), 1, netip.MustParseAddrPort("198.18.0.1:80"), 2)
	for range 20000 {
		f := append([]byte(nil), base...)
		for range rng.IntN(6) {
			f[rng.IntN(len(f))] = byte(rng.Uint32())
		}
		f[23] = []byte{6, 6, 17, 1, 2, 50}[rng.IntN(6)]
		for range rng.IntN(100) {
			f = append(f, byte(rng.Uint32()))
		}
		if rng.IntN(10) == 0 {
			f = f[:rng.IntN(len(f)-1)+1]
		}
		binary.BigEndian.PutUint16(base[34:], uint16(rng.Uint32()))
		write(f)
	}
	select {
	case <-l.Done():
		t.Error("the link gave up")
	default:
	}
	closeAll()
}
