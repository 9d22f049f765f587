package mockcore

import (
	"context"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// endpointNamed is the index of an endpoint of a sandbox; -1 means that it does not exist.
func endpointNamed(sb api.Sandbox, name string) int {
	return slices.IndexFunc(sb.Endpoints, func(e api.Endpoint) bool { return e.Name == name })
}

func statusOf(e api.Endpoint) api.EndpointStatus {
	return api.EndpointStatus{
		Endpoint: e, State: api.EndpointReady, Since: time.Unix(1, 0).UTC(),
		HostView: api.EndpointView{URL: e.Target}, SandboxView: api.EndpointView{URL: "http://" + e.Listen, Env: e.Exports(api.PhaseRun)},
	}
}

func noEndpoint(name string) error {
	return api.Errorf(api.CodeNotFound, "there is no endpoint %s", name)
}

// Endpoints lists what was added, all of it ready.
func (c *Core) Endpoints(ctx context.Context, caller core.Caller, ref string) (api.EndpointList, error) {
	sb, err := c.Get(ctx, caller, ref)
	var list api.EndpointList
	for _, e := range sb.Endpoints {
		list.Endpoints = append(list.Endpoints, statusOf(e))
	}
	return list, err
}

// Endpoint tells of one.
func (c *Core) Endpoint(ctx context.Context, caller core.Caller, ref, name string) (api.EndpointStatus, error) {
	sb, err := c.Get(ctx, caller, ref)
	if err != nil {
		return api.EndpointStatus{}, err
	}
	i := endpointNamed(sb, name)
	if i < 0 {
		return api.EndpointStatus{}, noEndpoint(name)
	}
	return statusOf(sb.Endpoints[i]), nil
}

// AddEndpoint adds any endpoint, once.
func (c *Core) AddEndpoint(ctx context.Context, caller core.Caller, ref string, e api.Endpoint, replace bool) (api.EndpointStatus, error) {
	sb, err := c.Get(ctx, caller, ref)
	if err != nil {
		return api.EndpointStatus{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	own := &c.sandboxes[sb.ID].record
	i := endpointNamed(*own, e.Name)
	switch {
	case i < 0:
		own.Endpoints = append(own.Endpoints, e)
	case replace:
		own.Endpoints[i] = e
	default:
		return api.EndpointStatus{}, api.Errorf(api.CodeExists, "there is an endpoint %s", e.Name)
	}
	return statusOf(e), nil
}

// RemoveEndpoint says that one request ended and two were cut off.
func (c *Core) RemoveEndpoint(ctx context.Context, caller core.Caller, ref, name string, grace *time.Duration) (api.EndpointRemoval, error) {
	sb, err := c.Get(ctx, caller, ref)
	if err != nil {
		return api.EndpointRemoval{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	own := &c.sandboxes[sb.ID].record
	i := endpointNamed(*own, name)
	if i < 0 {
		return api.EndpointRemoval{}, noEndpoint(name)
	}
	own.Endpoints = slices.Delete(slices.Clone(own.Endpoints), i, i+1)
	return api.EndpointRemoval{Drained: 1, Cancelled: 2}, nil
}

// ServeEndpoint connects once, says hello, and sends back what it gets to its end.
func (c *Core) ServeEndpoint(ctx context.Context, caller core.Caller, ref, name string, o core.Opener) (detach func(), err error) {
	if _, err := c.Endpoint(ctx, caller, ref, name); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := o.Open(ctx)
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Write([]byte("hello"))
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			_, _ = conn.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	return func() {
		cancel()
		o.Close()
		<-done
	}, nil
}
