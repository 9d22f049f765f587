package endpoint

import (
	"context"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// The wait between two attempts to reach a target begins at probeMin and doubles. A target is asked
// only while a caller waits for it.
const probeMin, probeMax = 50 * time.Millisecond, 2 * time.Second

const probing = "it is found out whether its target can be reached"

// prove says that the endpoint is ready, or finds out whether it is where the target
// is to be asked first.
func (e *Endpoint) prove() {
	e.mu.Lock()
	over := e.state == api.EndpointClosed || e.state == api.EndpointDraining
	ask := e.spec.Probe && !over
	if ask {
		e.wg.Add(1)
	}
	e.mu.Unlock()
	if !ask {
		e.Enter(api.EndpointReady, "")
		return
	}
	e.Enter(api.EndpointBinding, probing)
	go func() {
		defer e.wg.Done()
		e.probe(e.ctx)
	}()
}

// probe connects to the target once, and says what came of it.
func (e *Endpoint) probe(ctx context.Context) (reached bool) {
	up := e.upstream.Load()
	if up.play != nil {
		e.worked() // a recording is where it is
		return true
	}
	conn, err := up.dial(ctx)
	if err == nil {
		conn.Close()
		e.worked()
		return true
	}
	if ctx.Err() == nil && e.listening.Load() > 0 {
		e.Enter(api.EndpointDegraded, faultOf(codeOf(ctx, err)).condition)
	}
	return false
}

// Ready waits until the endpoint is ready. While its target cannot be reached it is
// asked again and again. The error says why it is not when ctx ends, or why it never
// will be.
func (e *Endpoint) Ready(ctx context.Context) error {
	for wait := probeMin; ; wait = min(2*wait, probeMax) {
		e.mu.Lock()
		state, reason, moved := e.state, e.reason, e.moved
		e.mu.Unlock()
		switch state {
		case api.EndpointReady:
			return nil
		case api.EndpointDraining, api.EndpointClosed, api.EndpointFailed:
			return api.Errorf(api.CodeState, "endpoint %s is %s", e.o.Spec.Name, state)
		case api.EndpointDegraded:
			if e.listening.Load() > 0 && e.probe(ctx) {
				continue
			}
		}
		select {
		case <-moved:
		case <-time.After(wait):
		case <-ctx.Done():
			err := api.Errorf(api.CodeUnavailable, "endpoint %s is not ready: %s", e.o.Spec.Name, reason)
			err.Retryable = true
			return err
		}
	}
}
