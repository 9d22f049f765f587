package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// maxStreams bounds the streams of one Client, and so what the other end can
// make it buffer.
const maxStreams = 256

// Client is one connection to the agent of one sandbox. It is safe for
// concurrent use.
type Client struct {
	session *yamux.Session
	version int
	slots   chan struct{}
	refuser sync.WaitGroup
	nudge   *nudger
}

// Connect takes over conn, shows the token and agrees on a version. On error
// conn is closed. ctx bounds only the call.
func Connect(ctx context.Context, conn net.Conn, token []byte) (*Client, error) {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	version, err := greet(conn, token)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, classify(fmt.Errorf("greet agent: %w", err))
	}
	heard := &hearing{Conn: conn}
	session, err := yamux.Client(wire.Coalesce(heard), MuxConfig())
	if err != nil {
		conn.Close()
		return nil, classify(fmt.Errorf("open session: %w", err))
	}
	c := &Client{session: session, version: version, slots: make(chan struct{}, maxStreams), nudge: newNudger(session, heard)}
	c.refuser.Go(c.refuse)
	return c, nil
}

// MuxConfig is the multiplexer's configuration, the same at both ends. There is
// no keepalive: a paused sandbox is not a dead one, and the engine knows.
func MuxConfig() *yamux.Config {
	cfg := yamux.DefaultConfig()
	cfg.EnableKeepAlive = false
	cfg.AcceptBacklog = maxStreams
	cfg.ConnectionWriteTimeout = time.Minute
	cfg.StreamOpenTimeout = 0
	cfg.StreamCloseTimeout = 30 * time.Second
	cfg.LogOutput = io.Discard
	return cfg
}

func greet(conn net.Conn, token []byte) (int, error) {
	if err := wire.NewWriter(conn).JSON(wire.KindHello, wire.Hello{Versions: wire.Versions(), Token: token}); err != nil {
		return 0, err
	}
	r := wire.NewReader(conn)
	r.Max = wire.MaxHello
	kind, payload, err := r.Next()
	if err != nil {
		return 0, err
	}
	if kind != wire.KindWelcome {
		return 0, fmt.Errorf("%w: kind %q instead of a welcome", wire.ErrFrame, byte(kind))
	}
	w, err := wire.Decode[wire.Welcome](payload)
	if err != nil {
		return 0, err
	}
	if w.Version < wire.MinVersion || w.Version > wire.Version {
		return 0, cloche.Errorf(cloche.CodeUnsupported,
			"the agent speaks protocol %s, this program %v", bounded(fmt.Sprint(w.Versions)), wire.Versions()).
			WithHint("the sandbox was made by another release; remove it and create it again")
	}
	return w.Version, nil
}

// refuse closes what the agent opens: nothing in this version of the protocol.
func (c *Client) refuse() {
	for {
		s, err := c.session.AcceptStream()
		if err != nil {
			return
		}
		s.Close()
	}
}

// Version is the protocol in use.
func (c *Client) Version() int { return c.version }

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.session.CloseChan() }

// Close ends the connection and every call on it. Processes go on.
func (c *Client) Close() error {
	err := c.session.Close()
	c.refuser.Wait()
	c.nudge.wg.Wait()
	if err != nil && !errors.Is(err, yamux.ErrSessionShutdown) {
		return fmt.Errorf("close agent connection: %w", err)
	}
	return nil
}

// call is one stream: a request and what follows.
type call struct {
	*wire.Reader
	*wire.Writer
	ctx    context.Context
	stream *yamux.Stream
	stop   func() bool
	once   sync.Once
	free   func()
}

// open begins a call. When ctx ends the stream does, and every read and write on
// it returns.
func (c *Client) open(ctx context.Context, req wire.Request) (*call, error) {
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, classify(ctx.Err())
	case <-c.Done():
		return nil, classify(io.EOF)
	}
	c.nudge.begin()
	stream, err := c.session.OpenStream()
	if err != nil {
		c.nudge.end()
		<-c.slots
		return nil, classify(fmt.Errorf("open stream: %w", err))
	}
	k := &call{Reader: wire.NewReader(stream), Writer: wire.NewWriter(stream), ctx: ctx, stream: stream, free: func() { c.nudge.end(); <-c.slots }}
	// A passed deadline wakes readers and writers that Close alone would not.
	k.stop = context.AfterFunc(ctx, func() { stream.SetDeadline(time.Unix(1, 0)) })
	if err := k.JSON(wire.KindRequest, req); err != nil {
		k.end()
		return nil, k.fail(fmt.Errorf("send request: %w", err))
	}
	return k, nil
}

// end closes the stream and gives its slot back; it may be called again.
func (k *call) end() {
	k.once.Do(func() {
		k.stop()
		k.stream.SetDeadline(time.Unix(1, 0))
		k.stream.Close()
		k.free()
	})
}

// next reads a frame; a failure that the agent reports is the error.
func (k *call) next() (wire.Kind, []byte, error) {
	kind, payload, err := k.Next()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, k.fail(err)
	}
	if kind == wire.KindFail {
		return 0, nil, decodeFailure(payload)
	}
	return kind, payload, nil
}

// fail is err, or why ctx ended where that is the cause.
func (k *call) fail(err error) error {
	if cause := k.ctx.Err(); cause != nil {
		return classify(cause)
	}
	return classify(err)
}

// unexpected is the error for a frame that has no business here.
func unexpected(kind wire.Kind) error {
	return classify(fmt.Errorf("%w: kind %q out of place", wire.ErrFrame, byte(kind)))
}

// reply waits for the answer to k and ends it.
func reply[T any](k *call) (T, error) {
	defer k.end()
	var zero T
	kind, payload, err := k.next()
	if err != nil {
		return zero, err
	}
	if kind != wire.KindReply {
		return zero, unexpected(kind)
	}
	v, err := wire.Decode[T](payload)
	if err != nil {
		return zero, classify(err)
	}
	return v, nil
}

// ask is a call of one request and one answer.
func ask[T any](ctx context.Context, c *Client, req wire.Request) (T, error) {
	k, err := c.open(ctx, req)
	if err != nil {
		var zero T
		return zero, err
	}
	return reply[T](k)
}
