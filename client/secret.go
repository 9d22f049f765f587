package client

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche"
)

// Secrets returns the secrets that the caller may ask for by name, without their
// values, which no call returns.
func (c *Client) Secrets(ctx context.Context) (cloche.SecretList, error) {
	var l cloche.SecretList
	return l, c.call(ctx, http.MethodGet, "/secrets", nil, nil, &l)
}
