package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/cloche-dev/cloche/api"
)

// CreateMany creates many sandboxes in one call. The daemon decides how many it creates in
// parallel. Some may fail, and the result lists each. If ctx ends before the answer, the daemon
// removes the sandboxes that have no idempotency key.
func (c *Client) CreateMany(ctx context.Context, b api.BatchCreate) (api.BatchResult, error) {
	for i, spec := range b.Specs {
		if err := checkSpec(fmt.Sprintf("specs[%d].", i), spec); err != nil {
			return api.BatchResult{}, err
		}
	}
	return c.batch(ctx, "/batch/create", b)
}

// StatusMany is Get for up to api.MaxBatch IDs or names.
func (c *Client) StatusMany(ctx context.Context, ids ...string) (api.BatchResult, error) {
	return c.batch(ctx, "/batch/status", api.BatchSelect{IDs: ids})
}

// RemoveMany removes all sandboxes that sel selects, each independently.
func (c *Client) RemoveMany(ctx context.Context, sel api.BatchSelect) (api.BatchResult, error) {
	return c.batch(ctx, "/batch/remove", sel)
}

func (c *Client) batch(ctx context.Context, path string, in any) (api.BatchResult, error) {
	var out api.BatchResult
	return out, c.call(ctx, http.MethodPost, path, nil, in, &out)
}

// RemoveByKey removes the sandbox with an idempotency key and prevents its later creation: a create
// with the key that is in progress, or arrives within 24 hours, creates nothing. It can be
// repeated.
func (c *Client) RemoveByKey(ctx context.Context, key string) (api.Sandbox, error) {
	var sb api.Sandbox
	return sb, c.call(ctx, http.MethodDelete, "/sandboxes", url.Values{"idempotency_key": {key}}, nil, &sb)
}
