package egress_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/egress/intercept"
	"github.com/cloche-dev/cloche/internal/egress/resolver"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/egress/upstream"
)

// test network is some hosts with certificates of a root of their own, and a gate to them
// that opens TLS.
type testnet struct {
	t         testing.TB
	gate      *egress.Gate
	table     *resolver.Table
	authority *intercept.Authority
	rootKey   *ecdsa.PrivateKey
	root      *x509.Certificate
	door      net.Listener // a CONNECT proxy that leads into the gate
	wg        sync.WaitGroup

	mu      sync.Mutex
	servers map[string]string // name:port to what serves it
	addrs   map[string]netip.Addr
	values  map[string]string
	used    []intercept.Use
	refused []egress.Refused
	closed  []egress.Flow
	ended   chan struct{} // gets one for each of closed
	fails   error
}

const (
	secretValue = "sk-live-0123456789abcdef"
	apiHost     = "api.example.com"
	otherHost   = "other.example.com"
)

type testnetOptions struct {
	rules    []string
	secrets  []intercept.Secret
	requests []string
	limits   egress.Limits
}

func newTestnet(t testing.TB, o testnetOptions) *testnet {
	t.Helper()
	w := &testnet{t: t, ended: make(chan struct{}, 100), servers: map[string]string{}, addrs: map[string]netip.Addr{}, values: map[string]string{"key": secretValue}}
	w.makeRoot()
	var err error
	if w.authority, err = intercept.NewAuthority("test"); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(w.root)
	var asked []rule.Request
	for _, s := range o.requests {
		r, err := rule.ParseRequest(s)
		if err != nil {
			t.Fatal(err)
		}
		asked = append(asked, r)
	}
	requests, err := rule.CompileRequests(asked)
	if err != nil {
		t.Fatal(err)
	}
	in, err := intercept.New(intercept.Options{
		Authority: w.authority, Roots: roots, Secrets: o.secrets, Requests: requests, Value: w.value,
		Used: func(u intercept.Use) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.used = append(w.used, u)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if w.table, err = resolver.NewTable(nil, nil); err != nil {
		t.Fatal(err)
	}
	w.gate = egress.New(t.Context(), egress.Options{
		Rules: compile(t, o.rules...), Table: w.table, Observer: w, Intercept: in, Limits: o.limits,
		Own: func(netip.Addr) bool { return false }, Upstream: &upstream.Dialer{Resolver: w, Dialer: w},
	})
	if w.door, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	w.wg.Go(w.serveDoor)
	t.Cleanup(func() {
		w.door.Close()
		w.gate.Close()
		w.wg.Wait()
	})
	return w
}

func (w *testnet) value(context.Context, string) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.values["key"], w.fails
}

func (w *testnet) Opened(egress.Flow) {}
func (w *testnet) Closed(f egress.Flow) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = append(w.closed, f)
	w.ended <- struct{}{}
}
func (w *testnet) Refused(r egress.Refused) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused = append(w.refused, r)
}

// LookupNetIP implements upstream.Resolver: each host has a public address.
func (w *testnet) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	host = strings.TrimSuffix(host, ".")
	if a, ok := w.addrs[host]; ok {
		return []netip.Addr{a}, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// DialContext implements upstream.ContextDialer.
func (w *testnet) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	to, ok := w.servers[address]
	w.mu.Unlock()
	if !ok {
		return nil, errors.New("nothing is there")
	}
	var d net.Dialer
	return d.DialContext(ctx, network, to)
}

func (w *testnet) makeRoot() {
	var err error
	if w.rootKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		w.t.Fatal(err)
	}
	own := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root of the test network"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	w.root = w.sign(own, own, w.rootKey)
}

func (w *testnet) sign(cert, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), w.rootKey)
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// host puts a TLS server at port of name. Certified is what its certificate says.
func (w *testnet) host(name, certified string, port int, h http.Handler, http2 bool) *httptest.Server {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	leaf := w.sign(&x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{certified}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, w.root, key)
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = http2
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}}}
	s.StartTLS()
	w.t.Cleanup(s.Close)
	w.route(name, port, s.Listener.Addr().String())
	return s
}

func (w *testnet) route(name string, port int, where string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, ok := w.addrs[name]
	if !ok {
		a = netip.AddrFrom4([4]byte{93, 184, 215, byte(len(w.addrs) + 1)})
		w.addrs[name] = a
	}
	w.servers[netip.AddrPortFrom(a, uint16(port)).String()] = where
}

// opening is a connection of the sandbox that comes over loopback.
type opening struct{ c *net.TCPConn }

func (o opening) Accept() (egress.Conn, error) { return resettable{o.c}, nil }
func (o opening) Refuse()                      { resettable{o.c}.Reset() }

// serveDoor lets clients into the gate that can be told of a proxy.
func (w *testnet) serveDoor() {
	for {
		c, err := w.door.Accept()
		if err != nil {
			return
		}
		w.wg.Go(func() { w.enter(c.(*net.TCPConn)) })
	}
}

func (w *testnet) enter(c *net.TCPConn) {
	defer c.Close()
	var head []byte
	one := make([]byte, 1)
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) { // not one byte more
		if _, err := c.Read(one); err != nil {
			return
		}
		head = append(head, one[0])
	}
	req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
	if err != nil {
		return
	}
	host, port, _ := net.SplitHostPort(req.Host)
	n, _ := strconv.Atoi(port)
	name, err := rule.ParseName(host)
	if err != nil {
		return
	}
	addr, err := w.table.Address(name)
	if err != nil {
		return
	}
	io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	w.gate.Connect(netip.AddrPortFrom(addr, uint16(n)), opening{c})
}

// client is one inside the sandbox.
func (w *testnet) client(http2 bool) *http.Client {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.authority.Certificate())
	roots.AddCert(w.root)
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", w.door.Addr().String())
			if err != nil {
				return nil, err
			}
			io.WriteString(c, "CONNECT "+addr+" HTTP/1.1\r\nHost: "+addr+"\r\n\r\n")
			_, err = io.ReadFull(c, make([]byte, len("HTTP/1.1 200 OK\r\n\r\n")))
			return c, err
		},
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: http2,
	}
	if !http2 {
		tr.TLSClientConfig.NextProtos = []string{"http/1.1"}
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

func keySecret(hosts ...string) intercept.Secret {
	s := intercept.Secret{Name: "key", Placeholder: intercept.NewPlaceholder()}
	for _, h := range hosts {
		host, err := rule.ParseHost(h)
		if err != nil {
			panic(err)
		}
		s.Hosts = append(s.Hosts, host)
	}
	return s
}

// do sends a request and returns status and body.
func do(t testing.TB, c *http.Client, req *http.Request) (int, string, http.Header) {
	t.Helper()
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b), res.Header
}

func newRequest(t testing.TB, method, url string, header map[string]string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		r.Header.Set(k, v)
	}
	return r
}
