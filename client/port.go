package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/coder/websocket"
)

// portFrame is the maximum size of a frame that is sent to a port. portLinger is how long a closed
// connection can take to send what was written.
const (
	portFrame  = 64 << 10
	portLinger = 5 * time.Second
)

// OpenPort opens a port of a sandbox as a URL. A port that is open already gets a new token, and the
// earlier one ends.
func (c *Client) OpenPort(ctx context.Context, ref string, spec api.PortSpec) (api.OpenedPort, error) {
	var opened api.OpenedPort
	path, err := sandboxPath(ref, "/ports")
	if err == nil {
		err = c.call(ctx, http.MethodPost, path, nil, spec, &opened)
	}
	return opened, err
}

// OpenPorts returns the open ports of a sandbox, sorted by number.
func (c *Client) OpenPorts(ctx context.Context, ref string) (api.PortList, error) {
	var list api.PortList
	path, err := sandboxPath(ref, "/ports")
	if err == nil {
		err = c.call(ctx, http.MethodGet, path, nil, nil, &list)
	}
	return list, err
}

// ClosePort closes an open port of a sandbox, and ends the connections to it.
func (c *Client) ClosePort(ctx context.Context, ref string, port int) error {
	path, err := sandboxPath(ref, "/ports/"+strconv.Itoa(port))
	if err == nil {
		err = c.call(ctx, http.MethodDelete, path, nil, nil, nil)
	}
	return err
}

// DialPort connects to a TCP port inside a sandbox, at 127.0.0.1 or ::1. ctx limits only the connecting.
// The connection has deadlines, and a CloseWrite that closes one direction: pass it to an
// http.Transport, or copy to and from it. A connection that breaks is not replaced.
func (c *Client) DialPort(ctx context.Context, ref string, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, api.Invalid("port", "%d is no port", port).WithHint("give a number from 1 to 65535")
	}
	path, err := sandboxPath(ref, "/ports/"+strconv.Itoa(port))
	if err != nil {
		return nil, err
	}
	ws, err := c.dialSocket(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(-1) // a frame is copied in pieces
	p := &portConn{ws: ws, addr: portAddr(ref + ":" + strconv.Itoa(port)), sent: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	var in, out net.Conn
	p.in, in = net.Pipe()
	p.out, out = net.Pipe()
	p.wg.Go(func() { p.receive(in) })
	p.wg.Go(func() {
		defer close(p.sent)
		p.transmit(out)
	})
	return p, nil
}

// portConn is a connection to a port over a WebSocket. Binary frames hold the bytes, and an empty
// frame is the end of its direction. Two pipes connect the WebSocket and the caller, because pipes
// have deadlines that do not close the connection.
type portConn struct {
	ws      *websocket.Conn
	addr    portAddr
	ctx     context.Context
	cancel  context.CancelFunc
	in, out net.Conn // the caller's ends
	wg      sync.WaitGroup
	sent    chan struct{} // closed when transmit returns

	mu     sync.Mutex
	closed bool
	broke  error // the error of receive, if it was not the end of the stream
}

// receive copies what the port sends until it ends.
func (p *portConn) receive(w net.Conn) {
	defer w.Close()
	buf := make([]byte, portFrame)
	for {
		kind, r, err := p.ws.Reader(p.ctx)
		if err != nil {
			// The daemon closes after both directions have ended. Any other close means that the
			// connection broke.
			p.fail(err)
			return
		}
		if kind != websocket.MessageBinary {
			p.fail(brokenAnswer("the daemon sent text where a port's bytes were due"))
			return
		}
		n, err := io.CopyBuffer(onlyWriter{w}, r, buf)
		switch {
		case errors.Is(err, io.ErrClosedPipe):
			return // the caller closed
		case err != nil:
			p.fail(err)
			return
		case n == 0:
			w.Close()
			p.drain()
			return
		}
	}
}

// drain keeps reading after the end, so that pings are answered while the caller still writes.
func (p *portConn) drain() {
	for {
		if _, _, err := p.ws.Reader(p.ctx); err != nil {
			return
		}
	}
}

// transmit copies what the caller writes until it closes.
func (p *portConn) transmit(r net.Conn) {
	defer r.Close()
	buf := make([]byte, portFrame)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if werr := p.ws.Write(p.ctx, websocket.MessageBinary, buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			_ = p.ws.Write(p.ctx, websocket.MessageBinary, nil)
			return
		}
	}
}

func (p *portConn) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broke = err
}

// Read implements net.Conn.
func (p *portConn) Read(b []byte) (int, error) {
	n, err := p.in.Read(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case errors.Is(err, io.EOF) && p.broke != nil && !p.closed:
		err = p.opError("read", p.broke)
	case errors.Is(err, io.ErrClosedPipe):
		err = p.opError("read", net.ErrClosed)
	}
	return n, err
}

// Write implements net.Conn.
func (p *portConn) Write(b []byte) (int, error) {
	n, err := p.out.Write(b)
	if errors.Is(err, io.ErrClosedPipe) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.closed {
			err = net.ErrClosed
		}
		err = p.opError("write", err)
	}
	return n, err
}

func (p *portConn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "cloche", Addr: p.addr, Err: err}
}

// CloseWrite closes the direction to the port, and not the one from it.
func (p *portConn) CloseWrite() error { return p.out.Close() }

// Close implements net.Conn. Data that was written is still sent, for up to five seconds.
func (p *portConn) Close() error {
	p.mu.Lock()
	was := p.closed
	p.closed = true
	p.mu.Unlock()
	if was {
		return p.opError("close", net.ErrClosed)
	}
	p.out.Close()
	p.in.Close()
	t := time.AfterFunc(portLinger, func() { p.ws.CloseNow() })
	defer t.Stop()
	<-p.sent
	p.ws.Close(websocket.StatusNormalClosure, "")
	p.cancel()
	p.wg.Wait()
	return nil
}

// LocalAddr implements net.Conn.
func (p *portConn) LocalAddr() net.Addr { return portAddr("client") }

// RemoteAddr implements net.Conn.
func (p *portConn) RemoteAddr() net.Addr { return p.addr }

// SetDeadline implements net.Conn.
func (p *portConn) SetDeadline(t time.Time) error {
	return errors.Join(p.in.SetDeadline(t), p.out.SetDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (p *portConn) SetReadDeadline(t time.Time) error { return p.in.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (p *portConn) SetWriteDeadline(t time.Time) error { return p.out.SetWriteDeadline(t) }

// portAddr is SANDBOX:PORT.
type portAddr string

// Network implements net.Addr.
func (portAddr) Network() string { return "cloche" }

// String implements net.Addr.
func (a portAddr) String() string { return string(a) }

// onlyWriter hides ReadFrom, which would not use the buffer.
type onlyWriter struct{ io.Writer }
