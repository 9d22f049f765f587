//go:build linux

package e2e_test

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha1"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// taskHostNames are the hosts of docs/tasks that have a server here.
var taskHostNames = []string{"registry.npmjs.org", "pypi.org", "files.pythonhosted.org", "registry.example.com", "packages.example.com"}

// taskUser and taskPassword open the private registry and the private package index.
const (
	taskUser     = "robot"
	taskPassword = "s3cr3t-0123456789abcdef"
)

// taskHosts plays the hosts that pages of docs/tasks name, behind a proxy on loopback. The
// daemon connects through that proxy, so no name of the public is looked up, and a normal user
// can run the pages too.
type taskHosts struct {
	proxy, ca string
}

func newTaskHosts(t *testing.T, dir string) *taskHosts {
	t.Helper()
	h := &taskHosts{ca: filepath.Join(dir, "ca.pem")}
	cert, err := certFor(h.ca, taskHostNames)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	if err := errors.Join(serveLeftPad(mux), serveAcmeTool(mux)); err != nil {
		t.Fatal(err)
	}
	wheels := &packageIndex{wheels: os.Getenv(wheelsVar)}
	if wheels.wheels != "" {
		if wheels, err = newPackageIndex(wheels.wheels, t.TempDir()); err != nil {
			t.Fatal(err)
		}
	}
	mux.Handle("pypi.org/", wheels)
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	mux.Handle("registry.example.com/", onlyWithPassword(images))
	pushTaskImage(t, images)

	inner := &connListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	hosts := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	go func() {
		_ = hosts.Serve(tls.NewListener(inner, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}}))
	}()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.proxy = "http://" + ln.Addr().String()
	proxy := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(inner.connect)}
	go func() { _ = proxy.Serve(ln) }()
	t.Cleanup(func() {
		_ = proxy.Close()
		_ = hosts.Close()
	})
	return h
}

// policy is the part of the daemon's policy that leads to the played hosts.
func (h *taskHosts) policy() string {
	return fmt.Sprintf("egress: {upstream: {proxy: %q}}\ntls: {roots: %q}\n", h.proxy, h.ca)
}

// env makes the daemon pull images from the played registry.
func (h *taskHosts) env() []string {
	return []string{"HTTPS_PROXY=" + h.proxy, "SSL_CERT_FILE=" + h.ca}
}

// connListener is a listener whose connections come from a proxy.
type connListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *connListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *connListener) Close() error {
	close(l.closed)
	return nil
}

func (l *connListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// connect answers CONNECT.
func (l *connListener) connect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "only CONNECT", http.StatusMethodNotAllowed)
		return
	}
	c, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		_ = c.Close()
		return
	}
	select {
	case l.conns <- &readAhead{Conn: c, r: buf.Reader}:
	case <-l.closed:
		_ = c.Close()
	}
}

// readAhead is a connection of which something was read.
type readAhead struct {
	net.Conn
	r *bufio.Reader
}

func (c *readAhead) Read(p []byte) (int, error) { return c.r.Read(p) }

// onlyWithPassword asks for taskUser's password.
func onlyWithPassword(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != taskUser || password != taskPassword {
			w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// pushTaskImage pushes team/tool:1: a static busybox, where the machine has one.
func pushTaskImage(t *testing.T, images http.Handler) {
	t.Helper()
	program, err := os.ReadFile(staticBusybox)
	if err != nil {
		return // the section that needs it is skipped
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err = errors.Join(
		w.WriteHeader(&tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755}),
		w.WriteHeader(&tar.Header{Name: "bin/sh", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(program))}))
	if _, e := w.Write(program); err != nil || e != nil {
		t.Fatal(err, e)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: v1.Config{Env: []string{"PATH=/bin"}}})
	if err == nil {
		img, err = mutate.AppendLayers(img, layer)
	}
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: images, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(ln) }()
	defer server.Close()
	ref, err := name.ParseReference(ln.Addr().String() + "/team/tool:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
}

// serveLeftPad is an npm registry with left-pad.
func serveLeftPad(mux *http.ServeMux) error {
	const program = "module.exports = (s, n, c) => String(s).padStart(n, c)\n"
	const manifest = `{"name":"left-pad","version":"1.3.0","main":"index.js"}`
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	w := tar.NewWriter(gz)
	for file, text := range map[string]string{"package/package.json": manifest, "package/index.js": program} {
		if err := w.WriteHeader(&tar.Header{Name: file, Mode: 0o644, Size: int64(len(text))}); err != nil {
			return err
		}
		if _, err := io.WriteString(w, text); err != nil {
			return err
		}
	}
	if err := errors.Join(w.Close(), gz.Close()); err != nil {
		return err
	}
	sum := sha1.Sum(b.Bytes())
	mux.HandleFunc("registry.npmjs.org/left-pad", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"name":"left-pad","dist-tags":{"latest":"1.3.0"},"versions":{"1.3.0":{"name":"left-pad","version":"1.3.0",
			"dist":{"tarball":"https://registry.npmjs.org/left-pad/-/left-pad-1.3.0.tgz","shasum":"%s"}}}}`, hex.EncodeToString(sum[:]))
	})
	mux.HandleFunc("registry.npmjs.org/left-pad/-/left-pad-1.3.0.tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b.Bytes()) })
	return nil
}

// serveAcmeTool is a private index of Python packages with one package.
func serveAcmeTool(mux *http.ServeMux) error {
	const wheel, info = "acme_tool-1.0-py3-none-any.whl", "acme_tool-1.0.dist-info/"
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range [][2]string{
		{"acme_tool.py", "print('acme-tool 1.0')\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: acme-tool\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", strings.Join([]string{"acme_tool.py", info + "METADATA", info + "WHEEL", info + "RECORD", ""}, ",,\n")},
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
	mux.Handle("packages.example.com/simple/acme-tool/", onlyWithPassword(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!DOCTYPE html><a href="/files/%s">%s</a>`, wheel, wheel)
	})))
	mux.Handle("packages.example.com/files/"+wheel, onlyWithPassword(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b.Bytes()) })))
	return nil
}
