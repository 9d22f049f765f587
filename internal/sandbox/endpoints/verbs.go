package endpoints

import (
	"context"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/endpoint"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Endpoints describes the endpoints of a sandbox, by name.
func (s *Service) Endpoints(caller policy.Caller, ref string) (api.EndpointList, error) {
	t, err := s.o.Find(caller, policy.VerbEndpoints, ref)
	if err != nil {
		return api.EndpointList{}, err
	}
	return t.List(), nil
}

// Declared are the endpoints of a sandbox as they were granted.
func (s *Service) Declared(caller policy.Caller, verb policy.Verb, ref string) ([]api.Endpoint, error) {
	t, err := s.o.Find(caller, verb, ref)
	if err != nil {
		return nil, err
	}
	return t.Specs(), nil
}

// AddEndpoint opens an endpoint of a running sandbox; see [Table.Add].
func (s *Service) AddEndpoint(ctx context.Context, caller policy.Caller, ref string, permit policy.EndpointPermit, replace bool) (api.EndpointStatus, error) {
	t, err := s.o.Find(caller, policy.VerbAddEndpoint, ref)
	if err != nil {
		return api.EndpointStatus{}, err
	}
	if !permit.Valid() {
		return api.EndpointStatus{}, api.Errorf(api.CodeDenied, "no policy has granted this endpoint")
	}
	return t.Add(ctx, permit.Grant(), replace)
}

// RemoveEndpoint closes an endpoint: nothing new begins, what is under way has the grace to end, and
// the rest is cut off. A nil grace is the default.
func (s *Service) RemoveEndpoint(ctx context.Context, caller policy.Caller, ref, name string, grace *time.Duration) (api.EndpointRemoval, error) {
	wait, err := CheckGrace(grace)
	if err != nil {
		return api.EndpointRemoval{}, err
	}
	t, err := s.o.Find(caller, policy.VerbRemoveEndpoint, ref)
	if err != nil {
		return api.EndpointRemoval{}, err
	}
	return t.Remove(ctx, name, wait)
}

// ServeEndpoint has a client serve an endpoint until detach is called.
func (s *Service) ServeEndpoint(caller policy.Caller, ref, name string, o endpoint.Opener) (detach func(), err error) {
	t, err := s.o.Find(caller, policy.VerbServeEndpoint, ref)
	if err != nil {
		return nil, err
	}
	return t.Serve(name, o)
}
