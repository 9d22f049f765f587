package client

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche"
)

// Version is what a daemon says about itself.
type Version struct {
	// Version is the daemon's.
	Version string `json:"version"`
	// API is the version of the paths that it serves, such as "v1".
	API string `json:"api"`
}

// Images returns the root filesystems that a create can name.
func (c *Client) Images(ctx context.Context) (cloche.ImageList, error) {
	var l cloche.ImageList
	return l, c.call(ctx, http.MethodGet, "/images", nil, nil, &l)
}

// Status returns the daemon's own state. A daemon that is disabled or has no
// usable engine answers and says so.
func (c *Client) Status(ctx context.Context) (cloche.Status, error) {
	var s cloche.Status
	return s, c.call(ctx, http.MethodGet, "/status", nil, nil, &s)
}

// Doctor returns the verdict for each engine on the daemon's machine.
func (c *Client) Doctor(ctx context.Context) (cloche.Doctor, error) {
	var d cloche.Doctor
	return d, c.call(ctx, http.MethodGet, "/doctor", nil, nil, &d)
}

// Version returns the daemon's version.
func (c *Client) Version(ctx context.Context) (Version, error) {
	var v Version
	return v, c.call(ctx, http.MethodGet, "/version", nil, nil, &v)
}
