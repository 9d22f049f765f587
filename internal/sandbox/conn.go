package sandbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/engine"
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

	mu     sync.Mutex
	client *agent.Client
	closed bool
}

// get returns a live client.
func (c *agentConn) get(ctx context.Context) (*agent.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.inst == nil { // of one that ended before anybody asked
		return nil, cloche.Errorf(cloche.CodeState, "the sandbox has ended")
	}
	if c.client != nil {
		select {
		case <-c.client.Done():
			c.client.Close()
			c.client = nil
		default:
			return c.client, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	// A greeting can get stuck on its way (see agent's nudger), and then another
	// one arrives.
	for wait := greetTimeout; ; wait *= 3 {
		client, err := c.dial(ctx, wait)
		if err == nil {
			c.client = client
			if c.older != nil && client.Version() < agent.ProtocolVersion {
				c.older(client.Version())
				c.older = nil
			}
			return client, nil
		}
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return nil, cloche.Errorf(cloche.CodeSandboxLost, "the sandbox's agent does not answer").WithCause(err)
		}
	}
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

// close ends the connection for good.
func (c *agentConn) close() {
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
	if conn == nil || info.State != cloche.StateRunning && info.State != cloche.StateStopping && info.State != cloche.StateDeleting {
		return nil, notRunning(info)
	}
	return conn.get(ctx)
}
