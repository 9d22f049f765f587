// Package endpoint serves the endpoints of sandboxes: services of the host that a
// sandbox finds on its own loopback. It takes connections from any net.Listener,
// judges requests, and forwards them to the one target that the endpoint has. What
// comes from a sandbox chooses a path below that target and nothing else of where
// it goes.
package endpoint

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/endpoint/recording"
)

// Observer is told what happens at an endpoint. It must not block.
type Observer interface {
	// Exchanged tells of a request or raw connection that is over.
	Exchanged(api.Exchange)
	// Changed tells of a state that the endpoint came into, and why.
	Changed(state api.EndpointState, reason string)
}

// Secrets finds the values of secrets for one sandbox.
type Secrets interface {
	// Value is the secret's, for a request to host. The error is not shown inside.
	Value(ctx context.Context, name, host string) (string, error)
}

// Resolver finds addresses; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options are what an Endpoint is made of.
type Options struct {
	// Spec has been granted: its defaults are filled in and it is valid.
	Spec api.Endpoint
	// Ranges are those, not public, in which the target may be.
	Ranges []netip.Prefix
	// Own reports whether an address is Cloche's, which is never a target. It may be nil.
	Own func(netip.AddrPort) bool
	// Tenant and Sandbox, its id, go on record; the target is told the latter.
	Tenant, Sandbox string
	// Secrets is nil where there are none; then Spec names none.
	Secrets Secrets
	// Redact takes the values of all secrets that are known out of a text; nil knows none.
	Redact   func(string) string
	Observer Observer
	// Record keeps what goes through; nil is nothing. The Endpoint closes it.
	Record *recording.Writer
	// Play answers where the target is a recording; the Endpoint closes it.
	Play *recording.Player
	// Sockets is the process's, for the endpoints of all sandboxes; nil is no bound.
	Sockets *Sockets
	// Share is the sandbox's, for all its endpoints; nil is one of its own.
	Share  *Share
	Logger *slog.Logger
	// Resolver is nil for the machine's.
	Resolver Resolver
}

// The defaults of limits.
const (
	defaultConnections  = 256
	defaultActive       = 64
	defaultRequestBytes = 64 << 20
	defaultConnect      = 5 * time.Second
	defaultHeader       = 5 * time.Minute
	defaultIdle         = 5 * time.Minute
	// headTime is how long the head of a request may take.
	headTime = 10 * time.Second
	// keepTime ends connections that wait for another request.
	keepTime = 5 * time.Minute
)

// Fill puts the defaults into limits.
func Fill(l api.EndpointLimits) api.EndpointLimits {
	fill(&l.Connections, defaultConnections)
	fill(&l.Active, defaultActive)
	fill(&l.RequestBytes, defaultRequestBytes)
	fill(&l.ConnectMS, defaultConnect.Milliseconds())
	fill(&l.HeaderMS, defaultHeader.Milliseconds())
	fill(&l.IdleMS, defaultIdle.Milliseconds())
	return l
}

func fill[T comparable](v *T, normal T) {
	var zero T
	if *v == zero {
		*v = normal
	}
}

// Endpoint is one of a sandbox. Its methods are safe for any number of goroutines.
type Endpoint struct {
	o      Options
	log    *slog.Logger
	server *http.Server
	port   int
	// socket: it has no port, but a socket.
	socket bool

	// ctx ends when what is under way is cut off.
	ctx    context.Context
	cancel context.CancelCauseFunc
	rates  rates
	// upstream is where requests that begin now go.
	upstream atomic.Pointer[upstream]
	// active has a slot for each request that goes on, waiting for each that waits.
	active, waiting chan struct{}
	wg              sync.WaitGroup // of raw connections
	// buffers are what large bodies are copied through.
	buffers buffers
	// quiet gets something when a request or raw connection ended.
	quiet chan struct{}
	// repeats are requests that may be repeated.
	repeats repeatBook

	conns, running, requests, dialed atomic.Int64
	// listening counts those who serve it, so that there is an address inside.
	listening         atomic.Int64
	bytesIn, bytesOut atomic.Int64

	mu     sync.Mutex
	spec   api.Endpoint
	state  api.EndpointState
	reason string
	since  time.Time
	// moved is closed when the state changes, and another takes its place.
	moved  chan struct{}
	errors map[string]int64
	raw    map[*rawConn]struct{}
	// clients are those who are attached, next the one to ask next.
	clients []*attachment
	next    int
}

var errDetached = errors.New("the endpoint was taken away")

// New makes an Endpoint, which serves nothing yet. Of ctx it keeps the values.
func New(ctx context.Context, o Options) (*Endpoint, error) {
	o.Spec.Limits = Fill(o.Spec.Limits)
	if o.Share == nil {
		o.Share = &Share{}
	}
	e := &Endpoint{
		o: o, log: o.Logger, port: o.Spec.Port(), socket: o.Spec.Socket() != "", spec: o.Spec, state: api.EndpointBinding, since: time.Now().UTC(),
		rates:  ratesOf(o.Spec.Limits),
		active: make(chan struct{}, o.Spec.Limits.Active), waiting: make(chan struct{}, o.Spec.Limits.Active),
		quiet: make(chan struct{}, 1), moved: make(chan struct{}), errors: map[string]int64{}, raw: map[*rawConn]struct{}{},
	}
	e.ctx, e.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	up, err := e.newUpstream(o.Spec, o.Ranges)
	if err != nil {
		return nil, err
	}
	e.upstream.Store(up)
	if !o.Spec.Raw() {
		e.server = e.newServer()
	}
	return e, nil
}

