package api

import (
	"crypto/rand"
	"encoding/base32"
	"strings"
)

// NewID returns prefix followed by 80 random bits in lower-case base 32, such as
// "sb-4k2mwd7e3x9qv0ha". IDs are safe as file names and host names.
func NewID(prefix string) string {
	var b [10]byte
	rand.Read(b[:]) // never fails since Go 1.24
	return prefix + strings.ToLower(idEncoding.EncodeToString(b[:]))
}

// idEncoding uses Crockford's alphabet, which has no letters that look alike.
var idEncoding = base32.NewEncoding("0123456789ABCDEFGHJKMNPQRSTVWXYZ").WithPadding(base32.NoPadding)

// MaxNameLen is the maximum length of a sandbox or workspace name, in bytes.
const MaxNameLen = 63

// ValidName reports whether s is a valid name of a sandbox or a workspace: 1 to 63 of a-z, 0-9,
// '-', '_' and '.', beginning with a letter or digit.
func ValidName(s string) bool {
	if s == "" || len(s) > MaxNameLen {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case i > 0 && (c == '-' || c == '_' || c == '.'):
		default:
			return false
		}
	}
	return true
}
