package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// DialPort connects to 127.0.0.1:port inside, or to [::1]:port if no process listens there. ctx bounds only the call. The
// connection has CloseWrite. Where nothing listens the error is
// api.CodeUnavailable and may be retried.
func (c *Client) DialPort(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, api.Invalid("port", "port %d does not exist", port).WithHint("1 to 65535")
	}
	// The stream lives on when ctx ends after the call.
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	k, err := c.openIdle(inner, wire.Request{Op: wire.OpDial, Port: port})
	if err == nil {
		var conn *portConn
		if conn, err = dialed(k, port); err == nil && stop() {
			conn.cancel = cancel
			return conn, nil
		}
		k.end()
	}
	stop()
	cancel()
	if ctx.Err() != nil {
		err = classify(ctx.Err())
	}
	return nil, err
}

// dialed reads the outcome.
func dialed(k *call, port int) (*portConn, error) {
	kind, payload, err := k.next()
	if err != nil {
		return nil, err
	}
	if kind != wire.KindReply {
		return nil, unexpected(kind)
	}
	r, err := wire.Decode[wire.DialReply](payload)
	if err != nil {
		return nil, classify(err)
	}
	switch r.Outcome {
	case wire.DialOpen:
		return &portConn{k: k, port: port}, nil
	case wire.DialRefused:
		e := api.Errorf(api.CodeUnavailable, "nothing listens on port %d in the sandbox", port)
		e.Retryable = true
		return nil, e
	case wire.DialOwn:
		return nil, api.Errorf(api.CodeDenied, "port %d in the sandbox is the sandbox's own, or an endpoint's", port)
	}
	return nil, classify(fmt.Errorf("%w: outcome %q", wire.ErrFrame, bounded(string(r.Outcome))))
}

// portConn is a connection to a port inside: frames on a stream. It reads them
// by itself, and not by a wire.Reader, because a deadline may cut a frame in two.
type portConn struct {
	k      *call
	port   int
	cancel func()
	closed atomic.Bool

	rmu  sync.Mutex
	hdr  [5]byte
	have int    // of hdr
	left uint32 // of the frame's bytes
	eof  bool

	wmu    sync.Mutex
	frame  []byte
	broken error // a write was cut, or the end was sent
}

// Read implements net.Conn.
func (c *portConn) Read(p []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	for c.left == 0 {
		if c.eof {
			return 0, io.EOF
		}
		if len(p) == 0 {
			return 0, nil
		}
		n, err := c.k.stream.Read(c.hdr[c.have:])
		c.have += n
		if err != nil {
			return 0, c.fail("read", err)
		}
		if c.have < len(c.hdr) {
			continue
		}
		c.have = 0
		c.left = binary.BigEndian.Uint32(c.hdr[1:])
		switch kind := wire.Kind(c.hdr[0]); {
		case kind == wire.KindEnd && c.left == 0:
			c.eof = true
		case kind == wire.KindData && c.left <= wire.MaxData:
		default:
			c.k.end()
			c.left, c.eof = 0, true
			return 0, c.fail("read", unexpected(kind))
		}
	}
	n, err := c.k.stream.Read(p[:min(len(p), int(c.left))])
	c.left -= uint32(n)
	if n > 0 {
		return n, nil
	}
	return 0, c.fail("read", err)
}

// Write implements net.Conn. After one that failed in the middle the connection
// takes no more.
func (c *portConn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	total := 0
	for total < len(p) {
		n := min(len(p)-total, wire.MaxData)
		if err := c.send(wire.KindData, p[total:total+n]); err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

// CloseWrite ends this side's bytes; the other side's go on.
func (c *portConn) CloseWrite() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.broken != nil {
		return nil
	}
	err := c.send(wire.KindEnd, nil)
	c.broken = net.ErrClosed
	return err
}

func (c *portConn) send(kind wire.Kind, data []byte) error {
	if c.broken != nil {
		return c.fail("write", c.broken)
	}
	c.k.nudge()
	c.frame = append(c.frame[:0], byte(kind))
	c.frame = binary.BigEndian.AppendUint32(c.frame, uint32(len(data)))
	c.frame = append(c.frame, data...)
	if n, err := c.k.stream.Write(c.frame); err != nil {
		if n > 0 {
			c.broken = err
		}
		return c.fail("write", err)
	}
	return nil
}

// fail is err as a net.Conn gives it.
func (c *portConn) fail(op string, err error) error {
	switch {
	case c.closed.Load():
		err = net.ErrClosed
	case errors.Is(err, yamux.ErrTimeout):
		err = os.ErrDeadlineExceeded
	case errors.Is(err, io.EOF): // the stream ended without the end of the bytes
		err = io.ErrUnexpectedEOF
	}
	return &net.OpError{Op: op, Net: "tcp", Addr: c.RemoteAddr(), Err: err}
}

// Close implements net.Conn.
func (c *portConn) Close() error {
	c.closed.Store(true)
	c.k.end()
	c.cancel()
	return nil
}

// LocalAddr implements net.Conn.
func (c *portConn) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// RemoteAddr implements net.Conn: the address inside.
func (c *portConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: c.port}
}

// SetDeadline implements net.Conn.
func (c *portConn) SetDeadline(t time.Time) error { return c.k.stream.SetDeadline(t) }

// SetReadDeadline implements net.Conn.
func (c *portConn) SetReadDeadline(t time.Time) error { return c.k.stream.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *portConn) SetWriteDeadline(t time.Time) error { return c.k.stream.SetWriteDeadline(t) }
