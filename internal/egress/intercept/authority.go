package intercept

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/internal/egress/rule"
)

const (
	// authorityLife is longer than any sandbox should live.
	authorityLife = 10 * 365 * 24 * time.Hour
	// leafLife and leafRenew bound the certificate of one host.
	leafLife, leafRenew = 30 * 24 * time.Hour, 24 * time.Hour
	// backdate is for clocks inside that are behind ours.
	backdate = 24 * time.Hour
	// maxLeaves is how many certificates are kept; a sandbox may be told of any
	// number of hosts by a rule with a star.
	maxLeaves = 256
	// maxAuthority bounds the file of an authority.
	maxAuthority = 16 << 10
)

// Authority signs certificates for hosts in the eyes of one sandbox, and only the
// programs of that sandbox trust it. It is safe for concurrent use.
type Authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	now  func() time.Time

	leafKey *ecdsa.PrivateKey // of all hosts: who has one has all of them
	mu      sync.Mutex
	leaves  map[rule.Name]*tls.Certificate
}

// NewAuthority makes one. Label is in its name, for users who look at a
// certificate inside.
func NewAuthority(label string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key of authority: %w", err)
	}
	now := time.Now()
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	own := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "cloche egress of " + label, Organization: []string{"cloche"}},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, own, own, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("sign authority: %w", err)
	}
	return newAuthority(key, cert)
}

// LoadAuthority reads what Marshal wrote.
func LoadAuthority(data []byte) (*Authority, error) {
	if len(data) > maxAuthority {
		return nil, errors.New("read authority: it is too long")
	}
	var key *ecdsa.PrivateKey
	var cert *x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		var err error
		switch block.Type {
		case pemKey:
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case pemCert:
			cert, err = x509.ParseCertificate(block.Bytes)
		}
		if err != nil {
			return nil, fmt.Errorf("read authority: %w", err)
		}
	}
	if key == nil || cert == nil || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("read authority: it has no key with its certificate")
	}
	return newAuthority(key, cert)
}

func newAuthority(key *ecdsa.PrivateKey, cert *x509.Certificate) (*Authority, error) {
	leaf, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key of hosts: %w", err)
	}
	return &Authority{key: key, cert: cert, now: time.Now, leafKey: leaf, leaves: map[rule.Name]*tls.Certificate{}}, nil
}

const (
	pemKey  = "EC PRIVATE KEY"
	pemCert = "CERTIFICATE"
)

// Marshal is key and certificate, for a file that only the daemon's user reads.
func (a *Authority) Marshal() ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(a.key)
	if err != nil {
		return nil, fmt.Errorf("write authority: %w", err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), a.Certificate()...), nil
}

// Certificate is the certificate alone, in PEM: what goes into the sandbox.
func (a *Authority) Certificate() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: a.cert.Raw})
}

// Raw is the certificate alone, in DER.
func (a *Authority) Raw() []byte { return a.cert.Raw }

// leaf is the certificate of a host, made when it is first asked for.
func (a *Authority) leaf(n rule.Name) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if c := a.leaves[n]; c != nil && now.Add(leafRenew).Before(c.Leaf.NotAfter) {
		return c, nil
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: commonName(n)}, DNSNames: []string{string(n)},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(leafLife),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.cert, a.leafKey.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	for old := range a.leaves { // any one: to make it again costs little
		if len(a.leaves) < maxLeaves {
			break
		}
		delete(a.leaves, old)
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leafKey, Leaf: parsed}
	a.leaves[n] = c
	return c, nil
}

// commonName is the name where it fits into that field, which nothing reads any
// more.
func commonName(n rule.Name) string {
	if len(n) > 64 {
		return "cloche"
	}
	return string(n)
}

func serialNumber() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}
