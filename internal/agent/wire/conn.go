package wire

import (
	"encoding/binary"
	"net"
)

// Of the multiplexer's frame header: version, type, two bytes of flags, four of
// stream and four of length.
const (
	muxHeaderLen = 12
	muxData      = 0
	muxWindow    = 1
	muxSYN       = 1
	muxACK       = 2
)

// Coalesce returns conn with what the multiplexer writes in pieces sent as one:
// the header and the body of a frame, and before them the frame that opens or
// accepts a stream. The opener sends a request at once; an acceptance, when it
// grants nothing, tells the opener nothing that it waits for. In a sandbox
// each write wakes a network stack.
func Coalesce(conn net.Conn) net.Conn { return &coalescing{Conn: conn} }

// coalescing is written to by one goroutine: the multiplexer's sender, which
// writes each header and each body with one call.
type coalescing struct {
	net.Conn
	held []byte
	body bool // the next write is the body of the last header
}

func (c *coalescing) Write(p []byte) (int, error) {
	first := len(c.held) == 0
	c.held = append(c.held, p...)
	if c.body {
		c.body = false
	} else if len(p) == muxHeaderLen {
		flags := binary.BigEndian.Uint16(p[2:])
		switch {
		case p[1] == muxData && binary.BigEndian.Uint32(p[8:]) > 0:
			c.body = true
			return len(p), nil
		case first && p[1] == muxWindow && (flags == muxSYN || flags == muxACK && binary.BigEndian.Uint32(p[8:]) == 0):
			// An acceptance that also grants window is not held: the opener may
			// wait for it before it says all that it is asked for.
			return len(p), nil
		}
	}
	_, err := c.Conn.Write(c.held)
	if cap(c.held) > 2*MaxData {
		c.held = nil
	}
	c.held = c.held[:0]
	if err != nil {
		return 0, err
	}
	return len(p), nil
}
