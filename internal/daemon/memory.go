//go:build linux || darwin

package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
)

// memoryListener accepts the connections that its own dial makes. It is the
// door of an in-process core: no address, so nobody else can knock.
type memoryListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newMemoryListener() *memoryListener {
	return &memoryListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// dial connects to the listener by a socket pair, which unlike net.Pipe has
// buffers and deadlines of the kernel's.
func (l *memoryListener) dial(ctx context.Context) (net.Conn, error) {
	fds, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("make socket pair: %w", err)
	}
	ours, err1 := fileConn(fds[0])
	theirs, err2 := fileConn(fds[1])
	if err1 == nil && err2 == nil {
		select {
		case l.conns <- theirs:
			return ours, nil
		case <-l.done:
			err = net.ErrClosed
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	for _, c := range []net.Conn{ours, theirs} {
		if c != nil {
			c.Close()
		}
	}
	for _, e := range []error{err1, err2} {
		if e != nil {
			return nil, e
		}
	}
	return nil, err
}

func fileConn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "in-process")
	defer f.Close() // FileConn has its own copy
	return net.FileConn(f)
}

// Accept implements net.Listener.
func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *memoryListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *memoryListener) Addr() net.Addr { return &net.UnixAddr{Name: "in-process", Net: "unix"} }
