package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cloche-dev/cloche/api"
)

// Events calls fn with events of the caller's sandboxes, in order, and returns fn's error
// unchanged. With Follow it continues until ctx ends. It replaces a connection that breaks and
// continues after the last event that fn got. No event is repeated. If events are no longer kept,
// Missed of the next one says how many.
func (c *Client) Events(ctx context.Context, o api.EventOptions, fn func(api.Event) error) error {
	if o.Follow {
		return c.follow(ctx, func(connected func()) error {
			err := c.events(ctx, &o, fn, connected)
			if err == nil {
				// A daemon that ends the stream itself is shutting down.
				err = c.failed(ctx, io.ErrUnexpectedEOF)
			}
			return err
		})
	}
	err := c.events(ctx, &o, fn, func() {})
	if ce, ok := errors.AsType[*callerError](err); ok {
		return ce.err
	}
	return err
}

// events reads one answer to its end, and stores in o where the next one continues.
func (c *Client) events(ctx context.Context, o *api.EventOptions, fn func(api.Event) error, connected func()) error {
	inner, hangUp := context.WithCancel(ctx)
	defer hangUp()
	path, query := "/events", eventQuery(*o)
	if o.Endpoint != "" {
		var err error
		if path, err = endpointPath(o.Sandbox, o.Endpoint, "/events"); err != nil {
			return err
		}
		query.Del("sandbox")
	}
	resp, err := c.sendJSON(inner, http.MethodGet, path, query, nil, "text/event-stream")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	connected()
	r := newSSEReader(&watched{resp.Body, hangUp})
	for {
		block, err := r.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return c.failed(ctx, err)
		}
		if err := takeEvent(block, o, fn); err != nil {
			return err
		}
	}
}

// takeEvent calls fn with one block, unless it was delivered before.
func takeEvent(block sseEvent, o *api.EventOptions, fn func(api.Event) error) error {
	if block.name == "error" {
		var m struct{ Error *api.Error }
		if err := decode(block.data, &m); err != nil {
			return err
		}
		if m.Error == nil || m.Error.Code == "" {
			return brokenAnswer("the daemon sent an error without a code")
		}
		return m.Error
	}
	if len(block.data) == 0 {
		// A block with only an ID is where a reader that skips past events begins.
		if n, err := strconv.ParseInt(block.id, 10, 64); err == nil && n >= 0 {
			o.After = max(o.After, n)
		}
		return nil
	}
	var ev api.Event
	if err := decode(block.data, &ev); err != nil {
		return err
	}
	if ev.Cursor <= o.After {
		return nil
	}
	o.After = ev.Cursor
	if err := fn(ev); err != nil {
		return &callerError{err}
	}
	return nil
}

func eventQuery(o api.EventOptions) url.Values {
	q := url.Values{"follow": {strconv.FormatBool(o.Follow)}}
	if o.Sandbox != "" {
		q.Set("sandbox", o.Sandbox)
	}
	for _, k := range o.Kinds {
		q.Add("kind", string(k))
	}
	if o.After != 0 {
		q.Set("after", strconv.FormatInt(o.After, 10))
	}
	return q
}
