package client

import (
	"context"
	"net/http"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Heartbeat renews the lease of a sandbox, as any use does, and returns the record with the new
// end.
func (c *Client) Heartbeat(ctx context.Context, ref string) (api.Sandbox, error) {
	return c.act(ctx, ref, "/heartbeat")
}

// Extend sets the remaining lifetime of a sandbox, up to the ceiling of its profile. It never
// shortens the lifetime.
func (c *Client) Extend(ctx context.Context, ref string, lifetime time.Duration) (api.Sandbox, error) {
	var sb api.Sandbox
	p, err := sandboxPath(ref, "/extend")
	if err != nil {
		return sb, err
	}
	return sb, c.call(ctx, http.MethodPost, p, nil, api.Extension{LifetimeMS: lifetime.Milliseconds()}, &sb)
}

// Pause pauses all processes of a sandbox. Its idle time is paused too, and its lifetime continues.
func (c *Client) Pause(ctx context.Context, ref string) (api.Sandbox, error) {
	return c.act(ctx, ref, "/pause")
}

// Resume resumes the processes of a paused sandbox.
func (c *Client) Resume(ctx context.Context, ref string) (api.Sandbox, error) {
	return c.act(ctx, ref, "/resume")
}

// act makes a call without a body that returns the sandbox.
func (c *Client) act(ctx context.Context, ref, verb string) (api.Sandbox, error) {
	var sb api.Sandbox
	p, err := sandboxPath(ref, verb)
	if err != nil {
		return sb, err
	}
	return sb, c.call(ctx, http.MethodPost, p, nil, nil, &sb)
}
