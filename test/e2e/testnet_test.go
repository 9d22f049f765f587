//go:build linux

package e2e_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	bytesorder "encoding/binary"
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
)

// The addresses of a test network. All of them lead to the test, and the public ones are
// public to the daemon, for no interface has them.
const (
	testnetAllowed = "93.184.215.14"
	testnetEvil    = "93.184.215.66"
	testnetOwn     = "93.184.216.34" // is the machine's own
)

// test network is a network of the test's own, with a daemon in it. The test plays the whole
// world outside: the machine's resolver, web servers and everything else; and it sees
// every packet that leaves the daemon.
type testnet struct {
	*fixture
	do   chan func() // run in the network
	over chan struct{}

	marks atomic.Int64
	mark  net.Conn

	mu       sync.Mutex
	zone     map[string]func(asked int) []string
	asked    []string
	requests []testnetRequest
	received int64 // bytes that reached port 5432
	sent     map[string]int
	marked   int64
}

// testnetRequest is what a web server of the test network was asked.
type testnetRequest struct {
	at, sni, host, target, authorization string
}

// newTestnet starts a test network whose daemon has this policy and these settings.
func newTestnet(t *testing.T, policy, settings string) *testnet {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a run without -short: it starts sandboxes and attacks them")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a network of its own")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip: it makes a network of its own")
	}
	bin := binary(t)
	if out, err := exec.CommandContext(t.Context(), bin, "doctor", "--home", t.TempDir()).CombinedOutput(); err != nil {
		t.Skipf("needs a usable engine: cloche doctor says\n%s", out)
	}
	home, err := os.MkdirTemp("", "cl-")
	if err != nil {
		t.Fatal(err)
	}
	w := &testnet{
		fixture: &fixture{&scriptState{bin: bin, home: home, groupsBefore: emptyGroups(home)}, t},
		do:      make(chan func()), over: make(chan struct{}), sent: map[string]int{}, zone: map[string]func(int) []string{},
	}
	t.Cleanup(w.tearDown)
	for name, text := range map[string]string{"policy.yaml": policy, "settings.yaml": settings} {
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.knows("allowed.test", testnetAllowed)
	w.knows("evil.test", testnetEvil)
	w.knows("db.test", testnetAllowed)
	if err := w.found(filepath.Join(t.TempDir(), "resolv.conf")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(w.do); <-w.over })
	w.settle()
	return w
}

// found makes the network and a thread in it, which ends with the test network.
func (w *testnet) found(resolv string) error {
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

// inside runs f in the network and fails the test if it fails.
func (w *testnet) inside(f func() error) {
	w.t.Helper()
	done := make(chan error)
	w.do <- func() { done <- f() }
	if err := <-done; err != nil {
		w.t.Fatal(err)
	}
}

func (w *testnet) settle() {
	w.t.Helper()
	ip := func(args string) {
		w.t.Helper()
		w.inside(func() error {
			if out, err := exec.CommandContext(w.t.Context(), "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %s: %w: %s", args, err, out)
			}
			return nil
		})
	}
	ip("link set lo up")
	ip("addr add " + testnetOwn + "/32 dev lo")
	for _, range4 := range []string{"93.184.215.0/24", "8.8.8.0/24", "1.1.1.0/24", "10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "168.63.129.16/32"} {
		ip("route add local " + range4 + " dev lo")
	}
	for _, range6 := range []string{"fd00:ec2::/32", "64:ff9b::/96", "2001:4860::/32", "fe80::/64"} {
		ip("-6 route add local " + range6 + " dev lo")
	}
	w.inside(w.listen)
	w.inside(w.watch)
	w.inside(func() (err error) {
		w.mark, err = net.Dial("udp", "127.0.0.1:9")
		return err
	})
	w.t.Cleanup(func() { w.mark.Close() })
	w.inside(w.begin)
}

// revive is fixture.revive, in the network.
func (w *testnet) revive() {
	w.t.Helper()
	if w.daemon == nil {
		w.inside(w.begin)
	}
}

// knows makes a name of the test network's resolver.
func (w *testnet) knows(name string, addrs ...string) {
	w.answers(name, func(int) []string { return addrs })
}

// answers is knows for answers that change. An answer that is no address is another
// name of the same host.
func (w *testnet) answers(name string, f func(asked int) []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.zone[name+"."] = f
}

// ServeDNS implements dns.Handler. What is asked for is on record.
func (w *testnet) ServeDNS(out dns.ResponseWriter, q *dns.Msg) {
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
func (w *testnet) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	q := testnetRequest{host: r.Host, target: r.RequestURI, authorization: r.Header.Get("Authorization")}
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		q.at = a.String()
	}
	if r.TLS != nil {
		q.sni = r.TLS.ServerName
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
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(c, rw)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	fmt.Fprintf(out, "served %s for %s\n", r.URL.Path, r.Host)
}

