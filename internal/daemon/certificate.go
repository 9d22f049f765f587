//go:build linux || darwin || windows

package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

const (
	// certEvery is how often handshakes have the files of the certificate looked at.
	certEvery = time.Second
	// maxPEM is the largest of these files, in bytes.
	maxPEM = 1 << 20
)

// certificate is the certificate of the TCP addresses, which is replaced when its files
// are. It is safe for concurrent use.
type certificate struct {
	cert, key string
	log       *slog.Logger

	mu     sync.Mutex
	inUse  *tls.Certificate
	looked time.Time
	// tried are the files as they were when they were last read, whether or not they
	// could be used.
	tried [2]fs.FileInfo
}

// openCertificate reads a certificate and its key. Without them it returns nil.
func openCertificate(cert, key string, log *slog.Logger) (*certificate, error) {
	if cert == "" && key == "" {
		return nil, nil
	}
	c := &certificate{cert: cert, key: key, log: log, looked: time.Now()}
	if err := c.load(); err != nil {
		return nil, api.Invalid("tls", "the certificate cannot be used: %w", err).WithHint("tls.cert is a file of PEM certificates, the server's first, and tls.key its key, of mode 0600")
	}
	return c, nil
}

// get is the certificate for a connection. Files that changed and cannot be used leave
// the older one in place, and one warning.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.looked) >= certEvery {
		c.looked = now
		if c.changed() {
			if err := c.load(); err != nil {
				c.log.Warn("the new certificate cannot be used, and the older one stays", "error", err)
			}
		}
	}
	return c.inUse, nil
}

// changed reports whether a file is another than the one that was last read.
func (c *certificate) changed() bool {
	for i, name := range []string{c.cert, c.key} {
		now, err := os.Stat(name)
		was := c.tried[i]
		if err != nil || was == nil {
			if err == nil || was != nil {
				return true
			}
			continue
		}
		if !os.SameFile(was, now) || was.Size() != now.Size() || !was.ModTime().Equal(now.ModTime()) || was.Mode() != now.Mode() {
			return true
		}
	}
	return false
}

// load reads both files, and uses them if they belong together.
func (c *certificate) load() error {
	certPEM, certInfo, err := readPEM(c.cert, false)
	keyPEM, keyInfo, kerr := readPEM(c.key, true)
	c.tried = [2]fs.FileInfo{certInfo, keyInfo}
	if err = errors.Join(err, kerr); err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return err
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return err
		}
	}
	if now := time.Now(); now.After(pair.Leaf.NotAfter) {
		c.log.Warn("the certificate has expired", "since", pair.Leaf.NotAfter)
	}
	c.inUse = &pair
	c.log.Info("use a certificate", "subject", pair.Leaf.Subject.String(), "names", pair.Leaf.DNSNames, "addresses", pair.Leaf.IPAddresses, "until", pair.Leaf.NotAfter)
	return nil
}

// readPEM reads a file, and says what it was. One that is secret must be guarded from
// other users. The information is there with an error too, where there is a file.
func readPEM(name string, secret bool) ([]byte, fs.FileInfo, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|noWait, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, info, fmt.Errorf("%s is no regular file", name)
	}
	if secret {
		if err := hostfile.Guarded(f); err != nil {
			return nil, info, fmt.Errorf("%s %w", name, err)
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxPEM+1))
	if err == nil && len(data) > maxPEM {
		err = fmt.Errorf("%s has more than %d bytes", name, maxPEM)
	}
	return data, info, err
}
