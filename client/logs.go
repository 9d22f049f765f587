package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Logs calls fn with the kept output of a sandbox's processes, in order, and returns fn's error
// unchanged. The data of an entry is valid only during the call. With Follow, Logs continues until
// the entry whose End says why the log ended. It replaces a connection that breaks before that, and
// continues after the last byte that fn got.
func (c *Client) Logs(ctx context.Context, ref string, o api.LogOptions, fn func(api.LogEntry) error) error {
	p, err := sandboxPath(ref, "/logs")
	if err != nil {
		return err
	}
	if o.Follow {
		l := newLogFollower(o)
		return c.follow(ctx, func(connected func()) error { return c.followLogs(ctx, p, l, fn, connected) })
	}
	return c.lines(ctx, http.MethodGet, p, logQuery(o), nil, func(line []byte) error {
		e, err := decodeLogLine(line)
		if err != nil {
			return err
		}
		return fn(e)
	})
}

// followLogs reads one answer of a followed log to its end.
func (c *Client) followLogs(ctx context.Context, path string, l *logFollower, fn func(api.LogEntry) error, connected func()) error {
	inner, hangUp := context.WithCancel(ctx)
	defer hangUp()
	resp, err := c.sendJSON(inner, http.MethodGet, path, logQuery(l.options()), nil, "application/x-ndjson")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	connected()
	err = c.scan(ctx, &watched{resp.Body, hangUp}, func(line []byte) error {
		e, err := decodeLogLine(line)
		if err != nil {
			return err
		}
		e, fresh := l.take(e)
		if !fresh {
			return nil
		}
		if err := fn(e); err != nil {
			return &callerError{err}
		}
		return nil
	})
	if l.ended && passing(err) {
		return nil // everything arrived before it broke
	}
	if err == nil && !l.ended {
		// A daemon that ends the answer itself is shutting down.
		err = c.failed(ctx, errBroken)
	}
	return err
}

func decodeLogLine(line []byte) (api.LogEntry, error) {
	var l struct {
		api.LogEntry
		Error *api.Error `json:"error"`
	}
	if err := decode(line, &l); err != nil {
		return l.LogEntry, err
	}
	if l.Error != nil {
		return l.LogEntry, l.Error
	}
	return l.LogEntry, nil
}

func logQuery(o api.LogOptions) url.Values {
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
	if o.Since != nil {
		q.Set("since", strconv.FormatInt(*o.Since, 10))
	}
	if !o.SinceTime.IsZero() {
		q.Set("since_time", o.SinceTime.UTC().Format(time.RFC3339Nano))
	}
	if o.Follow {
		q.Set("follow", "true")
	}
	if o.WaitMS != 0 {
		q.Set("wait_ms", strconv.FormatInt(o.WaitMS, 10))
	}
	return q
}
