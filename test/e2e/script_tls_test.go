//go:build linux

package e2e_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// tlssite LOG VAR NAME… serves HTTPS for the names on one port of 127.0.0.1, which
// is put into VAR, with certificates of a root that it writes to roots.pem. Each
// request is a line of JSON in LOG; the answer repeats its fields, and /to/URL
// is a redirect.
func cmdTLSSite(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: tlssite LOG VAR NAME...")
	}
	site := &tlsSite{path: ts.MkAbs(args[0])}
	ts.Check(os.WriteFile(site.path, nil, 0o600))
	cert, root, err := siteCertificate(args[2:])
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs("roots.pem"), root, 0o600))
	s := httptest.NewUnstartedServer(site)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	s.StartTLS()
	ts.Defer(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	ts.Check(err)
	ts.Setenv(args[1], port)
}

// certificate DIR NAME… writes a certificate for the names and its key, 0600, to cert.pem
// and key.pem of a directory, and its root to roots.pem.
func cmdCertificate(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: certificate DIR NAME...")
	}
	cert, root, err := siteCertificate(args[1:])
	ts.Check(err)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	ts.Check(err)
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	for name, data := range map[string][]byte{
		"cert.pem": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
		"key.pem":  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), "roots.pem": root,
	} {
		// A file of its own, as those who renew certificates make.
		ts.Check(os.WriteFile(filepath.Join(dir, name+".new"), data, 0o600))
		ts.Check(os.Rename(filepath.Join(dir, name+".new"), filepath.Join(dir, name)))
	}
}

// outside CMD ARGS… runs a program in the script's directory with the environment of
// the test run: with the caches and the libraries that are there.
func cmdOutside(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: outside COMMAND [ARGS...]")
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env, cmd.Dir = os.Environ(), ts.MkAbs(".")
	if out, err := cmd.CombinedOutput(); err != nil {
		ts.Fatalf("%s: %v\n%s", args[0], err, out)
	}
}

type tlsSite struct {
	mu   sync.Mutex
	path string
}

// ServeHTTP implements http.Handler.
func (s *tlsSite) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	line, _ := json.Marshal(map[string]any{"method": r.Method, "host": r.Host, "target": r.RequestURI, "header": r.Header, "body": string(body)})
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := os.OpenFile(s.path, os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		fmt.Fprintf(f, "%s\n", line)
		f.Close()
	}
	if _, to, ok := strings.Cut(r.URL.Path, "/to/"); ok {
		http.Redirect(w, r, "https://"+to, http.StatusFound)
		return
	}
	if r.URL.Path == "/repo.git/info/refs" {
		w.WriteHeader(http.StatusUnauthorized)
	}
	_, _ = w.Write(append(line, '\n'))
}

func siteCertificate(names []string) (cert tls.Certificate, root []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return cert, nil, err
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root of the test"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		return cert, nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), key)
	if err != nil {
		return cert, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}), nil
}
