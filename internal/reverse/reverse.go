// Package reverse is how a client serves an endpoint of a sandbox: over one
// connection that the client has made, the daemon opens a stream for each connection
// to the endpoint. Both ends are here.
package reverse

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

const (
	// window is how much of a stream may be on its way.
	window = 256 << 10
	// backlog is how many streams may wait to be accepted.
	backlog = 256
	// aliveTime is how often a silent connection is asked whether it lives, and how
	// long the answer may take.
	aliveTime = 15 * time.Second
	closeTime = 30 * time.Second
	// maxFrame is the longest piece of a stream.
	maxFrame  = 64 << 10
	headerLen = 4
)

var errFrame = errors.New("malformed frame")

func config() *yamux.Config {
	cfg := yamux.DefaultConfig()
	cfg.AcceptBacklog, cfg.MaxStreamWindowSize = backlog, window
	cfg.KeepAliveInterval, cfg.ConnectionWriteTimeout = aliveTime, aliveTime
	cfg.StreamOpenTimeout, cfg.StreamCloseTimeout = closeTime, closeTime
	cfg.LogOutput = io.Discard
	return cfg
}

// Session is the daemon's end.
type Session struct{ mux *yamux.Session }

// Open takes over conn.
func Open(conn net.Conn) (*Session, error) {
	mux, err := yamux.Client(conn, config())
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("open session: %w", err)
	}
	return &Session{mux}, nil
}

// Open makes a connection to what the client serves. ctx bounds only the call, which
// waits only for a free slot.
func (s *Session) Open(ctx context.Context) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	st, err := s.mux.OpenStream()
	if err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	return &Conn{Stream: st}, nil
}

// Done is closed when the client has gone.
func (s *Session) Done() <-chan struct{} { return s.mux.CloseChan() }

// Close ends the session with every stream.
func (s *Session) Close() error {
	if err := s.mux.Close(); err != nil {
		return fmt.Errorf("close session: %w", err)
	}
	return nil
}

// Listener is the client's end: a net.Listener for the connections to the endpoint.
type Listener struct{ mux *yamux.Session }

// Listen takes over conn.
func Listen(conn net.Conn) (*Listener, error) {
	mux, err := yamux.Server(conn, config())
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("open session: %w", err)
	}
	return &Listener{mux}, nil
}

// Accept implements net.Listener. When the daemon has gone the error is io.EOF, and
// net.ErrClosed after Close.
func (l *Listener) Accept() (net.Conn, error) {
	st, err := l.mux.AcceptStream()
	if err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	return &Conn{Stream: st}, nil
}

// Close implements net.Listener: it ends what is open too.
func (l *Listener) Close() error {
	if err := l.mux.Close(); err != nil {
		return fmt.Errorf("close session: %w", err)
	}
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.mux.Addr() }

// Conn is one stream: frames of a length and bytes, of which the one without bytes
// is the end of its direction. A stream that ends without was reset.
type Conn struct {
	*yamux.Stream

	rmu  sync.Mutex
	head [headerLen]byte
	have int
	left uint32
	eof  bool

	wmu   sync.Mutex
	frame []byte
	ended bool
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	for c.left == 0 {
		if c.eof {
			return 0, io.EOF
		}
		n, err := c.Stream.Read(c.head[c.have:])
		c.have += n
		if err != nil {
			return 0, broken(err)
		}
		if c.have < headerLen {
			continue
		}
		c.have, c.left = 0, binary.BigEndian.Uint32(c.head[:])
		if c.left > maxFrame {
			err := fmt.Errorf("read stream: %w: %d bytes", errFrame, c.left)
			c.left = 0
			c.Reset()
			return 0, err
		}
		c.eof = c.left == 0
	}
	n, err := c.Stream.Read(p[:min(len(p), int(c.left))])
	c.left -= uint32(n)
	if n > 0 {
		return n, nil
	}
	return 0, broken(err)
}

// broken is the error of a stream that ended without its end.
func broken(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	total := 0
	for total < len(p) {
		n := min(len(p)-total, maxFrame)
		if err := c.send(p[total : total+n]); err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

func (c *Conn) send(p []byte) error {
	if c.ended {
		return net.ErrClosed
	}
	c.frame = binary.BigEndian.AppendUint32(c.frame[:0], uint32(len(p)))
	c.frame = append(c.frame, p...)
	if _, err := c.Stream.Write(c.frame); err != nil {
		c.ended = true // a frame that was cut is followed by nothing
		return err
	}
	return nil
}

// CloseWrite ends this side's bytes; the other side's go on.
func (c *Conn) CloseWrite() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.ended {
		return nil
	}
	err := c.send(nil)
	c.ended = true
	return err
}

// Close implements net.Conn: what was written arrives, and then the end of it.
func (c *Conn) Close() error {
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_ = c.CloseWrite()
	c.Reset()
	return nil
}

// Reset ends the connection so that the other side sees that it broke off.
func (c *Conn) Reset() {
	_ = c.SetDeadline(time.Unix(1, 0))
	c.Stream.Close()
}
