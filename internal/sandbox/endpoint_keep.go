package sandbox

import (
	"context"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/endpoint"
	"github.com/cloche-dev/cloche/internal/policy"
)

// openEndpoints is the step of a create: they are there before anything runs.
func (c *creation) openEndpoints(ctx context.Context) error {
	grants := c.permit.Endpoints()
	if len(grants) == 0 {
		return nil
	}
	c.s.undo.push("endpoints", func(ctx context.Context) error {
		c.m.closeEndpoints(ctx, c.s)
		return nil
	})
	// A port that Cloche chooses must not be one that another endpoint requests.
	slices.SortStableFunc(grants, func(a, b policy.EndpointGrant) int { return boolInt(a.Auto) - boolInt(b.Auto) })
	for _, g := range grants {
		g, err := c.m.findPort(ctx, c.s, g, c.client)
		if err != nil {
			return err
		}
		e, err := c.m.newEndpoint(c.m.ctx, c.s, g)
		if err != nil {
			return err
		}
		c.s.endpoints.put(g, e)
		if err := c.m.bind(ctx, c.s, e, c.client); err != nil {
			return err
		}
	}
	specs := c.s.endpoints.specs()
	c.s.mu.Lock()
	c.s.info.Endpoints = specs
	c.s.mu.Unlock()
	c.m.keepEndpoints(c.s)
	return nil
}

// Range of the ports that Cloche chooses. It is below the ephemeral ports of operating systems.
const autoFirst, autoLast = 13132, 13387

// findPort finds one that nothing inside has, for an endpoint that leaves it to the
// daemon, and takes it. The grant that comes back says which.
func (m *Manager) findPort(ctx context.Context, s *live, g policy.EndpointGrant, client *agent.Client) (policy.EndpointGrant, error) {
	if g.Spec.Listen != api.EndpointListenAuto {
		return g, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	others := s.endpoints.specs()
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

// waitEndpoints waits until the endpoints are ready that a program asks for.
func (m *Manager) waitEndpoints(ctx context.Context, s *live, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, maxEndpointWait)
	defer cancel()
	for _, name := range names {
		e := s.endpoints.named(name)
		if e == nil {
			return noEndpoint(s, name)
		}
		if err := e.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// reopenEndpoints serves the endpoints of an adopted sandbox again.
func (m *Manager) reopenEndpoints(ctx context.Context, s *live) {
	for _, g := range s.endpoints.grants() {
		e, err := m.newEndpoint(m.ctx, s, g)
		if err != nil {
			m.log.Error("reopen endpoint", "sandbox", s.id, "endpoint", g.Spec.Name, "error", err)
			continue
		}
		s.endpoints.put(g, e)
	}
	m.rebind(ctx, s)
	m.keepEndpoints(s)
}

// rebind puts all endpoints in their places that are not. It returns the client that
// they are on; nil is that the sandbox is out of reach.
func (m *Manager) rebind(ctx context.Context, s *live) *agent.Client {
	client, err := m.agentOf(ctx, s)
	if err != nil {
		return nil
	}
	s.endpoints.ops.Lock()
	defer s.endpoints.ops.Unlock()
	lost := false
	for _, e := range s.endpoints.open() {
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
		if err := m.bind(ctx, s, e, client); err != nil {
			m.log.Warn("put endpoint in its place again", "sandbox", s.id, "endpoint", e.name, "error", err)
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
// connection to it was lost, until closeEndpoints or the Manager closes.
func (m *Manager) keepEndpoints(s *live) {
	t := &s.endpoints
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stop != nil || t.over || len(t.all) == 0 {
		return
	}
	ctx, stop := context.WithCancel(m.ctx)
	kept := make(chan struct{})
	t.stop, t.kept = stop, kept
	runs := m.background(func() {
		defer close(kept)
		m.keep(ctx, s)
		if m.ctx.Err() != nil {
			for _, e := range t.open() {
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

func (m *Manager) keep(ctx context.Context, s *live) {
	wait := keepMin
	for ctx.Err() == nil {
		client := m.rebind(ctx, s)
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
		for _, e := range s.endpoints.open() {
			e.unbind()
			e.Enter(api.EndpointBinding, lostConnection)
		}
	}
}

// closeEndpoints ends the endpoints of a sandbox that ends: at once, for a connection
// would keep nothing alive that is worth it. It may be called again.
func (m *Manager) closeEndpoints(ctx context.Context, s *live) {
	t := &s.endpoints
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
	for _, e := range t.open() {
		e.shut(ctx, 0)
		t.drop(e)
	}
	if stop != nil {
		t.ops.Unlock()
		<-kept // which may wait for ops
		t.ops.Lock()
	}
}
