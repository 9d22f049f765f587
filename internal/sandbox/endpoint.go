package sandbox

import (
	"context"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/endpoint"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/endpoints"
)

// openEndpoints is the step of a create that opens endpoints, before any program runs.
func (c *creation) openEndpoints(ctx context.Context) error {
	grants := c.permit.Endpoints()
	if len(grants) == 0 {
		return nil
	}
	c.s.undo.push("endpoints", func(ctx context.Context) error {
		c.s.endpoints.Close(ctx)
		return nil
	})
	if err := c.s.endpoints.Open(ctx, grants, c.client); err != nil {
		return err
	}
	specs := c.s.endpoints.Specs()
	c.s.mu.Lock()
	c.s.info.Endpoints = specs
	c.s.mu.Unlock()
	return nil
}

// HasSecrets reports whether endpoints can be given the values of secrets.
func (m *Manager) HasSecrets() bool { return m.opts.Secrets != nil }

// Endpoints describes the endpoints of a sandbox, by name.
func (m *Manager) Endpoints(caller policy.Caller, ref string) (api.EndpointList, error) {
	s, err := m.find(caller, policy.VerbEndpoints, ref)
	if err != nil {
		return api.EndpointList{}, err
	}
	return s.endpoints.List(), nil
}

// Declared are the endpoints of a sandbox as they were granted.
func (m *Manager) Declared(caller policy.Caller, verb policy.Verb, ref string) ([]api.Endpoint, error) {
	s, err := m.find(caller, verb, ref)
	if err != nil {
		return nil, err
	}
	return s.endpoints.Specs(), nil
}

// AddEndpoint opens an endpoint of a running sandbox; see [endpoints.Table.Add].
func (m *Manager) AddEndpoint(ctx context.Context, caller policy.Caller, ref string, permit policy.EndpointPermit, replace bool) (api.EndpointStatus, error) {
	s, err := m.find(caller, policy.VerbAddEndpoint, ref)
	if err != nil {
		return api.EndpointStatus{}, err
	}
	if !permit.Valid() {
		return api.EndpointStatus{}, api.Errorf(api.CodeDenied, "no policy has granted this endpoint")
	}
	return s.endpoints.Add(ctx, permit.Grant(), replace)
}

// RemoveEndpoint closes an endpoint: nothing new begins, what is under way has the grace to end, and
// the rest is cut off. A nil grace is the default.
func (m *Manager) RemoveEndpoint(ctx context.Context, caller policy.Caller, ref, name string, grace *time.Duration) (api.EndpointRemoval, error) {
	wait, err := endpoints.CheckGrace(grace)
	if err != nil {
		return api.EndpointRemoval{}, err
	}
	s, err := m.find(caller, policy.VerbRemoveEndpoint, ref)
	if err != nil {
		return api.EndpointRemoval{}, err
	}
	return s.endpoints.Remove(ctx, name, wait)
}

// ServeEndpoint has a client serve an endpoint until detach is called.
func (m *Manager) ServeEndpoint(caller policy.Caller, ref, name string, o endpoint.Opener) (detach func(), err error) {
	s, err := m.find(caller, policy.VerbServeEndpoint, ref)
	if err != nil {
		return nil, err
	}
	return s.endpoints.Serve(name, o)
}
