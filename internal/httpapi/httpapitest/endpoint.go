package httpapitest

import (
	"context"
	"slices"
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/core"
)

// endpointNamed is the place of an endpoint of a sandbox; -1 is none.
func endpointNamed(sb cloche.Sandbox, name string) int {
	return slices.IndexFunc(sb.Endpoints, func(e cloche.Endpoint) bool { return e.Name == name })
}

func statusOf(e cloche.Endpoint) cloche.EndpointStatus {
	return cloche.EndpointStatus{
		Endpoint: e, State: cloche.EndpointReady, Since: time.Unix(1, 0).UTC(),
		HostView: cloche.EndpointView{URL: e.Target}, SandboxView: cloche.EndpointView{URL: "http://" + e.Listen, Env: e.Exports(cloche.PhaseRun)},
	}
}

func noEndpoint(name string) error {
	return cloche.Errorf(cloche.CodeNotFound, "there is no endpoint %s", name)
}

// Endpoints lists what was added, all of it ready.
func (c *Core) Endpoints(ctx context.Context, caller core.Caller, ref string) (cloche.EndpointList, error) {
	sb, err := c.Get(ctx, caller, ref)
	var list cloche.EndpointList
	for _, e := range sb.Endpoints {
		list.Endpoints = append(list.Endpoints, statusOf(e))
	}
	return list, err
}

// Endpoint tells of one.
func (c *Core) Endpoint(ctx context.Context, caller core.Caller, ref, name string) (cloche.EndpointStatus, error) {
	sb, err := c.Get(ctx, caller, ref)
	if err != nil {
		return cloche.EndpointStatus{}, err
	}
	i := endpointNamed(sb, name)
	if i < 0 {
		return cloche.EndpointStatus{}, noEndpoint(name)
	}
	return statusOf(sb.Endpoints[i]), nil
}

// AddEndpoint adds any endpoint, once.
func (c *Core) AddEndpoint(ctx context.Context, caller core.Caller, ref string, e cloche.Endpoint, replace bool) (cloche.EndpointStatus, error) {
	sb, err := c.Get(ctx, caller, ref)
	if err != nil {
		return cloche.EndpointStatus{}, err
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
		return cloche.EndpointStatus{}, cloche.Errorf(cloche.CodeExists, "there is an endpoint %s", e.Name)
	}
	return statusOf(e), nil
}

// RemoveEndpoint says that one request ended and two were cut off.
func (c *Core) RemoveEndpoint(ctx context.Context, caller core.Caller, ref, name string, grace *time.Duration) (cloche.EndpointRemoval, error) {
	sb, err := c.Get(ctx, caller, ref)
	if err != nil {
		return cloche.EndpointRemoval{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	own := &c.sandboxes[sb.ID].record
	i := endpointNamed(*own, name)
	if i < 0 {
		return cloche.EndpointRemoval{}, noEndpoint(name)
	}
	own.Endpoints = slices.Delete(slices.Clone(own.Endpoints), i, i+1)
	return cloche.EndpointRemoval{Drained: 1, Cancelled: 2}, nil
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
