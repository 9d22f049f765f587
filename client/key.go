package client

import (
	"context"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

// CreateKey creates an API key. It is for the operator. The answer has the only copy of the key:
// store it safely.
func (c *Client) CreateKey(ctx context.Context, spec api.KeySpec) (api.NewKey, error) {
	var k api.NewKey
	return k, c.call(ctx, http.MethodPost, "/keys", nil, spec, &k)
}

// Keys returns the records of all keys, newest first. It is for the operator.
func (c *Client) Keys(ctx context.Context) (api.KeyList, error) {
	var l api.KeyList
	return l, c.call(ctx, http.MethodGet, "/keys", nil, nil, &l)
}

// RevokeKey revokes a key at once, and returns its record. It is for the operator.
func (c *Client) RevokeKey(ctx context.Context, id string) (api.Key, error) {
	var k api.Key
	if !api.ValidName(id) {
		return k, api.Invalid("key", "%d characters that are not the id of a key were given", len(id)).WithHint("give the id that the list of keys has, and never the key itself")
	}
	return k, c.call(ctx, http.MethodDelete, "/keys/"+id, nil, nil, &k)
}

// ExplainPolicy returns how the daemon's policy would judge a request, and why. A refusal is part
// of the answer and not an error.
func (c *Client) ExplainPolicy(ctx context.Context, q api.PolicyQuestion) (api.PolicyAnswer, error) {
	var a api.PolicyAnswer
	return a, c.call(ctx, http.MethodPost, "/policy/explain", nil, q, &a)
}
