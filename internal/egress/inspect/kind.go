// Package inspect reads what a flow says of itself: the host in a TLS hello, and
// each request of an HTTP/1 connection. It sees foreign bytes only, so everything
// in it is bounded, and anything malformed is refused.
package inspect

import "bytes"

// Kind is what the first bytes of a flow are.
type Kind uint8

// The kinds.
const (
	// Short: too few bytes to tell.
	Short Kind = iota
	// TLS begins like a handshake.
	TLS
	// HTTP begins like a request, of HTTP/1 or by prior knowledge HTTP/2.
	HTTP
	// Other is neither.
	Other
)

// maxMethod is the longest word that may be an HTTP method.
const maxMethod = 32

// KindOf looks at the first bytes of a flow. It answers Short for nothing that
// is longer than 33 bytes.
func KindOf(b []byte) Kind {
	if len(b) == 0 {
		return Short
	}
	if b[0] == recordHandshake {
		return TLS
	}
	word, _, whole := bytes.Cut(b[:min(len(b), maxMethod+1)], []byte(" "))
	for _, c := range word {
		if (c < 'A' || c > 'Z') && c != '-' && c != '_' {
			return Other
		}
	}
	switch {
	case whole && len(word) > 0:
		return HTTP
	case !whole && len(word) <= maxMethod:
		return Short
	}
	return Other
}
