package client

import (
	"context"

	"github.com/cloche-dev/cloche/api"
)

type contextKey struct{}

// NewContext returns a context that carries c, for code that gets its client from its caller.
func NewContext(ctx context.Context, c *Client) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// FromContext returns the client of NewContext. If there is none, the error is api.ErrUnavailable.
// There is no fallback, and code never runs on the host instead.
func FromContext(ctx context.Context) (*Client, error) {
	if c, ok := ctx.Value(contextKey{}).(*Client); ok && c != nil {
		return c, nil
	}
	return nil, api.Errorf(api.CodeUnavailable, "no sandbox runtime is attached to this context").
		WithHint("the program that starts this code attaches one with client.NewContext")
}
