package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
	"github.com/cloche-dev/cloche/internal/await"
)

const (
	// maxStreams bounds the calls of one Client, and maxIdleStreams those that may
	// be silent for long, such as the reading of each process's output. With
	// streamWindow they bound what the other end can make it buffer.
	maxStreams     = 256
	maxIdleStreams = 1280
	// streamWindow is how much of a stream may be on its way. A round trip into a
	// sandbox takes a millisecond or two on a busy machine.
	streamWindow = 512 << 10
)

// Client is one connection to the agent of one sandbox. It is safe for
// concurrent use.
type Client struct {
	session *yamux.Session
	version int
	slots   chan struct{}
	idle    chan struct{}  // slots of calls that may be silent for long
	doorman sync.WaitGroup // of everything that admits what the agent opens
	nudge   *Nudger        // nil where the connection holds nothing back
	// life has the values of the context of Connect, and no end.
	life  context.Context
	watch watch
	// saving is set by Suspend.
	saving atomic.Bool
	short  shortCalls
	// incoming bounds the connections that processes inside have to listeners.
	incoming chan struct{}

	mu        sync.Mutex
	listeners map[string]*Listener
}

// Connect takes over conn, shows the token and agrees on a version. On error
// conn is closed. ctx bounds only the call. A conn that is HoldsBack is nudged.
func Connect(ctx context.Context, conn net.Conn, token []byte) (*Client, error) {
	return connect(ctx, conn, token, wire.Versions())
}

// connect speaks one of the versions.
func connect(ctx context.Context, conn net.Conn, token []byte, versions []int) (*Client, error) {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	version, err := greet(conn, token, versions)
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
	heard := &Hearing{Conn: conn}
	session, err := yamux.Client(wire.Coalesce(heard), MuxConfig())
	if err != nil {
		conn.Close()
		return nil, classify(fmt.Errorf("open session: %w", err))
	}
	c := &Client{session: session, version: version, slots: make(chan struct{}, maxStreams), idle: make(chan struct{}, maxIdleStreams)}
	if _, held := conn.(HoldsBack); held {
		c.nudge = NewNudger(session, heard)
	}
	c.life = context.WithoutCancel(ctx)
	c.incoming, c.listeners = make(chan struct{}, maxIncoming), map[string]*Listener{}
	c.doorman.Go(c.admit)
	return c, nil
}

// MuxConfig is the multiplexer's configuration, the same at both ends. There is
// no keepalive: a paused sandbox is not a dead one, and the engine knows.
func MuxConfig() *yamux.Config {
	cfg := yamux.DefaultConfig()
	cfg.EnableKeepAlive = false
	cfg.AcceptBacklog = maxStreams
	cfg.MaxStreamWindowSize = streamWindow
	cfg.ConnectionWriteTimeout = time.Minute
	cfg.StreamOpenTimeout = 0
	cfg.StreamCloseTimeout = 30 * time.Second
	cfg.LogOutput = io.Discard
	return cfg
}

func greet(conn net.Conn, token []byte, versions []int) (int, error) {
	if err := wire.NewWriter(conn).JSON(wire.KindHello, wire.Hello{Versions: versions, Token: token}); err != nil {
		return 0, err
	}
	w, err := wire.ReadFirst[wire.Welcome](conn, wire.KindWelcome)
	if err != nil {
		return 0, err
	}
	if !slices.Contains(versions, w.Version) {
		return 0, api.Errorf(api.CodeUnsupported,
			"the agent speaks protocol %s, this program %v", bounded(fmt.Sprint(w.Versions)), versions).
			WithHint("the sandbox was made by another release; remove it and create it again")
	}
	return w.Version, nil
}

// Version is the protocol in use.
func (c *Client) Version() int { return c.version }

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.session.CloseChan() }

// Close ends the connection and every call on it. Processes go on.
func (c *Client) Close() error {
	err := c.session.Close()
	c.doorman.Wait()
	c.nudge.Wait()
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
	client *Client
	stream *yamux.Stream
	stop   func() bool
	once   sync.Once
	free   func()
	// nudge says that something was sent for which an answer may be waited.
	nudge func()
}

// open begins a call. When ctx ends the stream does, and every read and write on
// it returns.
func (c *Client) open(ctx context.Context, req wire.Request) (*call, error) {
	return c.openSince(ctx, req.Op.Since(), req)
}

// openIdle begins a call that may be silent for long.
func (c *Client) openIdle(ctx context.Context, req wire.Request) (*call, error) {
	return c.begin(ctx, req, req.Op.Since(), c.idle, func() func() {
		c.nudge.BeginIdle()
		return c.nudge.EndIdle
	})
}

// openSince begins a call that an agent understands since a version.
func (c *Client) openSince(ctx context.Context, version int, req wire.Request) (*call, error) {
	return c.begin(ctx, req, version, c.slots, func() func() {
		c.nudge.begin()
		left, answered, over := c.Attend(), await.Of(ctx, c.named), c.short.begin(req.Op)
		return func() {
			over()
			c.nudge.end()
			left()
			answered()
		}
	})
}

func (c *Client) begin(ctx context.Context, req wire.Request, since int, slots chan struct{}, enter func() (leave func())) (*call, error) {
	if req.Place != nil {
		since = max(since, wire.PlaceSince)
	}
	if since > c.version {
		return nil, api.Errorf(api.CodeUnsupported, "this sandbox cannot do that: its agent was made by an older cloche and speaks protocol %d", c.version).
			WithHint("make the sandbox again")
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return nil, classify(ctx.Err())
	case <-c.Done():
		return nil, c.broken(io.EOF)
	}
	leave := enter()
	stream, err := c.session.OpenStream()
	if err != nil {
		leave()
		<-slots
		return nil, c.broken(fmt.Errorf("open stream: %w", err))
	}
	k := &call{Reader: wire.NewReader(stream), Writer: wire.NewWriter(stream), ctx: ctx, stream: stream, client: c, free: func() { leave(); <-slots }, nudge: c.nudge.Touch}
	// A passed deadline wakes readers and writers that Close alone would not.
	k.stop = context.AfterFunc(ctx, func() { stream.SetDeadline(time.Unix(1, 0)) })
	err = k.JSON(wire.KindRequest, req)
	if req.Op == wire.OpStream || req.Op == wire.OpReattach {
		err = nil // the answer says whether it was sent: a connection that ends after it makes a write fail too
	}
	if err != nil {
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
		if errors.Is(err, io.EOF) || k.stream.Session().IsClosed() {
			err = io.ErrUnexpectedEOF // a frame that is cut off then is no lie
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
	return k.client.broken(err)
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
