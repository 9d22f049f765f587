package sandbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/await"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/sandbox/process"
)

const (
	// dialTimeout bounds all attempts to reach an agent.
	dialTimeout = 10 * time.Second
	// greetTimeout bounds the first try within that.
	greetTimeout = 500 * time.Millisecond
	// callTimeout bounds a call to an agent that does a small thing.
	callTimeout = 30 * time.Second
)

// agentConn is the connection to one agent. It is dialled when first needed and
// again after it broke; calls share it.
type agentConn struct {
	inst  engine.Instance
	token []byte
	// older, which may be nil, is told once when the agent is found to speak an
	// older protocol than this build's.
	older func(version int)
	// silence is after how long without an answer the agent is given up while a call
	// waits, 0 is never; still says that it cannot answer now.
	silence time.Duration
	still   func() bool

	// dialing is held by who dials, for as long as that takes. It goes before mu.
	dialing await.Lock
	mu      sync.Mutex
	client  *agent.Client
	closed  bool
	// quiet is since when the agent is known not to answer; zero is that it does, or was
	// not asked.
	quiet time.Time
	// failure is the error of the last dial that failed, and failed is its time.
	failure error
	failed  time.Time
}

// DefaultAgentSilence is how long an agent that calls wait for may answer no ping. An agent
// that is slow is not one that is gone: it is longer than the grace behind a timeout.
const DefaultAgentSilence = time.Minute

// newConn is a connection to the agent of s, which is not dialled yet.
func (m *Manager) newConn(s *live, inst engine.Instance) *agentConn {
	return &agentConn{inst: inst, token: s.token, silence: m.agentSilence, still: func() bool {
		return s.deadlines.Held()
	}}
}

// Get returns a live client.
func (c *agentConn) Get(ctx context.Context) (*agent.Client, error) {
	if client, err := c.current(); client != nil || err != nil {
		return client, err
	}
	name := named(c.inst, theAgent)
	defer await.Of(ctx, name)()
	asked := now()
	if err := c.dialing.Lock(ctx); err != nil {
		return nil, process.CanceledCall(err)
	}
	defer c.dialing.Unlock()
	if client, err := c.current(); client != nil || err != nil {
		return client, err // another call dialled before
	}
	if err := c.failedSince(asked); err != nil {
		return nil, err // it failed to dial, and so would this call
	}
	begun, caller := now(), ctx
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	// A greeting can get stuck on its way (see agent's nudger), and then another
	// one arrives.
	for wait := greetTimeout; ; wait *= 3 {
		client, err := c.dial(ctx, wait)
		if err == nil {
			if err := c.adopt(client); err != nil {
				return nil, err
			}
			if c.older != nil && client.Version() < agent.ProtocolVersion {
				c.older(client.Version())
				c.older = nil
			}
			return client, nil
		}
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			c.missed(begun)
			err := api.Errorf(api.CodeSandboxLost, "%s does not answer", name()).WithCause(err)
			if caller.Err() == nil {
				c.failedNow(err)
			}
			return nil, err
		}
	}
}

// current is the live client, or nil.
func (c *agentConn) current() (*agent.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.inst == nil { // the instance ended before any call
		return nil, api.Errorf(api.CodeState, "the sandbox has ended")
	}
	if c.client == nil {
		return nil, nil
	}
	select {
	case <-c.client.Done():
		if c.client.Silent() != nil && c.quiet.IsZero() {
			c.quiet = now().Add(-c.silence)
		}
		c.client.Close()
		c.client = nil
	default:
	}
	return c.client, nil
}

// failedNow records that a dial failed.
func (c *agentConn) failedNow(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure, c.failed = err, now()
}

// failedSince returns the error of a dial that failed after a time, or nil.
func (c *agentConn) failedSince(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed.Before(t) {
		return nil
	}
	return c.failure
}

// missed notes that the agent has not answered since then.
func (c *agentConn) missed(since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.quiet.IsZero() {
		c.quiet = since
	}
}

// observed is when what the agent would say was last known.
func (c *agentConn) observed() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client != nil && c.client.Silent() != nil && c.quiet.IsZero() {
		c.quiet = now().Add(-c.silence)
	}
	if !c.quiet.IsZero() {
		return c.quiet
	}
	return now()
}

// adopt makes a client the live one, unless the connection was closed meanwhile.
func (c *agentConn) adopt(client *agent.Client) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		client.Close()
		return api.Errorf(api.CodeState, "the sandbox has ended")
	}
	if c.still != nil {
		client.Watch(c.silence, c.still, named(c.inst, theAgent))
	}
	c.client, c.quiet = client, time.Time{}
	return nil
}

func (c *agentConn) dial(ctx context.Context, timeout time.Duration) (*agent.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := c.inst.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return agent.Connect(ctx, conn, c.token)
}

// Close ends the connection for good.
func (c *agentConn) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.client != nil {
		c.client.Close()
		c.client = nil
	}
}

// agentOf returns the client of a running sandbox.
func (m *Manager) agentOf(ctx context.Context, s *live) (*agent.Client, error) {
	s.mu.Lock()
	info, conn := s.info, s.agent
	s.mu.Unlock()
	// A stop still reads what the processes said last.
	if conn == nil || info.State != api.StateRunning && info.State != api.StateStopping && info.State != api.StateDeleting {
		return nil, notRunning(info)
	}
	return conn.Get(ctx)
}

// reachRetry is the interval for reconnecting to the agent of a sandbox while a caller waits for
// it.
const reachRetry = 5 * time.Second

// attended returns a context for a call that waits for what an agent tells without asking
// it: it ends, with the reason as its cause, when the agent is found to answer no more.
// The caller calls done. A paused or ended sandbox is no reason.
func (m *Manager) attended(ctx context.Context, s *live) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() { // ended by done
		for ctx.Err() == nil && !s.over() {
			client, err := m.agentOf(ctx, s)
			switch {
			case ctx.Err() != nil:
				return
			case err == nil:
				left := client.Attend()
				select {
				case <-ctx.Done():
				case <-client.Done():
					err = client.Silent()
				}
				left()
			case !errors.Is(err, api.ErrSandboxLost):
				err = nil // it is paused, or about to end
			}
			if err != nil && s.snapshot().State == api.StateRunning && !s.diedWithin(err) {
				cancel(err)
				return
			}
			select {
			case <-ctx.Done():
			case <-s.ended:
			case <-time.After(reachRetry):
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}
