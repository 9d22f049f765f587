package e2b

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/internal/engine/inner"
	"github.com/cloche-dev/cloche/internal/envdpb"
)

// The tags of the engine's processes in a sandbox.
const (
	agentTag = "cloche-agent"
	lineTag  = "cloche-line"
)

// maxPending is how many bytes of input may wait for the service. maxInput is how many go into one
// message.
const (
	maxPending = 1 << 20
	maxInput   = 256 << 10
)

// carrier is the input and output of a process inside as one stream. Writes wait in a buffer, so that
// many small ones become one message.
type carrier struct {
	p    *proc
	v    *envd
	left []byte // of the output that was read last
	// cancel ends every request of the carrier.
	cancel context.CancelFunc

	mu      sync.Mutex
	changed sync.Cond
	pending []byte
	ping    bool  // it is time for a sign of life
	err     error // of the writer, which has ended
	done    chan struct{}
}

// openCarrier starts the program that joins streams to the agent.
func (i *instance) openCarrier(ctx context.Context) (io.ReadWriteCloser, error) {
	// What an earlier daemon, or a broken connection, left there.
	if err := i.envd.kill(ctx, lineTag); err != nil {
		return nil, err
	}
	yes, tag := true, lineTag
	life, cancel := context.WithCancel(i.life)
	stop := context.AfterFunc(ctx, cancel)
	p, err := i.envd.start(life, &envdpb.StartRequest{
		Process: &envdpb.ProcessConfig{Cmd: i.rec.Program, Args: []string{inner.Argv0, inner.Dial, i.rec.Socket}, Cwd: root()},
		Tag:     &tag, Stdin: &yes,
	})
	if !stop() && err == nil {
		p.close()
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	c := &carrier{p: p, v: i.envd, cancel: cancel, done: make(chan struct{})}
	c.changed.L = &c.mu
	send, end := c.unary(life)
	if !i.noStreams.Load() {
		send, end = c.streamed(life, func() { i.noStreams.Store(true) })
	}
	i.e.wg.Go(func() { c.carry(life, send, end) })
	return c, nil
}

// Read implements io.Reader.
func (c *carrier) Read(b []byte) (int, error) {
	for len(c.left) == 0 {
		data, err := c.p.next()
		if ended, ok := errors.AsType[*endedError](err); ok {
			return 0, errors.Join(io.EOF, ended)
		}
		if err != nil {
			return 0, err
		}
		c.left = data
	}
	n := copy(b, c.left)
	c.left = c.left[n:]
	return n, nil
}

// Write implements io.Writer.
func (c *carrier) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.pending) >= maxPending && c.err == nil {
		c.changed.Wait()
	}
	if c.err != nil {
		return 0, c.err
	}
	c.pending = append(c.pending, b...)
	c.changed.Broadcast()
	return len(b), nil
}

// Close implements io.Closer. The process inside ends with its input.
func (c *carrier) Close() error {
	c.fail(net.ErrClosed)
	c.cancel()
	<-c.done
	return nil
}

func (c *carrier) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.changed.Broadcast()
}

// take waits for input and returns all of it that one message can have. After pingInterval it returns
// nothing.
func (c *carrier) take() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 && c.err == nil {
		timer := time.AfterFunc(pingInterval, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.ping = true
			c.changed.Broadcast()
		})
		defer timer.Stop()
	}
	for c.ping = false; len(c.pending) == 0 && c.err == nil && !c.ping; {
		c.changed.Wait()
	}
	if c.err != nil {
		return nil, c.err
	}
	n := min(len(c.pending), maxInput)
	b := c.pending[:n:n]
	if c.pending = c.pending[n:]; len(c.pending) == 0 {
		c.pending = nil
	}
	c.changed.Broadcast()
	return b, nil
}

// carry sends what is written, until it fails or the carrier is closed. Then it kills the process: the
// service may not notice that its input has ended.
func (c *carrier) carry(life context.Context, send func([]byte) error, end func()) {
	defer close(c.done)
	for {
		b, err := c.take()
		if err == nil {
			err = send(b)
		}
		if err != nil {
			c.fail(err)
			break
		}
	}
	end()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(life), time.Second)
	defer cancel()
	_, _ = c.v.process.SendSignal(ctx, connect.NewRequest(&envdpb.SendSignalRequest{Process: c.self(), Signal: envdpb.Signal_SIGNAL_SIGKILL}))
	c.p.close()
	c.cancel()
}

// self is the process inside.
func (c *carrier) self() *envdpb.ProcessSelector {
	return &envdpb.ProcessSelector{Selector: &envdpb.ProcessSelector_Pid{Pid: c.p.pid}}
}

func input(b []byte) *envdpb.ProcessInput {
	return &envdpb.ProcessInput{Input: &envdpb.ProcessInput_Stdin{Stdin: b}}
}

// unary sends each message by a request of its own.
func (c *carrier) unary(life context.Context) (send func([]byte) error, end func()) {
	return func(b []byte) error {
		if len(b) == 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(life, streamSilence)
		defer cancel()
		_, err := c.v.process.SendInput(ctx, connect.NewRequest(&envdpb.SendInputRequest{Process: c.self(), Input: input(b)}))
		return err
	}, func() {}
}

// streamed sends all messages by one request, which saves a round trip for each. It calls unsupported if
// the service does not have that request.
func (c *carrier) streamed(life context.Context, unsupported func()) (send func([]byte) error, end func()) {
	ctx, cancel := context.WithCancel(life)
	s := c.v.process.StreamInput(ctx)
	err := s.Send(&envdpb.StreamInputRequest{Event: &envdpb.StreamInputRequest_Start{
		Start: &envdpb.StreamInputRequest_StartEvent{Process: c.self()},
	}})
	return func(b []byte) error {
			m := &envdpb.StreamInputRequest{Event: &envdpb.StreamInputRequest_Keepalive{Keepalive: &envdpb.StreamInputRequest_KeepAlive{}}}
			if len(b) > 0 {
				m.Event = &envdpb.StreamInputRequest_Data{Data: &envdpb.StreamInputRequest_DataEvent{Input: input(b)}}
			}
			if err == nil {
				err = s.Send(m)
			}
			if errors.Is(err, io.EOF) {
				_, why := s.CloseAndReceive()
				if code := connect.CodeOf(why); code == connect.CodeUnimplemented || code == connect.CodeNotFound {
					unsupported()
				}
				err = errors.Join(err, why)
			}
			return err
		}, func() {
			cancel()
			_, _ = s.CloseAndReceive() // the transport waits for the end of the request
		}
}