// listen is the world.
func (w *testnet) listen() error {
	cert, root, err := testnetCertificate("allowed.test", "evil.test")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(w.home, "roots.pem"), root, 0o644); err != nil {
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
	w.t.Cleanup(func() {
		end()
		_ = errors.Join(resolver.Shutdown(), web.Close(), secure.Close(), at5432.Close(), flood.Close(), deaf.Close())
		wg.Wait()
	})
	return nil
}

// sink speaks first and then counts what comes.
func (w *testnet) sink(c net.Conn) {
	io.WriteString(c, "ready\n")
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		w.mu.Lock()
		w.received += int64(n)
		w.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// watch notes where packets go that leave anybody in the network: beginnings of TCP
// connections, and everything else but the resolver's answers.
func (w *testnet) watch() error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(bytesorder.BigEndian.Uint16([]byte{0, unix.ETH_P_ALL})<<8|unix.ETH_P_ALL>>8))
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
	w.t.Cleanup(func() { ended.Store(true); wg.Wait() })
	return nil
}

func (w *testnet) see(b []byte) {
	if len(b) < 20 {
		return
	}
	proto, dst, head := b[9], netip.AddrFrom4([4]byte(b[16:])), int(b[0]&15)*4
	if b[0]>>4 == 6 && len(b) >= 40 {
		proto, dst, head = b[6], netip.AddrFrom16([16]byte(b[24:])), 40
	}
	what := fmt.Sprintf("protocol %d to %s", proto, dst)
	if proto == 6 && len(b) >= head+20 || proto == 17 && len(b) >= head+8 {
		from, to := bytesorder.BigEndian.Uint16(b[head:]), bytesorder.BigEndian.Uint16(b[head+2:])
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

// left forgets what was seen, and returns what of it was none of these.
func (w *testnet) gone(but ...string) []string {
	w.t.Helper()
	n := w.marks.Add(1)
	_, _ = w.mark.Write([]byte("mark")) // an earlier one was refused, which is what this would say
	ok := poll(func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.marked < n {
			_, _ = w.mark.Write([]byte("mark"))
		}
		return w.marked >= n
	})
	if !ok {
		w.t.Fatal("the watch is blind")
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

// heard forgets what the test network was asked, and returns it.
func (w *testnet) heard() (names []string, requests []testnetRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	names, requests = w.asked, w.requests
	w.asked, w.requests = nil, nil
	return names, requests
}

// attack runs a Python program in a sandbox. It says LEAK for what it should not
// have been able to do.
func (w *testnet) attack(sandbox, program string) string {
	w.t.Helper()
	out := w.python(sandbox, attackPrelude+program+"\nprint('over')\n")
	if strings.Contains(out, "LEAK") || !strings.Contains(out, "over") {
		w.t.Errorf("inside:\n%s", out)
	}
	return out
}

// attackPrelude is what all attacks use.
const attackPrelude = `
import errno, os, select, socket, ssl, struct, sys, time
socket.setdefaulttimeout(20)
def connect(host, port):
    return socket.create_connection((host, port), 20)
def reach(host, port):
    try:
        connect(host, port).close()
        return 'connected'
    except OSError as e:
        return type(e).__name__
def connected(pairs):
    # All at once: of those that nobody answers, each would wait for itself.
    waiting, out, end = {}, [], time.time() + 3
    for to in pairs:
        s = socket.socket()
        s.setblocking(False)
        try:
            code = s.connect_ex(to)
        except OSError: # a name that is not resolved
            continue
        if code == 0:
            out.append(to)
        elif code == errno.EINPROGRESS:
            waiting[s] = to
    while waiting and time.time() < end:
        for s in select.select([], list(waiting), [], max(0, end - time.time()))[1]:
            if s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                out.append(waiting[s])
            del waiting[s]
            s.close()
    return out
def question(labels, kind=1, rd=1):
    name = b''.join(bytes([len(l)]) + l for l in labels) + b'\0'
    return struct.pack('>HHHHHH', 7, rd << 8, 1, 0, 0, 0) + name + struct.pack('>HH', kind, 1)
def ask(labels, kind=1, server=('10.88.0.1', 53), wait=20):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(wait)
    try:
        s.connect(server)
        s.send(question(labels, kind))
        a = s.recv(4096)
        return a[3] & 15, struct.unpack('>H', a[6:8])[0]
    except OSError as e:
        return type(e).__name__, 0
    finally:
        s.close()
def talk(data, host='allowed.test', port=80):
    s = connect(host, port)
    try:
        s.sendall(data)
        s.settimeout(10)
        out = b''
        while len(out) < 1 << 16:
            b = s.recv(65536)
            if not b:
                break
            out += b
    except OSError as e:
        out += b' ' + type(e).__name__.encode()
    s.close()
    return out
`

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
