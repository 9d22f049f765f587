//go:build linux

package e2e_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	randn "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// scriptInternet plays servers with public names, all of them at one address of
// loopback that no other script has.
type scriptInternet struct {
	addr      string
	listeners []net.Listener
	servers   []*http.Server
	wg        sync.WaitGroup

	mu   sync.Mutex
	seen []string // what was asked of the servers, one line each
}

type internetKey struct{}

// internetNames are the hosts that have a certificate.
var internetNames = []string{"a.example", "b.example", "web.example", "pypi.example", "npm.example", "git.example"}

// internet start: HTTP at port 80, HTTPS at 443 and a server that greets first at
// 2525. ADDR is their address, and ws/ca.pem what their certificates are signed by.
// internet seen is what was asked of them, as stdout; internet forget forgets it.
func cmdInternet(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: internet start|seen|forget")
	}
	in := ts.Value(internetKey{}).(*scriptInternet)
	switch args[0] {
	case "start":
		ts.Check(in.start(ts.MkAbs(".")))
		ts.Setenv("ADDR", in.addr)
	case "seen":
		in.mu.Lock()
		defer in.mu.Unlock()
		_, err := io.WriteString(ts.Stdout(), strings.Join(in.seen, "\n")+"\n")
		ts.Check(err)
	case "forget":
		in.mu.Lock()
		defer in.mu.Unlock()
		in.seen = nil
	default:
		ts.Fatalf("internet: what is %q?", args[0])
	}
}

func (in *scriptInternet) note(format string, args ...any) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.seen = append(in.seen, fmt.Sprintf(format, args...))
}

func (in *scriptInternet) start(dir string) error {
	if err := in.listen(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "ws"), 0o755); err != nil {
		return err
	}
	cert, err := internetCert(filepath.Join(dir, "ws", "ca.pem"))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", in.site)
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://b.example/", http.StatusFound)
	})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "begun")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		in.note("slow ended")
	})
	mux.Handle("git.example/", http.FileServer(http.Dir(filepath.Join(dir, "git"))))
	if err := errors.Join(servePyPI(mux), serveNPM(mux)); err != nil {
		return err
	}
	for i, ln := range in.listeners[:2] {
		if i == 1 {
			ln = tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}})
		}
		s := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
		in.servers = append(in.servers, s)
		in.wg.Go(func() { _ = s.Serve(ln) })
	}
	in.wg.Go(func() { in.greet(in.listeners[2]) })
	return nil
}

// listen finds an address at which all ports are free.
func (in *scriptInternet) listen() error {
	for range 100 {
		in.addr = fmt.Sprintf("127.%d.%d.%d", 64+randn.IntN(60), randn.IntN(256), 1+randn.IntN(250))
		in.listeners = nil
		for _, port := range []string{"80", "443", "2525"} {
			ln, err := net.Listen("tcp", net.JoinHostPort(in.addr, port))
			if errors.Is(err, syscall.EADDRINUSE) {
				break
			}
			if err != nil {
				return err
			}
			in.listeners = append(in.listeners, ln)
		}
		if len(in.listeners) == 3 {
			return nil
		}
		in.close()
	}
	return errors.New("no address is free")
}

func (in *scriptInternet) close() {
	for _, s := range in.servers {
		_ = s.Close()
	}
	for _, ln := range in.listeners {
		_ = ln.Close()
	}
	in.wg.Wait()
}

// site is every host that is nothing else.
func (in *scriptInternet) site(w http.ResponseWriter, r *http.Request) {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https " + r.TLS.ServerName
	}
	in.note("%s %s %s%s", scheme, r.Method, r.Host, r.URL.Path)
	n, _ := io.Copy(io.Discard, r.Body)
	fmt.Fprintf(w, "this is %s at %s, %d bytes came\n", r.Host, r.URL.Path, n)
}

// greet speaks first, as servers of mail and databases do.
func (in *scriptInternet) greet(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		in.wg.Go(func() {
			defer c.Close()
			in.note("greeted")
			_, _ = io.WriteString(c, "220 hello\r\n")
			_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
			_, _ = io.Copy(c, io.LimitReader(c, 1<<20))
		})
	}
}

// internetCert is certFor the hosts of a script.
func internetCert(caFile string) (tls.Certificate, error) { return certFor(caFile, internetNames) }

// certFor makes an authority, whose certificate goes to a file, and has it sign one for all
// names.
func certFor(caFile string, names []string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "An authority of a test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		return tls.Certificate{}, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	signed, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: key}, err
}

// servePyPI is an index with one package.
func servePyPI(mux *http.ServeMux) error {
	const wheel = "tiny_thing-1.0-py3-none-any.whl"
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	const info = "tiny_thing-1.0.dist-info/"
	for _, f := range [][2]string{
		{"tiny_thing.py", "answer = 42\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", "tiny_thing.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n"},
	} {
		w, err := z.Create(f[0])
		if err != nil {
			return err
		}
		if _, err := io.WriteString(w, f[1]); err != nil {
			return err
		}
	}
	if err := z.Close(); err != nil {
		return err
	}
	sum := sha256.Sum256(b.Bytes())
	mux.HandleFunc("pypi.example/simple/tiny-thing/", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `<!DOCTYPE html><a href="/files/%s#sha256=%s">%s</a>`, wheel, hex.EncodeToString(sum[:]), wheel)
	})
	mux.HandleFunc("pypi.example/files/"+wheel, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b.Bytes()) })
	return nil
}

// serveNPM is a registry with one package.
func serveNPM(mux *http.ServeMux) error {
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	t := tar.NewWriter(gz)
	for _, f := range [][2]string{
		{"package/package.json", `{"name":"tiny-thing","version":"1.0.0","main":"index.js"}`}, {"package/index.js", "module.exports = 42\n"},
	} {
		if err := t.WriteHeader(&tar.Header{Name: f[0], Mode: 0o644, Size: int64(len(f[1]))}); err != nil {
			return err
		}
		if _, err := io.WriteString(t, f[1]); err != nil {
			return err
		}
	}
	if err := errors.Join(t.Close(), gz.Close()); err != nil {
		return err
	}
	sum := sha1.Sum(b.Bytes())
	mux.HandleFunc("npm.example/tiny-thing", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"name":"tiny-thing","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"tiny-thing","version":"1.0.0",
			"dist":{"tarball":"http://npm.example/tiny-thing.tgz","shasum":"%s"}}}}`, hex.EncodeToString(sum[:]))
	})
	mux.HandleFunc("npm.example/tiny-thing.tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b.Bytes()) })
	return nil
}

// cmdHolder is holder KILL: it kills what holds the links of the sandboxes.
func cmdHolder(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 || args[0] != "KILL" {
		ts.Fatalf("usage: holder KILL")
	}
	n := 0
	for _, p := range state(ts).Processes() {
		if p.Argv == "cloche-holder" {
			n++
			ts.Check(syscall.Kill(p.PID, syscall.SIGKILL))
		}
	}
	if n != 1 {
		ts.Fatalf("%d holders were found", n)
	}
}
