package intercept

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // what the format asks for; nobody relies on it
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"strconv"
	"time"
	"unicode/utf16"
)

// maxRoots is how many certificates of a bundle are taken over.
const maxRoots = 1000

// Trust are files by which programs inside trust an Authority beside all that they
// trusted before.
type Trust struct {
	// Own is the authority alone, and Bundle also all others; both in PEM.
	Own, Bundle []byte
	// Java is Bundle as a key store that every Java reads.
	Java []byte
}

// JavaPassword opens Trust.Java. It protects nothing: there are no keys in it.
const JavaPassword = "changeit"

// NewTrust makes the files. System is a bundle in PEM, as the programs had it; what
// is no certificate in it is left out.
func NewTrust(a *Authority, system []byte) Trust {
	certs := [][]byte{a.Raw()}
	bundle := bytes.NewBuffer(a.Certificate())
	for block, rest := pem.Decode(system); block != nil && len(certs) < maxRoots; block, rest = pem.Decode(rest) {
		if block.Type != pemCert {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			continue
		}
		certs = append(certs, block.Bytes)
		bundle.Write(pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: block.Bytes}))
	}
	return Trust{Own: a.Certificate(), Bundle: bundle.Bytes(), Java: keyStore(certs)}
}

// keyStore is a JKS file of trusted certificates.
func keyStore(certs [][]byte) []byte {
	const (
		magic, version  = 0xfeedfeed, 2
		trustedCert     = 2
		salt            = "Mighty Aphrodite"
		certificateType = "X.509"
	)
	be := binary.BigEndian
	text := func(b []byte, s string) []byte { return append(be.AppendUint16(b, uint16(len(s))), s...) }
	b := be.AppendUint32(nil, magic)
	b = be.AppendUint32(b, version)
	b = be.AppendUint32(b, uint32(len(certs)))
	for i, der := range certs {
		b = be.AppendUint32(b, trustedCert)
		b = text(b, "cloche-"+strconv.Itoa(i))
		b = be.AppendUint64(b, uint64(time.Now().UnixMilli()))
		b = text(b, certificateType)
		b = be.AppendUint32(b, uint32(len(der)))
		b = append(b, der...)
	}
	h := sha1.New() //nolint:gosec // as above
	for _, c := range utf16.Encode([]rune(JavaPassword)) {
		h.Write(be.AppendUint16(nil, c))
	}
	h.Write([]byte(salt))
	h.Write(b)
	return h.Sum(b)
}
