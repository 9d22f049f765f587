// Package agentconn has the connection to the agent of a sandbox: it is dialed when it is needed, and again after it
// broke.
package agentconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
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
)

// DefaultSilence is how long an agent that calls wait for may answer no ping. An agent
// that is slow is not one that is gone: it is longer than the grace behind a timeout.
const DefaultSilence = time.Minute

// Dialer opens a stream to an agent, as an engine.Instance does.
type Dialer interface {
	Dial(ctx context.Context) (net.Conn, error)
}

// Options are what a Conn is made of.
type Options struct {
	// Dialer is nil for a sandbox that has ended.
	Dialer Dialer
	Token  []byte
	// Older, which may be nil, is called once when the agent is found to speak an older protocol than this
	// build's.
	Older func(version int)
	// Silence is after how long without an answer the agent is given up while a call waits; 0 is never. Still
	// reports whether it cannot answer now. Nil does not watch the agent.
	Silence time.Duration
	Still   func() bool
}

// Conn is the connection to one agent. Calls share it. It is safe for concurrent use.
type Conn struct {
	o Options

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

// New returns a Conn that is not dialed yet.
func New(o Options) *Conn { return &Conn{o: o} }

// Get returns a live client.
func (c *Conn) Get(ctx context.Context) (*agent.Client, error) {
	if client, err := c.current(); client != nil || err != nil {
		return client, err
	}
	name := Named(c.o.Dialer, TheAgent)
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
			if c.o.Older != nil && client.Version() < agent.ProtocolVersion {
				c.o.Older(client.Version())
				c.o.Older = nil
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

// Renew has the next dial show another token. The live client is not affected.
func (c *Conn) Renew(token []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.o.Token = token
}

// current is the live client, or nil.
func (c *Conn) current() (*agent.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.o.Dialer == nil { // the instance ended before any call
		return nil, api.Errorf(api.CodeState, "the sandbox has ended")
	}
	if c.client == nil {
		return nil, nil
	}
	select {
	case <-c.client.Done():
		if c.client.Silent() != nil && c.quiet.IsZero() {
			c.quiet = now().Add(-c.o.Silence)
		}
		c.client.Close()
		c.client = nil
	default:
	}
	return c.client, nil
}

// failedNow records that a dial failed.
func (c *Conn) failedNow(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure, c.failed = err, now()
}

// failedSince returns the error of a dial that failed after a time, or nil.
func (c *Conn) failedSince(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed.Before(t) {
		return nil
	}
	return c.failure
}

// missed notes that the agent has not answered since then.
func (c *Conn) missed(since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.quiet.IsZero() {
		c.quiet = since
	}
}

// Observed returns when what the agent would say was last known.
func (c *Conn) Observed() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client != nil && c.client.Silent() != nil && c.quiet.IsZero() {
		c.quiet = now().Add(-c.o.Silence)
	}
	if !c.quiet.IsZero() {
		return c.quiet
	}
	return now()
}

// adopt makes a client the live one, unless the connection was closed meanwhile.
func (c *Conn) adopt(client *agent.Client) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		client.Close()
		return api.Errorf(api.CodeState, "the sandbox has ended")
	}
	if c.o.Still != nil {
		client.Watch(c.o.Silence, c.o.Still, Named(c.o.Dialer, TheAgent))
	}
	c.client, c.quiet = client, time.Time{}
	return nil
}

func (c *Conn) dial(ctx context.Context, timeout time.Duration) (*agent.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := c.o.Dialer.Dial(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	token := c.o.Token
	c.mu.Unlock()
	return agent.Connect(ctx, conn, token)
}

// Close ends the connection for good.
func (c *Conn) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.client != nil {
		c.client.Close()
		c.client = nil
	}
}

// TheAgent is how errors name an agent.
const TheAgent = "the sandbox's agent"

// Named makes the name of a part of a sandbox for errors: it says which processes of the
// sandbox are stopped at the moment, if inst is an engine.Stoppable.
func Named(inst any, part string) func() string {
	return func() string {
		s, ok := inst.(engine.Stoppable)
		if !ok {
			return part
		}
		stopped := s.Stopped()
		if len(stopped) == 0 {
			return part
		}
		return fmt.Sprintf("%s (stopped: its %s)", part, strings.Join(stopped, " and "))
	}
}

// now is a time with the precision of records.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