// Serve takes connections from ln until that ends, or the Endpoint does. It may be
// called again, with another.
func (e *Endpoint) Serve(ln net.Listener) {
	e.listening.Add(1)
	defer e.listening.Add(-1)
	e.prove()
	if e.server == nil {
		e.serveRaw(ln)
		return
	}
	err := e.server.Serve(&counted{Listener: ln, e: e})
	if err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		e.log.Warn("serve endpoint", "sandbox", e.o.Sandbox, "endpoint", e.o.Spec.Name, "error", err)
	}
}

// Enter puts the endpoint into a state that its owner knows of. One that drains or
// has ended only goes on to its end.
func (e *Endpoint) Enter(state api.EndpointState, reason string) {
	e.mu.Lock()
	over := e.state == api.EndpointClosed || e.state == api.EndpointDraining && state != api.EndpointClosed
	changed := !over && (e.state != state || e.reason != reason)
	if changed {
		e.state, e.reason, e.since = state, reason, time.Now().UTC()
		close(e.moved)
		e.moved = make(chan struct{})
	}
	e.mu.Unlock()
	if changed {
		e.o.Observer.Changed(state, reason)
	}
}

// failed counts an error of the endpoint, and degrades the endpoint for those that
// say that the target cannot be reached.
func (e *Endpoint) failed(code string) {
	e.mu.Lock()
	e.errors[code]++
	state := e.state
	e.mu.Unlock()
	if reason := faultOf(code).condition; reason != "" && (state == api.EndpointReady || state == api.EndpointDegraded) {
		e.Enter(api.EndpointDegraded, reason)
	}
}

// worked records that the target was reached.
func (e *Endpoint) worked() {
	e.mu.Lock()
	unproven := e.state == api.EndpointDegraded || e.state == api.EndpointBinding && e.listening.Load() > 0
	e.mu.Unlock()
	if unproven {
		e.Enter(api.EndpointReady, "")
	}
}

func (e *Endpoint) draining() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state == api.EndpointDraining || e.state == api.EndpointClosed
}

// Switch makes what begins from now on go to another target. What is under way goes
// on to the old one. Only the target, and what is said of its headers and paths,
// may differ.
func (e *Endpoint) Switch(spec api.Endpoint, ranges []netip.Prefix) error {
	spec.Limits = Fill(spec.Limits)
	up, err := e.newUpstream(spec, ranges)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.spec = spec
	e.mu.Unlock()
	e.upstream.Swap(up).retire()
	if e.listening.Load() > 0 {
		e.prove()
	}
	return nil
}

// Close ends the endpoint: nothing new begins, what is under way has the grace to
// end by itself, and the rest is cut off. Its listener is closed before.
// The end of ctx cuts the grace short.
func (e *Endpoint) Close(ctx context.Context, grace time.Duration) api.EndpointRemoval {
	e.Enter(api.EndpointDraining, "")
	began := e.running.Load()
	if e.server != nil {
		e.server.SetKeepAlivesEnabled(false)
	}
	ctx, stop := context.WithTimeout(ctx, grace)
	e.settle(ctx)
	stop()
	cut := e.running.Load()
	e.cancel(errDetached)
	if cut > 0 {
		// Who waits for an answer gets one that says why.
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), partingTime)
		e.settle(ctx)
		stop()
	}
	if e.server != nil {
		// A handler that has returned may have an answer that is still on its way.
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), partingTime)
		_ = e.server.Shutdown(ctx)
		stop()
		e.server.Close()
	}
	e.mu.Lock()
	for c := range e.raw {
		c.cut()
	}
	clients := e.clients
	e.clients = nil
	e.mu.Unlock()
	for _, c := range clients {
		c.end()
	}
	e.wg.Wait()
	e.upstream.Load().retire()
	e.closeRecordings()
	e.Enter(api.EndpointClosed, "")
	return api.EndpointRemoval{Drained: max(0, began-cut), Cancelled: cut}
}

// partingTime is how long the last answers may take.
const partingTime = 2 * time.Second

// settle waits until nothing is under way, or ctx ends.
func (e *Endpoint) settle(ctx context.Context) {
	for e.running.Load() > 0 {
		select {
		case <-e.quiet:
		case <-ctx.Done():
			return
		}
	}
}

// end notes that a request or raw connection is over.
func (e *Endpoint) end() {
	e.running.Add(-1)
	select {
	case e.quiet <- struct{}{}:
	default:
	}
}

// Status is what is known of the endpoint.
func (e *Endpoint) Status() api.EndpointStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := api.EndpointStatus{
		Endpoint: e.spec, State: e.state, Reason: e.reason, Since: e.since, Attached: len(e.clients),
		Counters: api.EndpointCounters{
			Connections: e.conns.Load(), Active: e.running.Load(), Requests: e.requests.Load(), Upstream: e.dialed.Load(),
			BytesIn: e.bytesIn.Load(), BytesOut: e.bytesOut.Load(), Errors: maps.Clone(e.errors),
		},
	}
	if len(st.Counters.Errors) == 0 {
		st.Counters.Errors = nil
	}
	return st
}

// State is the endpoint's.
func (e *Endpoint) State() api.EndpointState {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state
}
