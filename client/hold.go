package client

import (
	"context"
	"errors"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/coder/websocket"
)

// Held is a transient sandbox that exists as long as its connection. The daemon removes it with all
// its data when the Held is closed, when its context ends, or when this program ends.
type Held struct {
	*Sandbox
	conn   *websocket.Conn
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	wg     sync.WaitGroup
	close  func()

	mu  sync.Mutex
	err error
}

// Hold creates a sandbox that is removed when the connection that holds it ends for any reason. If
// step is not nil, it is called with the name of each step of the create, from the calling
// goroutine.
func (c *Client) Hold(ctx context.Context, spec api.SandboxSpec, step func(string)) (*Held, error) {
	if err := checkSpec("", spec); err != nil {
		return nil, err
	}
	conn, err := c.dialSocket(ctx, "/hold", nil)
	if err != nil {
		return nil, err
	}
	h := &Held{conn: conn, done: make(chan struct{})}
	h.ctx, h.cancel = context.WithCancel(ctx)
	h.close = sync.OnceFunc(func() {
		h.cancel()
		conn.CloseNow()
	})
	sb, err := h.begin(c, spec, step)
	if err != nil {
		h.close()
		return nil, err
	}
	h.Sandbox = &Sandbox{*sb, c}
	h.wg.Go(func() { h.keep(c) })
	return h, nil
}

// begin requests the sandbox and waits for it.
func (h *Held) begin(c *Client, spec api.SandboxSpec, step func(string)) (*api.Sandbox, error) {
	if err := c.sendMessage(h.ctx, h.conn, api.ClientMessage{Hold: &spec}); err != nil {
		return nil, err
	}
	for {
		m, err := h.message(c)
		switch {
		case err != nil:
			return nil, err
		case m.Sandbox != nil:
			return m.Sandbox, nil
		case m.Step != "" && step != nil:
			step(m.Step)
		default:
			tellPull(h.ctx, m.Pull)
		}
	}
}

func (h *Held) message(c *Client) (*api.ServerMessage, error) {
	kind, data, err := h.conn.Read(h.ctx)
	if err != nil {
		return nil, c.socketFailed(h.ctx, err)
	}
	if kind != websocket.MessageText {
		return nil, brokenAnswer("the daemon sent bytes on a stream that has none")
	}
	m, err := decodeMessage(data)
	if err == nil && m.Error != nil {
		err = m.Error
	}
	return m, err
}

// keep reads until the connection ends. Reading answers the daemon's pings.
func (h *Held) keep(c *Client) {
	defer close(h.done)
	for {
		if _, err := h.message(c); err != nil {
			h.mu.Lock()
			h.err = err
			h.mu.Unlock()
			h.close()
			return
		}
	}
}

// Done returns a channel that is closed when the sandbox is no longer held.
func (h *Held) Done() <-chan struct{} { return h.done }

// Err says why the sandbox is no longer held. It is nil while the sandbox is held, and after Close.
func (h *Held) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// Close releases the sandbox, and the daemon removes it. Close is idempotent.
func (h *Held) Close() error {
	h.close()
	h.wg.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if errors.Is(h.err, context.Canceled) {
		h.err = nil
	}
	return nil
}
