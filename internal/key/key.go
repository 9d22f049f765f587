// Package key keeps the API keys of a home: who may come by which key, and for
// how long. It has no key, only their hashes.
package key

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// A key is "clk_", 16 letters that find its record, "_", and 256 random bits in
// 64 hexadecimal digits. The beginning lets people and scanners of source code
// recognise one that is where it should not be.
const (
	prefix     = "clk_"
	idPrefix   = "key-"
	idLen      = 16
	secretLen  = 64
	textLen    = len(prefix) + idLen + 1 + secretLen
	secretSize = sha256.Size
)

// hash is what is kept of a key. One round of SHA-256 is enough: the slow hashes
// for passwords make guessing expensive where a guess can succeed, and 2^256
// keys cannot be tried, however cheap a try is. It is also what lets a key be
// looked at on every request.
type hash [sha256.Size]byte

func hashOf(text string) hash { return sha256.Sum256([]byte(text)) }

// newText makes a key and the id of its record.
func newText() (id, text string) {
	var b [secretSize]byte
	rand.Read(b[:]) // never fails
	id = api.NewID(idPrefix)
	return id, prefix + strings.TrimPrefix(id, idPrefix) + "_" + hex.EncodeToString(b[:])
}

// idIn is the id of the record that a key would have; false for what is no key.
// It looks at nothing secret.
func idIn(text string) (string, bool) {
	if len(text) != textLen || !strings.HasPrefix(text, prefix) || text[len(prefix)+idLen] != '_' {
		return "", false
	}
	id := idPrefix + text[len(prefix):len(prefix)+idLen]
	return id, api.ValidName(id)
}

// ClipID shortens what came as an id to what may be told of it: a key that was sent
// by mistake is not.
func ClipID(id string) string { return id[:min(len(id), len(idPrefix)+idLen)] }

// same compares in a time that does not depend on where they differ.
func (h hash) same(other hash) bool { return subtle.ConstantTimeCompare(h[:], other[:]) == 1 }

// MarshalText writes a hash in hexadecimal digits.
func (h hash) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(h[:])), nil }

// UnmarshalText reads one.
func (h *hash) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != len(h) {
		return errNoHash
	}
	copy(h[:], b)
	return nil
}
