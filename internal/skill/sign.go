package skill

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/crypto/blake2b"

	"github.com/cloche-dev/cloche/api"
)

const (
	// SumFile lists the SHA-256 of every other file of a package, as sha256sum writes
	// it, and SignatureFile is minisign's signature of that list.
	SumFile       = "SKILL.sum"
	SignatureFile = SumFile + ".minisig"
)

// Signer is a public key of minisign.
type Signer struct {
	id  [8]byte
	key ed25519.PublicKey
}

// ParseSigner reads a public key as minisign prints it.
func ParseSigner(text string) (Signer, error) {
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || len(raw) != 2+8+ed25519.PublicKeySize || string(raw[:2]) != "Ed" {
		return Signer{}, api.Invalid("signed_by", "%q is no public key of minisign", clip(text)).
			WithHint("give the second line of minisign.pub, which begins with RW")
	}
	s := Signer{key: ed25519.PublicKey(raw[10:])}
	copy(s.id[:], raw[2:10])
	return s, nil
}

// ID is the name of the key, as minisign says it.
func (s Signer) ID() string { return fmt.Sprintf("%016X", binary.LittleEndian.Uint64(s.id[:])) }

// verify says whether sig, a file of minisign's, is a signature of data by s.
func (s Signer) verify(data, sig []byte) bool {
	lines := strings.Split(strings.ReplaceAll(string(sig), "\r\n", "\n"), "\n")
	if len(lines) < 4 || !strings.HasPrefix(lines[0], "untrusted comment:") {
		return false
	}
	trusted, ok := strings.CutPrefix(lines[2], "trusted comment: ")
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(lines[1]))
	if !ok || err != nil || len(raw) != 2+8+ed25519.SignatureSize || [8]byte(raw[2:10]) != s.id {
		return false
	}
	global, err := base64.StdEncoding.DecodeString(strings.TrimSpace(lines[3]))
	if err != nil || len(global) != ed25519.SignatureSize {
		return false
	}
	signed := data
	switch string(raw[:2]) {
	case "ED":
		sum := blake2b.Sum512(data)
		signed = sum[:]
	case "Ed":
	default:
		return false
	}
	both := append(append([]byte{}, raw[10:]...), trusted...)
	return ed25519.Verify(s.key, signed, raw[10:]) && ed25519.Verify(s.key, both, global)
}
