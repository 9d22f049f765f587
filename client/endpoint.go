package client

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/reverse"
)

// Endpoints returns the endpoints of a sandbox, sorted by name.
func (c *Client) Endpoints(ctx context.Context, ref string) (api.EndpointList, error) {
	var list api.EndpointList
	path, err := sandboxPath(ref, "/endpoints")
	if err == nil {
		err = c.call(ctx, http.MethodGet, path, nil, nil, &list)
	}
	return list, err
}

// Endpoint returns the status of one endpoint.
func (c *Client) Endpoint(ctx context.Context, ref, name string) (api.EndpointStatus, error) {
	var st api.EndpointStatus
	path, err := endpointPath(ref, name, "")
	if err == nil {
		err = c.call(ctx, http.MethodGet, path, nil, nil, &st)
	}
	return st, err
}

// AddEndpoint adds an endpoint to a running sandbox. It has no effect if the same endpoint already
// exists.
func (c *Client) AddEndpoint(ctx context.Context, ref string, e api.Endpoint) (api.EndpointStatus, error) {
	var st api.EndpointStatus
	path, err := sandboxPath(ref, "/endpoints")
	if err == nil {
		err = c.call(ctx, http.MethodPost, path, nil, e, &st)
	}
	return st, err
}

// SetEndpoint is AddEndpoint, but gives an existing endpoint of that name the new target, headers
// and environment. Exchanges in progress continue with the old target.
func (c *Client) SetEndpoint(ctx context.Context, ref string, e api.Endpoint) (api.EndpointStatus, error) {
	var st api.EndpointStatus
	path, err := endpointPath(ref, e.Name, "")
	if err == nil {
		err = c.call(ctx, http.MethodPut, path, nil, e, &st)
	}
	return st, err
}

// RemoveEndpoint removes an endpoint. Exchanges in progress can finish within grace, and the rest
// are cut off. A nil grace is five seconds.
func (c *Client) RemoveEndpoint(ctx context.Context, ref, name string, grace *time.Duration) (api.EndpointRemoval, error) {
	var removed api.EndpointRemoval
	var query url.Values
	if grace != nil {
		query = url.Values{"grace_ms": {strconv.FormatInt(grace.Milliseconds(), 10)}}
	}
	path, err := endpointPath(ref, name, "")
	if err == nil {
		err = c.call(ctx, http.MethodDelete, path, query, nil, &removed)
	}
	return removed, err
}

// ListenEndpoint serves an endpoint with the target "client" or "client+tcp". The listener accepts
// the connections that are made to the endpoint inside the sandbox, until it is closed, ctx ends or
// the endpoint is removed. The connections have CloseWrite and Reset.
func (c *Client) ListenEndpoint(ctx context.Context, ref, name string) (net.Listener, error) {
	path, err := endpointPath(ref, name, "/serve")
	if err != nil {
		return nil, err
	}
	ws, err := c.dialSocket(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(-1) // a message is read in pieces
	l, err := reverse.Listen(websocket.NetConn(ctx, ws, websocket.MessageBinary))
	if err != nil {
		return nil, err
	}
	return l, nil
}

func endpointPath(ref, name, rest string) (string, error) {
	if !api.ValidEndpointName(name) {
		return "", api.Invalid("name", "%.80q cannot name an endpoint", name).WithHint("use 1 to 63 of a-z, 0-9 and '-', beginning with a letter")
	}
	return sandboxPath(ref, "/endpoints/"+name+rest)
}
