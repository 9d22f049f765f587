package client

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

// Version is the version information of a daemon.
type Version struct {
	// Version is the daemon's version.
	Version string `json:"version"`
	// API is the version of the API paths, such as "v1".
	API string `json:"api"`
}

// Status returns the state of the daemon. A daemon that is disabled or has no usable engine answers
// too, and says so.
func (c *Client) Status(ctx context.Context) (api.Status, error) {
	var s api.Status
	return s, c.call(ctx, http.MethodGet, "/status", nil, nil, &s)
}

// Standing is Status for callers that poll and do not want an error: if the daemon cannot be
// reached, the status says why. Its engine and sandbox fields are then empty.
func (c *Client) Standing(ctx context.Context) api.Status {
	before := c.reached.Load()
	s, err := c.Status(ctx)
	if err == nil {
		return s
	}
	s = api.Status{Message: err.Error()}
	switch code := api.CodeOf(err); {
	case code != api.CodeUnavailable && code != api.CodeTimeout && code != api.CodeCanceled:
		s.Reason = api.ReasonFailing
	case before:
		s.Reason = api.ReasonLost
	default:
		s.Reason = api.ReasonNeverConnected
	}
	return s
}

// Doctor returns the report of each engine on the daemon's machine.
func (c *Client) Doctor(ctx context.Context) (api.Doctor, error) {
	var d api.Doctor
	return d, c.call(ctx, http.MethodGet, "/doctor", nil, nil, &d)
}

// Version returns the daemon's version.
func (c *Client) Version(ctx context.Context) (Version, error) {
	var v Version
	return v, c.call(ctx, http.MethodGet, "/version", nil, nil, &v)
}
