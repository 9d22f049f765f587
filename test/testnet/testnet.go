//go:build linux

// Package testnet is a network of a test's own with a daemon in it. The test plays the machine's
// resolver, web servers and all other hosts, and sees each packet that leaves the daemon.
package testnet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/longtest"
)

// The addresses of a test network. All of them lead to the test, and the public ones are
// public to the daemon, for no interface has them.
const (
	Allowed = "93.184.215.14"
	Evil    = "93.184.215.66"
	Own     = "93.184.216.34" // is the machine's own
)

// Network is a network namespace with a daemon in it, and the servers that the daemon reaches.
type Network struct {
	*fixture.Fixture
	do   chan func() // run in the network
	over chan struct{}

	marks atomic.Int64
	mark  net.Conn

	// Received counts the bytes that reached port 5432.
	Received atomic.Int64

	mu       sync.Mutex
	zone     map[string]func(asked int) []string
	asked    []string
	requests []Request
	sent     map[string]int
	marked   int64
}

// Request is what a web server of the test network was asked.
type Request struct {
	// At is the address that was asked.
	At, SNI, Host, Target, authorization string
}

// New starts a test network whose daemon has this policy and these settings.
func New(t *testing.T, policy, settings string) *Network {
	t.Helper()
	longtest.Skip(t, "it attacks sandboxes")
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a network of its own")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip: it makes a network of its own")
	}
	w := &Network{
		Fixture: fixture.NotStarted(t),
		do:      make(chan func()), over: make(chan struct{}), sent: map[string]int{}, zone: map[string]func(int) []string{},
	}
	for name, text := range map[string]string{"policy.yaml": policy, "settings.yaml": settings} {
		if err := os.WriteFile(filepath.Join(w.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.Knows("allowed.test", Allowed)
	w.Knows("evil.test", Evil)
	w.Knows("db.test", Allowed)
	if err := w.found(filepath.Join(t.TempDir(), "resolv.conf")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(w.do); <-w.over })
	w.settle()
	return w
}

// found makes the network and a thread in it, which ends with the test network.
func (w *Network) found(resolv string) error {
	if err := os.WriteFile(resolv, []byte("nameserver 127.0.0.53\noptions timeout:1 attempts:1\n"), 0o644); err != nil {
		return err
	}
	made := make(chan error)
	go func() {
		defer close(w.over)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_FS)
		if err == nil {
			err = errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""), unix.Mount(resolv, "/etc/resolv.conf", "", unix.MS_BIND, ""))
		}
		made <- err
		if err == nil {
			for f := range w.do {
				f()
			}
		}
	}()
	return <-made
}

// Inside runs f in the network and fails the test if it fails.
func (w *Network) Inside(f func() error) {
	w.T.Helper()
	done := make(chan error)
	w.do <- func() { done <- f() }
	if err := <-done; err != nil {
		w.T.Fatal(err)
	}
}

func (w *Network) settle() {
	w.T.Helper()
	ip := func(args string) {
		w.T.Helper()
		w.Inside(func() error {
			if out, err := exec.CommandContext(w.T.Context(), "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %s: %w: %s", args, err, out)
			}
			return nil
		})
	}
	ip("link set lo up")
	ip("addr add " + Own + "/32 dev lo")
	for _, range4 := range []string{"93.184.215.0/24", "8.8.8.0/24", "1.1.1.0/24", "10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "168.63.129.16/32"} {
		ip("route add local " + range4 + " dev lo")
	}
	for _, range6 := range []string{"fd00:ec2::/32", "64:ff9b::/96", "2001:4860::/32", "fe80::/64"} {
		ip("-6 route add local " + range6 + " dev lo")
	}
	w.Inside(w.listen)
	w.Inside(w.watch)
	w.Inside(func() (err error) {
		w.mark, err = net.Dial("udp", "127.0.0.1:9")
		return err
	})
	w.T.Cleanup(func() { w.mark.Close() })
	w.Inside(w.Begin)
}

// Revive is fixture.revive, in the network.
func (w *Network) Revive() {
	w.T.Helper()
	if w.Daemon == nil {
		w.Inside(w.Begin)
	}
}

