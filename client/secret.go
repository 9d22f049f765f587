package client

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

// Secrets returns the secrets that the caller may ask for by name, without their
// values, which no call returns.
func (c *Client) Secrets(ctx context.Context) (api.SecretList, error) {
	var l api.SecretList
	return l, c.call(ctx, http.MethodGet, "/secrets", nil, nil, &l)
}
