package inspect

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// MaxHello is how many bytes of a flow a hello may take, its records' headers
// included.
const MaxHello = 32 << 10

// maxRecords bounds over how many records a hello may be spread.
const maxRecords = 128

const (
	recordHandshake   = 22
	maxRecord         = 1 << 14
	recordHeader      = 5
	handshakeHeader   = 4
	typeClientHello   = 1
	extServerName     = 0
	extECH            = 0xfe0d
	nameTypeHost      = 0
	maxServerNameLen  = 255
	maxSessionIDBytes = 32
)

// ClientHello is what the first message of a TLS client says in the clear.
type ClientHello struct {
	// ServerName is as it was sent; it may be empty.
	ServerName string
	// ECH is true when there is an encrypted hello inside, or bytes that look like
	// one. Both are the same to us: the outer name is the one that decides.
	ECH bool
}

// ShortError says that a hello is not whole yet.
type ShortError struct {
	// Need is how many bytes there must be at least before it is worth asking
	// again.
	Need int
}

// Error implements error.
func (e *ShortError) Error() string { return fmt.Sprintf("hello needs %d bytes", e.Need) }

var errHello = errors.New("malformed TLS hello")

// ParseHello reads the ClientHello at the beginning of b, over however many
// records. A *ShortError asks for more; any other error is final.
func ParseHello(b []byte) (ClientHello, error) {
	var msg []byte
	rest, used := b, 0
	for n := 0; ; n++ {
		if len(msg) >= handshakeHeader {
			size := handshakeHeader + int(msg[1])<<16 + int(msg[2])<<8 + int(msg[3])
			if msg[0] != typeClientHello || size > MaxHello {
				return ClientHello{}, errHello
			}
			if len(msg) > size { // a client waits for the answer to its hello
				return ClientHello{}, errHello
			}
			if len(msg) == size {
				return parseHelloBody(msg[handshakeHeader:size])
			}
		}
		if n == maxRecords || used > MaxHello {
			return ClientHello{}, errHello
		}
		if len(rest) < recordHeader {
			return ClientHello{}, &ShortError{used + recordHeader}
		}
		size := int(binary.BigEndian.Uint16(rest[3:]))
		if rest[0] != recordHandshake || rest[1] != 3 || size == 0 || size > maxRecord {
			return ClientHello{}, errHello
		}
		used += recordHeader + size
		if len(rest) < recordHeader+size {
			// These bytes may already show that it is not a hello.
			return ClientHello{}, &ShortError{used}
		}
		msg = append(msg, rest[recordHeader:recordHeader+size]...)
		rest = rest[recordHeader+size:]
	}
}

// cursor takes parts off the front of a message. After the first part that is
// not there all are empty and bad is set.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) take(n int) []byte {
	if c.bad || n > len(c.b) {
		c.bad, c.b = true, nil
		return nil
	}
	out := c.b[:n]
	c.b = c.b[n:]
	return out
}

func (c *cursor) uint(bytes int) int {
	n := 0
	for _, b := range c.take(bytes) {
		n = n<<8 | int(b)
	}
	return n
}

// vector takes a part that begins with its length.
func (c *cursor) vector(bytes int) []byte { return c.take(c.uint(bytes)) }

func parseHelloBody(b []byte) (ClientHello, error) {
	c := &cursor{b: b}
	c.take(2 + 32) // version, random
	if len(c.vector(1)) > maxSessionIDBytes {
		return ClientHello{}, errHello
	}
	if suites := c.vector(2); len(suites) == 0 || len(suites)%2 != 0 {
		return ClientHello{}, errHello
	}
	if len(c.vector(1)) == 0 || c.bad { // compression methods
		return ClientHello{}, errHello
	}
	if len(c.b) == 0 {
		return ClientHello{}, nil // a hello of old, without extensions
	}
	exts := &cursor{b: c.vector(2)}
	if c.bad || len(c.b) != 0 {
		return ClientHello{}, errHello
	}
	var h ClientHello
	seen := map[int]bool{}
	for len(exts.b) > 0 {
		kind, body := exts.uint(2), exts.vector(2)
		// A name that is there twice would let us read one and the server the other.
		if exts.bad || seen[kind] {
			return ClientHello{}, errHello
		}
		seen[kind] = true
		switch kind {
		case extServerName:
			name, err := parseServerName(body)
			if err != nil {
				return ClientHello{}, err
			}
			h.ServerName = name
		case extECH:
			h.ECH = true
		}
	}
	return h, nil
}

// parseServerName reads the extension: a list of exactly one host name.
func parseServerName(b []byte) (string, error) {
	ext := &cursor{b: b}
	list := &cursor{b: ext.vector(2)}
	kind, name := list.uint(1), list.vector(2)
	if ext.bad || list.bad || len(ext.b) != 0 || len(list.b) != 0 || kind != nameTypeHost || len(name) == 0 || len(name) > maxServerNameLen {
		return "", errHello
	}
	return string(name), nil
}
