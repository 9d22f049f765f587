package endpoints

import (
	"context"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/endpoint"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Open opens the endpoints of a sandbox that is being created, before any program runs.
func (t *Table) Open(ctx context.Context, grants []policy.EndpointGrant, client *agent.Client) error {
	// A port that Cloche chooses must not be one that another endpoint requests.
	slices.SortStableFunc(grants, func(a, b policy.EndpointGrant) int { return boolInt(a.Auto) - boolInt(b.Auto) })
	for _, g := range grants {
		g, err := t.findPort(ctx, g, client)
		if err != nil {
			return err
		}
		e, err := t.open(t.service.o.Context, g)
		if err != nil {
			return err
		}
		t.put(g, e)
		if err := t.bind(ctx, e, client); err != nil {
			return err
		}
	}
	t.startKeeper()
	return nil
}

// Range of the ports that Cloche chooses. It is below the ephemeral ports of operating systems.
const autoFirst, autoLast = 13132, 13387

// findPort finds one that nothing inside has, for an endpoint that leaves it to the
// daemon, and takes it. The grant that comes back says which.
func (t *Table) findPort(ctx context.Context, g policy.EndpointGrant, client *agent.Client) (policy.EndpointGrant, error) {
	if g.Spec.Listen != api.EndpointListenAuto {
		return g, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	others := t.Specs()
	for port := autoFirst; port <= autoLast; port++ {
		if slices.ContainsFunc(others, func(o api.Endpoint) bool { return o.Port() == port }) {
			continue
		}
		ln, err := client.Listen(ctx, agent.ListenOptions{ID: g.Spec.Name, Port: port, HTTP: !g.Spec.Raw(), Connections: endpoint.Fill(g.Spec.Limits).Connections})
		if api.CodeOf(err) == api.CodeConflict {
			continue
		}
		if err != nil {
			return g, err
		}
		// It stays inside, and the next bind of the endpoint takes it over.
		g.Spec.Listen = ln.Addr().String()
		return g, ln.Close()
	}
	return g, api.Errorf(api.CodeConflict, "no port is free for endpoint %s: something in the sandbox listens on all from %d to %d", g.Spec.Name, autoFirst, autoLast).
		WithHint("choose one, or end what listens there")
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// maxEndpointWait bounds how long a program may wait for an endpoint.
const maxEndpointWait = 30 * time.Second

// Wait waits until the endpoints are ready that a program asks for.
func (t *Table) Wait(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, maxEndpointWait)
	defer cancel()
	for _, name := range names {
		e := t.named(name)
		if e == nil {
			return t.missing(name)
		}
		if err := e.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Reopen serves the endpoints of an adopted or resumed sandbox again. Those that are open are put in their places.
func (t *Table) Reopen(ctx context.Context) {
	for _, g := range t.Grants() {
		if t.named(g.Spec.Name) != nil {
			continue
		}
		e, err := t.open(t.service.o.Context, g)
		if err != nil {
			t.service.o.Logger.Error("reopen endpoint", "sandbox", t.names.ID, "endpoint", g.Spec.Name, "error", err)
			continue
		}
		t.put(g, e)
	}
	t.rebind(ctx)
	t.startKeeper()
}

// rebind puts all endpoints in their places that are not. It returns the client that
// they are on; nil is that the sandbox is out of reach.
func (t *Table) rebind(ctx context.Context) *agent.Client {
	client, err := t.sandbox.Agent(ctx)
	if err != nil {
		return nil
	}
	t.ops.Lock()
	defer t.ops.Unlock()
	lost := false
	for _, e := range t.served() {
		e.mu.Lock()
		bound, other := e.ln != nil && e.on == client, e.ln != nil && e.on != client
		e.mu.Unlock()
		if bound || e.State() == api.EndpointDraining {
			continue
		}
		e.unbind() // from a connection that is no more
		if other {
			e.Enter(api.EndpointBinding, lostConnection)
		}
		if err := t.bind(ctx, e, client); err != nil {
			t.service.o.Logger.Warn("put endpoint in its place again", "sandbox", t.names.ID, "endpoint", e.name, "error", err)
			e.Enter(api.EndpointFailed, "it cannot be put in its place")
			// What has its port may keep it for good; anything else is tried again.
			lost = lost || api.CodeOf(err) != api.CodeConflict
		}
	}
	if lost {
		return nil
	}
	return client
}

// keepEndpoints has the endpoints of a sandbox put in their places again whenever the
// connection to it was lost, until Close or the end of the service.
func (t *Table) startKeeper() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stop != nil || t.over || len(t.all) == 0 {
		return
	}
	ctx, stop := context.WithCancel(t.service.o.Context)
	kept := make(chan struct{})
	t.stop, t.kept = stop, kept
	runs := t.service.o.Background(func() {
		defer close(kept)
		t.keep(ctx)
		if t.service.o.Context.Err() != nil {
			for _, e := range t.served() {
				e.shut(context.WithoutCancel(ctx), 0)
			}
		}
	})
	if !runs {
		stop()
		close(kept)
	}
}

// lostConnection is why an endpoint is out of reach for a while.
const lostConnection = "the connection to the sandbox was lost, and what was under way with it"

// The wait between two attempts to reach a sandbox begins at keepMin and doubles.
const keepMin, keepMax = 20 * time.Millisecond, 2 * time.Second

func (t *Table) keep(ctx context.Context) {
	wait := keepMin
	for ctx.Err() == nil {
		client := t.rebind(ctx)
		if client == nil {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
			wait = min(2*wait, keepMax)
			continue
		}
		wait = keepMin
		select {
		case <-client.Done():
		case <-ctx.Done():
			return
		}
		for _, e := range t.served() {
			e.unbind()
			e.Enter(api.EndpointBinding, lostConnection)
		}
	}
}

// Close ends the endpoints of a sandbox that ends: at once, for a connection
// would keep nothing alive that is worth it. It may be called again.
func (t *Table) Close(ctx context.Context) {
	t.ops.Lock()
	defer t.ops.Unlock()
	t.mu.Lock()
	t.over = true
	stop, kept := t.stop, t.kept
	t.stop = nil
	t.mu.Unlock()
	if stop != nil {
		stop()
	}
	for _, e := range t.served() {
		e.shut(ctx, 0)
		t.drop(e)
	}
	if stop != nil {
		t.ops.Unlock()
		<-kept // which may wait for ops
		t.ops.Lock()
	}
}
