package core

import (
	"context"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/endpoint"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Opener opens streams to a client that serves an endpoint. See endpoint.Opener.
type Opener = endpoint.Opener

// Endpoints returns the endpoints of a sandbox.
func (s *Service) Endpoints(_ context.Context, caller Caller, ref string) (api.EndpointList, error) {
	return s.opts.Sandboxes.Endpoints(caller, ref)
}

// Endpoint returns one endpoint.
func (s *Service) Endpoint(ctx context.Context, caller Caller, ref, name string) (api.EndpointStatus, error) {
	list, err := s.Endpoints(ctx, caller, ref)
	if err != nil {
		return api.EndpointStatus{}, err
	}
	for _, e := range list.Endpoints {
		if e.Endpoint.Name == name {
			return e, nil
		}
	}
	return api.EndpointStatus{}, api.Errorf(api.CodeNotFound, "sandbox %s has no endpoint %.80q", ref, name).
		WithHint("cloche endpoint ls %s lists them", ref)
}

// AddEndpoint adds an endpoint to a running sandbox. With replace, an existing endpoint of that
// name gets the new target.
func (s *Service) AddEndpoint(ctx context.Context, caller Caller, ref string, e api.Endpoint, replace bool) (api.EndpointStatus, error) {
	const verb = policy.VerbAddEndpoint
	d := audit.EndpointDetails(e)
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return api.EndpointStatus{}, s.refused(ctx, caller, verb, "", d, err)
	}
	permit, err := policy.DecideEndpoint(e, otherEndpoints(sb, e.Name), policy.SettingsOf(sb), caller, s.rules(), s.opts.Sandboxes.HasSecrets())
	if err != nil {
		return api.EndpointStatus{}, s.refused(ctx, caller, verb, sb.ID, d, err)
	}
	if err := s.intend(ctx, caller, verb, sb.ID, d); err != nil {
		return api.EndpointStatus{}, err
	}
	st, err := s.opts.Sandboxes.AddEndpoint(ctx, caller, sb.ID, permit, replace)
	return st, s.done(ctx, caller, verb, sb.ID, d, err)
}

// otherEndpoints returns the endpoints of a sandbox with other names.
func otherEndpoints(sb api.Sandbox, name string) []api.Endpoint {
	return slices.DeleteFunc(slices.Clone(sb.Endpoints), func(o api.Endpoint) bool { return o.Name == name })
}

// RemoveEndpoint removes an endpoint. A nil grace is the default.
func (s *Service) RemoveEndpoint(ctx context.Context, caller Caller, ref, name string, grace *time.Duration) (api.EndpointRemoval, error) {
	const verb = policy.VerbRemoveEndpoint
	d := details{"endpoint": clip(name)}
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return api.EndpointRemoval{}, s.refused(ctx, caller, verb, "", d, err)
	}
	r, err := s.opts.Sandboxes.RemoveEndpoint(ctx, caller, sb.ID, name, grace)
	return r, s.done(context.WithoutCancel(ctx), caller, verb, sb.ID, d, err)
}

// ServeEndpoint lets a client serve an endpoint until detach is called.
func (s *Service) ServeEndpoint(ctx context.Context, caller Caller, ref, name string, o Opener) (detach func(), err error) {
	const verb = policy.VerbServeEndpoint
	d := details{"endpoint": clip(name)}
	sb, err := s.opts.Sandboxes.Get(caller, ref)
	if err != nil {
		return nil, s.refused(ctx, caller, verb, "", d, err)
	}
	if err := s.intend(ctx, caller, verb, sb.ID, d); err != nil {
		return nil, err
	}
	letGo, err := s.opts.Sandboxes.ServeEndpoint(caller, sb.ID, name, o)
	if err != nil {
		return nil, s.done(ctx, caller, verb, sb.ID, d, err)
	}
	return func() {
		letGo()
		_ = s.done(context.WithoutCancel(ctx), caller, verb, sb.ID, d, nil) // done returns its argument
	}, nil
}

// clip limits the length of an unvalidated name.
func clip(name string) string {
	if len(name) > 63 {
		return name[:63]
	}
	return name
}
