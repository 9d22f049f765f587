package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/agentline"
)

const (
	// firstPatience and mostPatience are how long to wait before a service that did not answer is
	// asked again.
	firstPatience = 200 * time.Millisecond
	mostPatience  = 10 * time.Second
	// firstDial bounds the first connection by a stream of input, which not every service has.
	firstDial = 5 * time.Second
)

// instance is one sandbox of the service.
type instance struct {
	e     *Engine
	rec   record
	state []byte
	envd  *envd
	line  *agentline.Line

	// noStreams is true if the service has no streams of input. proven is true after a connection.
	noStreams, proven atomic.Bool

	// life ends when the instance or the engine ends.
	life context.Context
	end  context.CancelFunc

	done   chan struct{}
	ending engine.Ending // set before done is closed
	once   sync.Once

	closing sync.Mutex
	closed  bool
}

var (
	_ engine.Instance = (*instance)(nil)
	_ engine.Statter  = (*instance)(nil)
	_ engine.Mortal   = (*instance)(nil)
)

// newInstance makes an instance that is not watched yet.
func (e *Engine) newInstance(rec record, v *envd) *instance {
	state, err := json.Marshal(rec)
	if err != nil {
		state = nil // strings and numbers can always be encoded
	}
	i := &instance{e: e, rec: rec, state: state, envd: v, done: make(chan struct{})}
	i.life, i.end = context.WithCancel(e.life)
	i.line = &agentline.Line{Open: i.openCarrier}
	return i
}

// begin watches the agent, whose output is p, and extends the life of the sandbox.
func (i *instance) begin(p *proc) {
	i.e.wg.Go(func() { i.watch(p) })
	i.e.wg.Go(i.extend)
}

// bury says once that the instance has died, and how.
func (i *instance) bury(how string) {
	i.once.Do(func() {
		i.ending = engine.Ending{How: how}
		close(i.done)
		i.end()
	})
}

// watch follows the agent until it ends. A service that does not answer says nothing about a sandbox: it
// is asked again.
func (i *instance) watch(p *proc) {
	patience := firstPatience
	for {
		var err error
		if p == nil {
			p, err = i.envd.connect(i.life, agentTag)
		}
		if err == nil {
			patience = firstPatience
			for err == nil {
				_, err = p.next()
			}
			p.close()
			p = nil
		}
		if i.life.Err() != nil {
			return
		}
		// If the whole sandbox ended, that is why the agent did.
		gone, how := i.look(i.life)
		ended, known := errors.AsType[*endedError](err)
		switch {
		case gone:
		case known:
			gone, how = true, "its agent ended: "+ended.text
		case connect.CodeOf(err) == connect.CodeNotFound:
			gone, how = true, "its agent ended"
		}
		if gone {
			i.bury(how)
			return
		}
		select {
		case <-time.After(patience):
		case <-i.life.Done():
			return
		}
		patience = min(2*patience, mostPatience)
	}
}

// look asks the service whether the sandbox is gone, and how that is called.
func (i *instance) look(ctx context.Context) (gone bool, how string) {
	_, err := i.e.service.get(ctx, i.rec.Sandbox)
	if hasStatus(err, http.StatusNotFound) {
		return true, "the service removed it"
	}
	return false, ""
}

// extend extends the life of the sandbox again and again.
func (i *instance) extend() {
	lifetime := time.Duration(i.rec.LifetimeS) * time.Second
	tick := time.NewTicker(max(lifetime/4, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-i.life.Done():
			return
		}
		err := i.e.service.extend(i.life, i.rec.Sandbox, lifetime)
		if hasStatus(err, http.StatusNotFound) {
			if gone, how := i.look(i.life); gone {
				i.bury(how)
				return
			}
		}
		if err != nil && i.life.Err() == nil {
			i.e.log.Warn("the life of a sandbox is not extended", "sandbox", i.rec.ID, "error", err)
		}
	}
}

// State implements engine.Instance.
func (i *instance) State() []byte { return i.state }

// Done implements engine.Instance.
func (i *instance) Done() <-chan struct{} { return i.done }

// Ending implements engine.Mortal.
func (i *instance) Ending() engine.Ending {
	<-i.done
	return i.ending
}

func (i *instance) dead() bool {
	select {
	case <-i.done:
		return true
	default:
		return false
	}
}

func (i *instance) lost(what string, cause error) error {
	return api.Errorf(api.CodeSandboxLost, "%s: it is dead", what).WithCause(cause)
}

// Dial implements engine.Instance.
func (i *instance) Dial(ctx context.Context) (net.Conn, error) {
	what := "dial sandbox " + i.rec.ID
	if i.dead() {
		return nil, i.lost(what, nil)
	}
	conn, err := i.dial(ctx)
	if err == nil {
		return conn, nil
	}
	if ctx.Err() == nil {
		if gone, _ := i.look(ctx); gone || i.dead() {
			return nil, i.lost(what, err)
		}
		if errors.Is(err, agentline.ErrRefused) {
			out := api.Errorf(api.CodeUnavailable, "%s: the agent does not listen", what).WithCause(err)
			out.Retryable = true
			return nil, out
		}
	}
	return nil, dataError(ctx, what, err)
}

// dial opens a connection. The first one finds out whether the service has streams of input.
func (i *instance) dial(ctx context.Context) (net.Conn, error) {
	if i.proven.Load() || i.noStreams.Load() {
		return i.line.Dial(ctx)
	}
	first, cancel := context.WithTimeout(ctx, firstDial)
	conn, err := i.line.Dial(first)
	cancel()
	if err == nil {
		i.proven.Store(true)
		return conn, nil
	}
	if ctx.Err() != nil || errors.Is(err, agentline.ErrRefused) || errors.Is(err, net.ErrClosed) {
		return nil, err
	}
	i.noStreams.Store(true)
	i.line.Drop()
	return i.line.Dial(ctx)
}

// dataError classifies an error of the data plane.
func dataError(ctx context.Context, what string, err error) error {
	if c, ok := errors.AsType[*connect.Error](err); ok && ctx.Err() == nil {
		if c.Code() == connect.CodeUnauthenticated || c.Code() == connect.CodePermissionDenied {
			return api.Errorf(api.CodeUnavailable, "%s: the sandbox's envd refuses it: %s", what, clip(c.Message())).
				WithHint("the engine starts the agent as root inside, which the template must allow").WithCause(err)
		}
		out := api.Errorf(api.CodeUnavailable, "%s: the sandbox's envd failed: %s", what, clip(c.Message())).WithCause(err)
		out.Retryable = true
		return out
	}
	return classify(ctx, what, err)
}

// Stat implements engine.Statter. The service tells no CPU time.
func (i *instance) Stat(ctx context.Context) (engine.Stat, error) {
	m, err := i.e.service.metrics(ctx, i.rec.Sandbox)
	if err != nil {
		return engine.Stat{}, classify(ctx, "stat sandbox "+i.rec.ID, err)
	}
	return engine.Stat{MemoryBytes: m.MemUsed}, nil
}

// Close implements engine.Instance.
func (i *instance) Close(ctx context.Context) error {
	i.closing.Lock()
	defer i.closing.Unlock()
	if i.closed {
		return nil
	}
	i.line.Close()
	if err := i.e.service.remove(ctx, i.rec.Sandbox); err != nil {
		out := classify(ctx, "close sandbox "+i.rec.ID, err)
		if e, ok := errors.AsType[*api.Error](out); ok {
			e.Retryable = true
		}
		return out
	}
	i.bury("it was removed")
	i.closed = true
	return nil
}