// Knows makes a name of the test network's resolver.
func (w *Network) Knows(name string, addrs ...string) {
	w.Answers(name, func(int) []string { return addrs })
}

// Answers is knows for answers that change. An answer that is no address is another
// name of the same host.
func (w *Network) Answers(name string, f func(asked int) []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.zone[name+"."] = f
}

// ServeDNS implements dns.Handler. What is asked for is on record.
func (w *Network) ServeDNS(out dns.ResponseWriter, q *dns.Msg) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := new(dns.Msg).SetReply(q)
	name := strings.ToLower(q.Question[0].Name)
	n := 0
	for _, asked := range w.asked {
		if asked == name {
			n++
		}
	}
	if q.Question[0].Qtype == dns.TypeA {
		w.asked = append(w.asked, name)
	}
	if f := w.zone[name]; f == nil {
		a.Rcode = dns.RcodeNameError
	} else {
		at := name
		for _, s := range f(n) {
			hdr := dns.RR_Header{Name: at, Class: dns.ClassINET}
			addr, err := netip.ParseAddr(s)
			switch {
			case err != nil:
				hdr.Rrtype, at = dns.TypeCNAME, s+"."
				a.Answer = append(a.Answer, &dns.CNAME{Hdr: hdr, Target: at})
			case addr.Is4() && q.Question[0].Qtype == dns.TypeA:
				hdr.Rrtype = dns.TypeA
				a.Answer = append(a.Answer, &dns.A{Hdr: hdr, A: addr.AsSlice()})
			case addr.Is6() && q.Question[0].Qtype == dns.TypeAAAA:
				hdr.Rrtype = dns.TypeAAAA
				a.Answer = append(a.Answer, &dns.AAAA{Hdr: hdr, AAAA: addr.AsSlice()})
			}
		}
	}
	_ = out.WriteMsg(a) // who does not get it asks again
}

// ServeHTTP implements http.Handler. /to/URL leads elsewhere, /ws becomes an echo.
func (w *Network) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	q := Request{Host: r.Host, Target: r.RequestURI, authorization: r.Header.Get("Authorization")}
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		q.At = a.String()
	}
	if r.TLS != nil {
		q.SNI = r.TLS.ServerName
	}
	w.mu.Lock()
	w.requests = append(w.requests, q)
	w.mu.Unlock()
	if to, ok := strings.CutPrefix(r.RequestURI, "/to/"); ok {
		out.Header().Set("Location", to)
		out.WriteHeader(http.StatusFound)
		return
	}
	if r.URL.Path == "/ws" {
		c, rw, err := http.NewResponseController(out).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(c, rw)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	fmt.Fprintf(out, "served %s for %s\n", r.URL.Path, r.Host)
}

// listen is the world.
func (w *Network) listen() error {
	cert, root, err := testnetCertificate("allowed.test", "evil.test")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(w.Dir, "roots.pem"), root, 0o644); err != nil {
		return err
	}
	packets, err := net.ListenPacket("udp", "127.0.0.53:53")
	if err != nil {
		return err
	}
	resolver := &dns.Server{PacketConn: packets, Handler: w}
	web := &http.Server{Handler: w, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	secure := &http.Server{
		Handler: w, ErrorLog: web.ErrorLog, ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
	}
	at80, err := net.Listen("tcp", ":80")
	if err != nil {
		return err
	}
	at443, err := net.Listen("tcp", ":443")
	if err != nil {
		return err
	}
	at5432, err := net.Listen("tcp", ":5432")
	if err != nil {
		return err
	}
	flood, err := net.Listen("tcp", ":5433")
	if err != nil {
		return err
	}
	deaf, err := net.Listen("tcp", ":5434")
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	over, end := context.WithCancel(context.Background())
	serve := func(l net.Listener, f func(net.Conn)) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				// In the end also where a daemon that hangs holds the other side.
				defer context.AfterFunc(over, func() { c.Close() })()
				f(c)
			})
		}
	}
	wg.Go(func() { serve(at5432, w.sink) })
	wg.Go(func() {
		serve(flood, func(c net.Conn) {
			for b := make([]byte, 64<<10); ; {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		})
	})
	wg.Go(func() { serve(deaf, func(net.Conn) { <-over.Done() }) })
	wg.Go(func() { _ = resolver.ActivateAndServe() })
	wg.Go(func() { _ = web.Serve(at80) })
	wg.Go(func() { _ = secure.ServeTLS(at443, "", "") })
	w.T.Cleanup(func() {
		end()
		_ = errors.Join(resolver.Shutdown(), web.Close(), secure.Close(), at5432.Close(), flood.Close(), deaf.Close())
		wg.Wait()
	})
	return nil
}

