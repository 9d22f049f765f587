//go:build linux || darwin || windows

package daemon

import (
	"context"
	"fmt"
	"net"
	"sync"
)

// memoryListener accepts the connections that its own dial makes. It is the
// listener of an in-process core. It has no address, so no other process can connect.
type memoryListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newMemoryListener() *memoryListener {
	return &memoryListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// dial connects to the listener.
func (l *memoryListener) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs, err := connPair()
	if err != nil {
		return nil, fmt.Errorf("make a pair of connections: %w", err)
	}
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.done:
		err = net.ErrClosed
	case <-ctx.Done():
		err = ctx.Err()
	}
	ours.Close()
	theirs.Close()
	return nil, err
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
