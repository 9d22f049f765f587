//go:build linux

package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

const controlSocket = "control.sock"

// control calls the sentry's control server over a few connections that are
// kept: a new one costs more than most calls.
type control struct {
	path string

	mu     sync.Mutex
	free   []*controlConn
	closed bool
}

type controlConn struct {
	sock *unet.Socket
	rpc  *urpc.Client
}

// maxFree is how many idle connections are kept.
const maxFree = 4

var errControlClosed = errors.New("the sandbox is closed")

// call makes one call. Without a deadline in ctx it gets controlTimeout; a call
// that is given up loses its connection.
func (c *control) call(ctx context.Context, method string, arg, result any) error {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	return c.callLong(ctx, method, arg, result)
}

// callLong is call for what may take as long as ctx allows.
func (c *control) callLong(ctx context.Context, method string, arg, result any) error {
	conn, err := c.get()
	if err != nil {
		return fmt.Errorf("connect to control server: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.sock.Close() })
	err = conn.rpc.Call(method, arg, result)
	inTime := stop()
	_, remote := errors.AsType[urpc.RemoteError](err)
	if inTime && (err == nil || remote) {
		c.put(conn)
		return err
	}
	_ = conn.sock.Close()
	if ctx.Err() != nil {
		return fmt.Errorf("call %s: %w", method, ctx.Err())
	}
	return fmt.Errorf("call %s: %w", method, err)
}

func (c *control) get() (*controlConn, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, errControlClosed
	}
	if n := len(c.free); n > 0 {
		conn := c.free[n-1]
		c.free = c.free[:n-1]
		c.mu.Unlock()
		return conn, nil
	}
	c.mu.Unlock()
	fd, err := pidfd.Socket(c.path, unix.Connect)
	if err != nil {
		return nil, err
	}
	sock, err := unet.NewSocket(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &controlConn{sock: sock, rpc: urpc.NewClient(sock)}, nil
}

func (c *control) put(conn *controlConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.free) >= maxFree {
		_ = conn.sock.Close()
		return
	}
	c.free = append(c.free, conn)
}

// close ends all calls: from then on there is no other.
func (c *control) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.drop()
}

// drop closes the connections that are kept.
func (c *control) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.free {
		_ = conn.sock.Close()
	}
	c.free = nil
}

// listenControl makes the socket on which the sentry is going to accept. Only
// who can enter the 0700 directory can connect.
func listenControl(path string) (*os.File, error) {
	fd, err := pidfd.Socket(path, unix.Bind)
	if err != nil {
		return nil, fmt.Errorf("bind control socket: %w", err)
	}
	if err := unix.Listen(fd, 16); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("listen on control socket: %w", err)
	}
	return os.NewFile(uintptr(fd), controlSocket), nil
}
