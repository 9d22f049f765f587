package client

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

// Secrets returns the secrets that the caller can request by name. The values are never returned.
func (c *Client) Secrets(ctx context.Context) (api.SecretList, error) {
	var l api.SecretList
	return l, c.call(ctx, http.MethodGet, "/secrets", nil, nil, &l)
}
