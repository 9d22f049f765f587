package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Audit calls fn with records of the audit log, in order, each with its line in the log. It returns
// fn's error unchanged. The line has no line end and is valid only during the call. Lines that are
// written to a file can be verified later. With Follow, Audit continues until ctx ends. It replaces
// a connection that breaks and continues after the last record that fn got.
func (c *Client) Audit(ctx context.Context, o api.AuditOptions, fn func(r api.AuditRecord, line []byte) error) error {
	take := func(line []byte) error {
		m, err := decodeLine[api.AuditRecord](line)
		if err != nil {
			return err
		}
		if m.Seq <= o.After {
			return nil
		}
		// A new connection asks only for later records.
		o.After, o.Tail = m.Seq, 0
		if err := fn(m, line); err != nil {
			return &callerError{err}
		}
		return nil
	}
	if !o.Follow {
		err := c.lines(ctx, http.MethodGet, "/audit", auditQuery(o), nil, take)
		if ce, ok := errors.AsType[*callerError](err); ok {
			return ce.err
		}
		return err
	}
	return c.follow(ctx, func(connected func()) error {
		inner, hangUp := context.WithCancel(ctx)
		defer hangUp()
		resp, err := c.sendJSON(inner, http.MethodGet, "/audit", auditQuery(o), nil, "application/x-ndjson")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		connected()
		if err := c.scan(ctx, &watched{resp.Body, hangUp}, take); err != nil {
			return err
		}
		// A daemon that ends the answer itself is shutting down.
		return c.failed(ctx, errBroken)
	})
}

// VerifyAudit makes the daemon verify that its audit log was not changed. The report lists problems
// of the log. The error is only about the call.
func (c *Client) VerifyAudit(ctx context.Context, o api.AuditVerifyOptions) (api.AuditReport, error) {
	q := url.Values{}
	for _, a := range o.Anchors {
		q.Add("anchor", strconv.FormatInt(a.Seq, 10)+":"+a.Hash)
	}
	if o.Accept != 0 {
		q.Set("accept", strconv.FormatInt(o.Accept, 10))
	}
	var r api.AuditReport
	return r, c.call(ctx, http.MethodGet, "/audit/verify", q, nil, &r)
}

// AuditUsage returns the total usage of ended sandboxes.
func (c *Client) AuditUsage(ctx context.Context, o api.AuditUsageOptions) (api.AuditUsage, error) {
	q := url.Values{}
	setTime(q, "since", o.Since)
	setTime(q, "until", o.Until)
	setText(q, "tenant", o.Tenant)
	setText(q, "label", o.Label)
	var u api.AuditUsage
	return u, c.call(ctx, http.MethodGet, "/audit/usage", q, nil, &u)
}

func auditQuery(o api.AuditOptions) url.Values {
	q := url.Values{}
	for name, n := range map[string]int64{"after": o.After, "tail": int64(o.Tail), "limit": int64(o.Limit)} {
		if n != 0 {
			q.Set(name, strconv.FormatInt(n, 10))
		}
	}
	setTime(q, "since", o.Since)
	setTime(q, "until", o.Until)
	setText(q, "tenant", o.Tenant)
	setText(q, "sandbox", o.Sandbox)
	setText(q, "verb", o.Verb)
	setText(q, "outcome", o.Outcome)
	if o.Follow {
		q.Set("follow", "true")
	}
	return q
}

func setTime(q url.Values, name string, t time.Time) {
	if !t.IsZero() {
		q.Set(name, t.UTC().Format(time.RFC3339Nano))
	}
}

func setText(q url.Values, name, text string) {
	if text != "" {
		q.Set(name, text)
	}
}
