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

// Events gives what happened to the caller's sandboxes to fn, event by event,
// and returns fn's error as it is. With Follow it goes on until ctx ends. A
// connection that breaks then is made again, and goes on after the last event
// that fn got: none comes twice, and where some are no longer kept the next one
// says in Missed how many.
func (c *Client) Events(ctx context.Context, o api.EventOptions, fn func(api.Event) error) error {
	if o.Follow {
		return c.follow(ctx, func(connected func()) error {
			err := c.events(ctx, &o, fn, connected)
			if err == nil {
				// A daemon that ends the stream by itself is on its way down.
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

// events reads one answer to its end, and keeps in o where the next one goes on.
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

// takeEvent hands one block to fn, unless it came before.
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
		// Only an id: where a reader that wanted none of the past begins.
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
