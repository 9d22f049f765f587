// Package agentline shares one stream into an instance among all connections to its agent. The other
// end of the stream is the role Dial of package inner.
package agentline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/cloche-dev/cloche/internal/engine/inner"
)

// ErrRefused says that no process listens at the agent's address.
var ErrRefused = errors.New("no process listens at the agent's address")

// Line is the shared stream of an instance. It is opened by the first Dial and opened again when it is
// lost. It is safe for concurrent use.
type Line struct {
	// Open opens the stream. Required. Only one call runs at a time.
	Open func(ctx context.Context) (io.ReadWriteCloser, error)

	mu     sync.Mutex // held while the stream is opened: the others wait for that one
	mux    *yamux.Session
	closed bool
}

// Dial opens a connection to the agent.
func (l *Line) Dial(ctx context.Context) (net.Conn, error) {
	mux, err := l.session(ctx)
	if err != nil {
		return nil, err
	}
	stream, err := mux.OpenStream()
	if err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { stream.Close(); _ = stream.SetReadDeadline(time.Unix(1, 0)) })
	var first [1]byte
	_, err = io.ReadFull(stream, first[:])
	if !stop() {
		err = ctx.Err()
	}
	if err == nil && first[0] != inner.Connected {
		err = ErrRefused
	}
	if err != nil {
		stream.Close()
		if errors.Is(err, io.EOF) && !mux.IsClosed() {
			err = ErrRefused
		}
		return nil, err
	}
	return conn{stream}, nil
}

// session returns the session on the stream.
func (l *Line) session(ctx context.Context) (*yamux.Session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, net.ErrClosed
	}
	if l.mux != nil && !l.mux.IsClosed() {
		return l.mux, nil
	}
	stream, err := l.Open(ctx)
	if err != nil {
		return nil, err
	}
	mux, err := yamux.Client(stream, inner.MuxConfig())
	if err != nil {
		stream.Close()
		return nil, fmt.Errorf("share the stream: %w", err)
	}
	l.mux = mux
	return mux, nil
}

// Drop closes the stream and every connection on it. The next Dial opens another one.
func (l *Line) Drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mux != nil {
		l.mux.Close()
	}
}

// Close is Drop, after which Dial returns net.ErrClosed.
func (l *Line) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.mux != nil {
		l.mux.Close()
	}
}

// conn is a stream whose errors are those of a connection of package net.
type conn struct{ *yamux.Stream }

// Read implements net.Conn.
func (c conn) Read(b []byte) (int, error) {
	n, err := c.Stream.Read(b)
	return n, inTime(err)
}

// Write implements net.Conn.
func (c conn) Write(b []byte) (int, error) {
	n, err := c.Stream.Write(b)
	return n, inTime(err)
}

func inTime(err error) error {
	if errors.Is(err, yamux.ErrTimeout) {
		return os.ErrDeadlineExceeded
	}
	return err
}
