package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"

	"github.com/hashicorp/yamux"
	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/internal/engine/docker/inner"
)

// line is the exec by which an instance is reached: one for all streams, made when
// the first is asked for and made again when it is lost.
type line struct {
	mu     sync.Mutex // held while the exec is made: the others wait for that one
	mux    *yamux.Session
	closed bool
}

// errRefused says that no process listens at the agent's port.
var errRefused = errors.New("no process listens at the agent's port")

// dial opens a stream.
func (l *line) dial(ctx context.Context, i *instance) (net.Conn, error) {
	mux, err := l.session(ctx, i)
	if err != nil {
		return nil, err
	}
	stream, err := mux.OpenStream()
	if err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { stream.Close(); _ = stream.SetReadDeadline(past()) })
	var first [1]byte
	_, err = io.ReadFull(stream, first[:])
	if !stop() {
		err = ctx.Err()
	}
	if err == nil && first[0] != inner.Connected {
		err = errRefused
	}
	if err != nil {
		stream.Close()
		if errors.Is(err, io.EOF) && !mux.IsClosed() {
			err = errRefused
		}
		return nil, err
	}
	return conn{stream}, nil
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

// session returns what carries the streams.
func (l *line) session(ctx context.Context, i *instance) (*yamux.Session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, net.ErrClosed
	}
	if l.mux != nil && !l.mux.IsClosed() {
		return l.mux, nil
	}
	made, err := i.d.ExecCreate(ctx, i.rec.Container, client.ExecCreateOptions{
		User: "0:0", AttachStdin: true, AttachStdout: true, WorkingDir: "/",
		Cmd: []string{i.rec.Inner, inner.Dial, strconv.Itoa(i.rec.Port)},
	})
	if err != nil {
		return nil, fmt.Errorf("make exec: %w", err)
	}
	att, err := i.d.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, fmt.Errorf("start exec: %w", err)
	}
	mux, err := yamux.Client(&attached{Conn: att.Conn, out: frames{r: att.Reader}}, inner.MuxConfig())
	if err != nil {
		att.Close()
		return nil, fmt.Errorf("share the exec: %w", err)
	}
	l.mux = mux
	return mux, nil
}

// close ends every stream.
func (l *line) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.mux != nil {
		l.mux.Close()
	}
}

// attached is the connection of an exec, whose output is in frames.
type attached struct {
	net.Conn
	out frames
}

// Read implements net.Conn.
func (a *attached) Read(b []byte) (int, error) { return a.out.Read(b) }