// sink speaks first and then counts what comes.
func (w *Network) sink(c net.Conn) {
	_, _ = io.WriteString(c, "ready\n")
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		w.Received.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// watch notes where packets go that leave the network: beginnings of TCP
// connections, and everything else but the resolver's answers.
func (w *Network) watch() error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(binary.BigEndian.Uint16([]byte{0, unix.ETH_P_ALL})<<8|unix.ETH_P_ALL>>8))
	if err != nil {
		return fmt.Errorf("watch packets: %w", err)
	}
	tv := unix.NsecToTimeval(int64(100 * time.Millisecond))
	if err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20)); err != nil {
		return err
	}
	var ended atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 128)
		for !ended.Load() {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if ll, ok := from.(*unix.SockaddrLinklayer); err == nil && ok && ll.Pkttype == unix.PACKET_OUTGOING {
				w.see(buf[:n])
			}
		}
		_ = unix.Close(fd)
	})
	w.T.Cleanup(func() { ended.Store(true); wg.Wait() })
	return nil
}

func (w *Network) see(b []byte) {
	if len(b) < 20 {
		return
	}
	proto, dst, head := b[9], netip.AddrFrom4([4]byte(b[16:])), int(b[0]&15)*4
	if b[0]>>4 == 6 && len(b) >= 40 {
		proto, dst, head = b[6], netip.AddrFrom16([16]byte(b[24:])), 40
	}
	what := fmt.Sprintf("protocol %d to %s", proto, dst)
	if proto == 6 && len(b) >= head+20 || proto == 17 && len(b) >= head+8 {
		from, to := binary.BigEndian.Uint16(b[head:]), binary.BigEndian.Uint16(b[head+2:])
		at := netip.AddrPortFrom(dst, to).String()
		switch {
		case proto == 17 && from == 53, proto == 6 && b[head+13]&0x12 != 2: // an answer
			return
		case proto == 6:
			what = "tcp " + at
		default:
			what = "udp " + at
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if what == "udp 127.0.0.1:9" {
		w.marked++
		return
	}
	if proto == 1 && dst.IsLoopback() { // what answers our marks
		return
	}
	w.sent[what]++
}

// Packets returns the packets that the daemon sent since the last call, without those of but.
func (w *Network) Packets(but ...string) []string {
	w.T.Helper()
	n := w.marks.Add(1)
	_, _ = w.mark.Write([]byte("mark")) // an earlier one was refused, which is what this would say
	ok := fixture.Poll(func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.marked < n {
			_, _ = w.mark.Write([]byte("mark"))
		}
		return w.marked >= n
	})
	if !ok {
		w.T.Fatal("the watch is blind")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, what := range slices.Sorted(maps.Keys(w.sent)) {
		if !slices.Contains(but, what) {
			out = append(out, what)
		}
	}
	w.sent = map[string]int{}
	return out
}

// Heard forgets what the test network was asked, and returns it.
func (w *Network) Heard() (names []string, requests []Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	names, requests = w.asked, w.requests
	w.asked, w.requests = nil, nil
	return names, requests
}

// Attack runs a Python program in a sandbox. It says LEAK for what it should not
// have been able to do.
func (w *Network) Attack(sandbox, program string) string {
	w.T.Helper()
	out := w.Python(sandbox, attackPrelude+program+"\nprint('over')\n")
	if strings.Contains(out, "LEAK") || !strings.Contains(out, "over") {
		w.T.Errorf("inside:\n%s", out)
	}
	return out
}

// attackPrelude has the functions that all attacks use.
//
//go:embed prelude.py
var attackPrelude string

func testnetCertificate(names ...string) (cert tls.Certificate, root []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return cert, nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, der, err
}
