package endpoints

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/endpoint"
	"github.com/cloche-dev/cloche/internal/policy"
)

// served is one that is open.
type served struct {
	*endpoint.Endpoint
	name string
	// unrecorded counts exchanges that were dropped.
	unrecorded atomic.Int64

	mu sync.Mutex
	// ln takes what connects inside, on the connection on; nil while the sandbox is out
	// of reach.
	ln *agent.Listener
	on *agent.Client
	// serving waits for those who serve it.
	serving sync.WaitGroup
}

// open makes an endpoint that serves nothing yet.
func (t *Table) open(ctx context.Context, g policy.EndpointGrant) (*served, error) {
	e := &served{name: g.Spec.Name}
	record, play, err := t.recordings(g.Spec)
	if err != nil {
		return nil, err
	}
	e.Endpoint, err = endpoint.New(ctx, endpoint.Options{
		Record: record, Play: play,
		Spec: g.Spec, Ranges: g.Ranges, Own: t.service.o.OwnAddress, Tenant: t.names.Tenant, Sandbox: t.names.ID, Secrets: t.service.secrets(), Redact: t.service.o.Redact,
		Observer: &observer{t, e}, Share: &t.share, Sockets: t.service.sockets, Logger: t.service.o.Logger,
	})
	if err != nil {
		if record != nil {
			record.Close()
		}
		if play != nil {
			play.Close()
		}
		return nil, api.Errorf(api.CodeInternal, "endpoint %s cannot be made", g.Spec.Name).WithCause(err)
	}
	return e, nil
}

// bind puts an endpoint in its place inside, and serves it.
func (t *Table) bind(ctx context.Context, e *served, client *agent.Client) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	spec := e.Status().Endpoint
	o := agent.ListenOptions{ID: e.name, Port: spec.Port(), HTTP: !spec.Raw(), Connections: spec.Limits.Connections}
	if o.Socket = spec.Socket(); o.Socket != "" {
		o.User, o.Outside = spec.ListenUser, t.sandbox.SharedDirs()
	}
	ln, err := client.Listen(ctx, o)
	if err != nil {
		if api.CodeOf(err) == api.CodeConflict {
			ce := api.Errorf(api.CodeConflict, "the address of endpoint %s is in use: something has %s in the sandbox", e.name, spec.Listen).
				WithHint("choose another, or end what has it")
			ce.Field = "listen"
			return ce
		}
		return err
	}
	e.mu.Lock()
	e.ln, e.on = ln, client
	e.mu.Unlock()
	e.serving.Go(func() { e.Serve(ln) })
	return nil
}

// unbind ends what serves an endpoint; inside it stays.
func (e *served) unbind() {
	e.mu.Lock()
	ln := e.ln
	e.ln, e.on = nil, nil
	e.mu.Unlock()
	if ln != nil {
		ln.Close()
	}
}

// shut ends an endpoint. What is under way has the grace.
func (e *served) shut(ctx context.Context, grace time.Duration) api.EndpointRemoval {
	e.unbind()
	r := e.Close(ctx, grace)
	e.serving.Wait()
	return r
}

// status is the endpoint's, as both sides see it.
func (e *served) status() api.EndpointStatus {
	st := withViews(e.Status())
	st.Counters.Unrecorded = e.unrecorded.Load()
	return st
}

func withViews(st api.EndpointStatus) api.EndpointStatus {
	st.HostView.URL = st.Endpoint.Target
	switch {
	case st.Endpoint.Socket() != "":
		st.SandboxView.URL = st.Endpoint.Listen
	case st.Endpoint.Raw():
		st.SandboxView.URL = "tcp://" + st.Endpoint.Listen
	default:
		st.SandboxView.URL = "http://" + st.Endpoint.Listen
	}
	st.SandboxView.Env = st.Endpoint.Exports(api.PhaseRun)
	return st
}
