package mockcore

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// Heartbeat sets an end an hour after the Epoch.
func (c *Core) Heartbeat(_ context.Context, caller core.Caller, ref string) (api.Sandbox, error) {
	return c.alter(caller, ref, func(sb *sandbox) error {
		at := Epoch().Add(time.Hour)
		sb.record.ExpiresAt = &at
		c.change()
		return nil
	})
}

// Pause changes the state.
func (c *Core) Pause(_ context.Context, caller core.Caller, ref string) (api.Sandbox, error) {
	return c.alter(caller, ref, func(sb *sandbox) error {
		return c.move(sb, api.StateRunning, api.StatePaused, api.EventPaused)
	})
}

// StartSandbox changes the state of a stopped one.
func (c *Core) StartSandbox(_ context.Context, caller core.Caller, ref string, _ func(string)) (api.Sandbox, error) {
	return c.alter(caller, ref, func(sb *sandbox) error {
		if sb.record.State == api.StateRunning {
			return nil
		}
		return c.move(sb, api.StateStopped, api.StateRunning, api.EventStarted)
	})
}

// Suspend changes the state.
func (c *Core) Suspend(_ context.Context, caller core.Caller, ref string) (api.Sandbox, error) {
	return c.alter(caller, ref, func(sb *sandbox) error {
		return c.move(sb, api.StateRunning, api.StateSuspended, api.EventSuspended)
	})
}

// Resume changes it back.
func (c *Core) Resume(_ context.Context, caller core.Caller, ref string) (api.Sandbox, error) {
	return c.alter(caller, ref, func(sb *sandbox) error {
		from := api.StatePaused
		if sb.record.State.Held() {
			from = sb.record.State
		}
		return c.move(sb, from, api.StateRunning, api.EventResumed)
	})
}

func (c *Core) alter(caller core.Caller, ref string, fn func(*sandbox) error) (api.Sandbox, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(caller, ref)
	if err == nil {
		err = fn(sb)
	}
	if err != nil {
		return api.Sandbox{}, err
	}
	return sb.record, nil
}

func (c *Core) move(sb *sandbox, from, to api.State, kind api.EventKind) error {
	if sb.record.State != from {
		return api.Errorf(api.CodeState, "sandbox %q is %s", sb.record.Name, sb.record.State)
	}
	sb.record.State = to
	c.publish(sb, kind, nil)
	return nil
}

// Hold removes the sandbox when it is released.
func (c *Core) Hold(ctx context.Context, caller core.Caller, spec api.SandboxSpec, progress func(string)) (api.Sandbox, func(), error) {
	sb, err := c.Create(ctx, caller, spec, progress)
	if err != nil {
		return sb, nil, err
	}
	sb.Transient = true
	return sb, sync.OnceFunc(func() { _ = c.Remove(context.WithoutCancel(ctx), caller, sb.ID) }), nil
}

// DialPort has a server on port 7, which sends back what it gets, and one on
// port 9, which takes everything and says how much it was. Others refuse.
func (c *Core) DialPort(_ context.Context, caller core.Caller, ref string, port int) (net.Conn, error) {
	c.mu.Lock()
	_, err := c.find(caller, ref)
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	ours, theirs := duplex()
	switch port {
	case 7:
		go func() {
			_, _ = io.Copy(theirs, theirs)
			theirs.Close()
		}()
	case 9:
		go func() {
			n, _ := io.Copy(io.Discard, theirs)
			_, _ = io.WriteString(theirs, time.Duration(n).String())
			theirs.Close()
		}()
	default:
		e := api.Errorf(api.CodeUnavailable, "port %d refuses connections", port)
		e.Retryable = true
		return nil, e
	}
	return ours, nil
}

// half is one end of a connection whose directions end one by one.
type half struct {
	net.Conn // for methods that are not called here
	r        *io.PipeReader
	w        *io.PipeWriter
}

func duplex() (a, b half) {
	r1, w1 := io.Pipe()
	r2, w2 := io.Pipe()
	return half{r: r1, w: w2}, half{r: r2, w: w1}
}

func (h half) Read(p []byte) (int, error)  { return h.r.Read(p) }
func (h half) Write(p []byte) (int, error) { return h.w.Write(p) }
func (h half) CloseWrite() error           { return h.w.Close() }

func (h half) Close() error {
	h.r.Close()
	return h.w.Close()
}
