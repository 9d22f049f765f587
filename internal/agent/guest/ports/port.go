//go:build linux

package ports

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// dialTime bounds a dial inside.
const dialTime = 10 * time.Second

// Dial connects the stream to a port inside.
func (ls *Listeners) Dial(p *session.Call, port int) error {
	if port < 1 || port > 65535 {
		return api.Invalid("port", "port %d does not exist", port).WithHint("1 to 65535")
	}
	// An endpoint is the host's service, and is not shown to the outside.
	if port == ls.port || ls.has(port) {
		return p.JSON(wire.KindReply, wire.DialReply{Outcome: wire.DialOwn})
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	defer cancel()
	c, err := dialLoopback(ctx, port)
	if errors.Is(err, unix.ECONNREFUSED) {
		return p.JSON(wire.KindReply, wire.DialReply{Outcome: wire.DialRefused})
	}
	if err != nil {
		return api.Errorf(api.CodeUnavailable, "port %d in the sandbox cannot be reached: %w", port, err)
	}
	defer c.Close()
	if err := p.JSON(wire.KindReply, wire.DialReply{Outcome: wire.DialOpen}); err != nil {
		return nil
	}
	conn := c.(*net.TCPConn)
	var out sync.WaitGroup
	out.Go(func() { portOut(p, conn) })
	portIn(p, conn)
	out.Wait()
	return nil
}

// dialLoopback connects to a port of 127.0.0.1, or of ::1 if no process listens there: development
// servers such as Vite's listen on the first address of "localhost", which can be either.
func dialLoopback(ctx context.Context, port int) (net.Conn, error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if !errors.Is(err, unix.ECONNREFUSED) {
		return c, err
	}
	if c, err := dialer.DialContext(ctx, "tcp6", net.JoinHostPort("::1", strconv.Itoa(port))); err == nil {
		return c, nil
	}
	return nil, err
}

// portOut sends what the port's server says. A failure ends both ways.
func portOut(p *session.Call, conn *net.TCPConn) {
	buf := make([]byte, 8<<10)
	for {
		n, err := conn.Read(buf)
		if n > 0 && p.Bytes(wire.KindData, buf[:n]) != nil {
			break
		}
		if n == len(buf) && n < maxBuffer {
			buf = make([]byte, min(4*n, maxBuffer))
		}
		if err == nil {
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if ne, ok := errors.AsType[*net.OpError](err); !ok || ne == nil {
			_ = p.End() // the orderly end
			return
		}
		break
	}
	// Reset: the caller sees a stream that ends without its end.
	conn.Close()
	p.Stream.Close()
}

// portIn hands what the caller sends to the port's server.
func portIn(p *session.Call, conn *net.TCPConn) {
	for {
		kind, payload, err := p.Next()
		if err != nil || kind != wire.KindData && kind != wire.KindEnd {
			// The caller is gone.
			_ = p.Stream.SetWriteDeadline(time.Unix(1, 0))
			conn.Close()
			return
		}
		if kind == wire.KindEnd {
			_ = conn.CloseWrite()
			continue // the stream's own end follows at the latest when the caller closes
		}
		if _, err := conn.Write(payload); err != nil {
			conn.Close()
			return
		}
	}
}
