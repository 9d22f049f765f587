package core

import (
	"context"
	"io"
	"slices"
	"strconv"
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

// Recordings returns the caller's recordings, sorted by name.
func (s *Service) Recordings(_ context.Context, caller Caller) (api.RecordingList, error) {
	list, err := s.opts.Recordings.List(caller.Tenant)
	return api.RecordingList{Recordings: list}, s.classed("list recordings", err)
}

// GetRecording returns the record of one of the caller's recordings.
func (s *Service) GetRecording(_ context.Context, caller Caller, name string) (api.RecordingInfo, error) {
	info, err := s.opts.Recordings.Info(caller.Tenant, name)
	return info, s.classed("look at a recording", err)
}

// ReadRecording writes a recording to w, up to its present end. If the error is a *api.Error,
// nothing was written.
func (s *Service) ReadRecording(ctx context.Context, caller Caller, name string, w io.Writer) error {
	const verb = policy.VerbGetRecording
	d := details{"recording": bound(name)}
	f, err := s.opts.Recordings.Read(caller.Tenant, name)
	if err != nil {
		return s.refused(ctx, caller, verb, "", d, s.classed("read a recording", err))
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return s.broken("read a recording", err)
	}
	if err := s.intend(ctx, caller, verb, "", d); err != nil {
		return err
	}
	_, err = io.Copy(w, io.NewSectionReader(f, 0, fi.Size()))
	return err
}

// PutRecording stores an uploaded recording.
func (s *Service) PutRecording(ctx context.Context, caller Caller, name string, r io.Reader) (api.RecordingInfo, error) {
	const verb = policy.VerbPutRecording
	d := details{"recording": bound(name)}
	if err := s.intend(ctx, caller, verb, "", d); err != nil {
		return api.RecordingInfo{}, err
	}
	info, err := s.opts.Recordings.Put(caller.Tenant, name, r)
	if err == nil {
		d["bytes"] = strconv.FormatInt(info.Bytes, 10)
	}
	return info, s.done(context.WithoutCancel(ctx), caller, verb, "", d, s.classed("keep a recording", err))
}

// RemoveRecording removes a recording. Endpoints that replay it continue.
func (s *Service) RemoveRecording(ctx context.Context, caller Caller, name string) error {
	const verb = policy.VerbRemoveRecording
	d := details{"recording": bound(name)}
	if err := s.intend(ctx, caller, verb, "", d); err != nil {
		return err
	}
	err := s.opts.Recordings.Remove(caller.Tenant, name)
	return s.done(context.WithoutCancel(ctx), caller, verb, "", d, s.classed("remove a recording", err))
}

// classed adds a code to an error that has none.
func (s *Service) classed(what string, err error) error {
	if err == nil {
		return nil
	}
	return s.broken(what, err)
}
