package client

import (
	"context"
	"net/http"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Heartbeat renews the lease of a sandbox, as any use of it does, and returns
// the record with the new end.
func (c *Client) Heartbeat(ctx context.Context, ref string) (api.Sandbox, error) {
	return c.act(ctx, ref, "/heartbeat")
}

// Extend lets a sandbox live so much longer from now on, up to the ceiling of its
// profile. It never brings the end nearer.
func (c *Client) Extend(ctx context.Context, ref string, lifetime time.Duration) (api.Sandbox, error) {
	var sb api.Sandbox
	p, err := sandboxPath(ref, "/extend")
	if err != nil {
		return sb, err
	}
	return sb, c.call(ctx, http.MethodPost, p, nil, api.Extension{LifetimeMS: lifetime.Milliseconds()}, &sb)
}

// Pause pauses a sandbox's processes and its idle time. Its lifetime is not
// paused.
func (c *Client) Pause(ctx context.Context, ref string) (api.Sandbox, error) {
	return c.act(ctx, ref, "/pause")
}

// Resume lets the processes of a paused sandbox go on.
func (c *Client) Resume(ctx context.Context, ref string) (api.Sandbox, error) {
	return c.act(ctx, ref, "/resume")
}

// act is a call without a body that answers with the sandbox.
func (c *Client) act(ctx context.Context, ref, verb string) (api.Sandbox, error) {
	var sb api.Sandbox
	p, err := sandboxPath(ref, verb)
	if err != nil {
		return sb, err
	}
	return sb, c.call(ctx, http.MethodPost, p, nil, nil, &sb)
}
