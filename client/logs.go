package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cloche-dev/cloche"
)

// Logs gives the kept output of a sandbox's processes to fn, entry by entry, and
// returns fn's error as it is. An entry's data is only valid during the call.
func (c *Client) Logs(ctx context.Context, ref string, o cloche.LogOptions, fn func(cloche.LogEntry) error) error {
	p, err := sandboxPath(ref, "/logs")
	if err != nil {
		return err
	}
	q := url.Values{}
	if o.ExecID != "" {
		q.Set("exec_id", o.ExecID)
	}
	if o.Stream != "" {
		q.Set("stream", string(o.Stream))
	}
	if o.Tail != 0 {
		q.Set("tail", strconv.Itoa(o.Tail))
	}
	return c.lines(ctx, http.MethodGet, p, q, nil, func(line []byte) error {
		var l struct {
			cloche.LogEntry
			Error *cloche.Error `json:"error"`
		}
		if err := decode(line, &l); err != nil {
			return err
		}
		if l.Error != nil {
			return l.Error
		}
		return fn(l.LogEntry)
	})
}
