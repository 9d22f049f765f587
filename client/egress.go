package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cloche-dev/cloche/api"
)

// Egress returns the rules in force in a sandbox.
func (c *Client) Egress(ctx context.Context, ref string) (api.EgressRules, error) {
	var r api.EgressRules
	p, err := sandboxPath(ref, "/egress")
	if err != nil {
		return r, err
	}
	return r, c.call(ctx, http.MethodGet, p, nil, nil, &r)
}

// ChangeEgress changes the rules of a running sandbox and returns the new ones. The new rules also
// apply to open connections.
func (c *Client) ChangeEgress(ctx context.Context, ref string, change api.EgressChange) (api.EgressRules, error) {
	var r api.EgressRules
	p, err := sandboxPath(ref, "/egress")
	if err != nil {
		return r, err
	}
	return r, c.call(ctx, http.MethodPatch, p, nil, change, &r)
}

// ReplaceEgress replaces all egress rules of a running sandbox that was created with a network.
// When it returns, no connection that the new rules forbid is open.
func (c *Client) ReplaceEgress(ctx context.Context, ref string, policy api.EgressPolicy) (api.EgressRules, error) {
	var r api.EgressRules
	p, err := sandboxPath(ref, "/egress")
	if err != nil {
		return r, err
	}
	return r, c.call(ctx, http.MethodPut, p, nil, policy, &r)
}

// EgressLog calls fn with records of allowed and refused egress, in order, and returns fn's error
// unchanged. With Follow it continues until the sandbox ends. It replaces a connection that breaks
// and continues after the last record that fn got.
func (c *Client) EgressLog(ctx context.Context, ref string, o api.EgressLogOptions, fn func(api.EgressRecord) error) error {
	p, err := sandboxPath(ref, "/egress/log")
	if err != nil {
		return err
	}
	take := func(line []byte) error {
		m, err := decodeLine[api.EgressRecord](line)
		if err != nil {
			return err
		}
		if o.After > 0 && m.Seq <= o.After {
			return nil
		}
		// A new connection asks only for later records.
		o.After, o.Tail = m.Seq, 0
		if err := fn(m); err != nil {
			return &callerError{err}
		}
		return nil
	}
	once := func(connected func()) error {
		inner, hangUp := context.WithCancel(ctx)
		defer hangUp()
		resp, err := c.sendJSON(inner, http.MethodGet, p, egressQuery(o), nil, "application/x-ndjson")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		connected()
		body := resp.Body
		if o.Follow {
			return c.scan(ctx, &watched{body, hangUp}, take)
		}
		return c.scan(ctx, body, take)
	}
	if o.Follow {
		return c.follow(ctx, once)
	}
	err = once(func() {})
	if ce, ok := errors.AsType[*callerError](err); ok {
		return ce.err
	}
	return err
}

func egressQuery(o api.EgressLogOptions) url.Values {
	q := url.Values{}
	for name, n := range map[string]int64{"after": o.After, "tail": int64(o.Tail)} {
		if n != 0 {
			q.Set(name, strconv.FormatInt(n, 10))
		}
	}
	for _, k := range o.Kinds {
		q.Add("kind", string(k))
	}
	if o.Follow {
		q.Set("follow", "true")
	}
	return q
}

// Approvals returns the pending approvals of sandboxes, oldest first.
func (c *Client) Approvals(ctx context.Context, o api.ApprovalOptions) (api.ApprovalList, error) {
	q := url.Values{}
	setText(q, "sandbox", o.Sandbox)
	if o.All {
		q.Set("all", "true")
	}
	var l api.ApprovalList
	return l, c.call(ctx, http.MethodGet, "/approvals", q, nil, &l)
}

// AnswerApproval answers a pending approval.
func (c *Client) AnswerApproval(ctx context.Context, id string, answer api.ApprovalAnswer) (api.Approval, error) {
	var a api.Approval
	if !api.ValidName(id) {
		return a, api.Invalid("approval", "%d characters that are not the id of an approval were given", len(id)).WithHint("give the id that the list of approvals has")
	}
	return a, c.call(ctx, http.MethodPost, "/approvals/"+id, nil, answer, &a)
}

// Secrets returns the secrets that the caller can request by name. The values are never returned.
func (c *Client) Secrets(ctx context.Context) (api.SecretList, error) {
	var l api.SecretList
	return l, c.call(ctx, http.MethodGet, "/secrets", nil, nil, &l)
}
