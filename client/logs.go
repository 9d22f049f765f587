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
		e, err := decodeLine[api.LogEntry](line)
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
		e, err := decodeLine[api.LogEntry](line)
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

// logFollower is the progress of a followed log over all its connections.
type logFollower struct {
	asked api.LogOptions
	// next is the next byte of each process: an offset in the selected stream, or a position.
	next map[string]int64
	// first is the time of the first entry. What a tail left out before it must stay left out on
	// later connections, which have no tail: skip is true until a connection has reached the
	// entry where the first one began.
	first time.Time
	skip  bool
	ended bool
}

func newLogFollower(o api.LogOptions) *logFollower {
	return &logFollower{asked: o, next: map[string]int64{}}
}

// options returns the options of the next connection.
func (l *logFollower) options() api.LogOptions {
	o := l.asked
	if len(l.next) == 0 {
		return o
	}
	o.WaitMS = 0
	l.skip = o.Tail > 0
	o.Tail = 0
	if next, ok := l.next[o.ExecID]; ok {
		o.Since, o.SinceTime, l.skip = &next, time.Time{}, false
	}
	// For all processes, the connection reads everything again and skips what was delivered: a
	// time is not an exact position in a log that several processes write at once.
	return o
}

// take returns the new part of an entry, and whether there is one.
func (l *logFollower) take(e api.LogEntry) (api.LogEntry, bool) {
	if e.End != "" {
		l.ended = true
		return e, true
	}
	at := e.Position
	if l.asked.Stream != "" {
		at = e.Offset
	}
	next, known := l.next[e.ExecID]
	if l.skip && !known && e.Time.Before(l.first) {
		return e, false
	}
	if known {
		l.skip = false
	}
	end := at + int64(len(e.Data))
	// A gap, which is an entry without bytes, comes before the byte that it names.
	if known && end <= next {
		return e, false
	}
	if known && e.Gap > 0 {
		e.Gap = min(e.Gap, at-next) // the rest was delivered before
	}
	if cut := next - at; known && cut > 0 {
		e.Data, e.Offset, e.Position = e.Data[cut:], e.Offset+cut, e.Position+cut
	}
	if len(l.next) == 0 {
		l.first = e.Time
	}
	l.next[e.ExecID] = end
	return e, true
}
