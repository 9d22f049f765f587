package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// maxLongPoll is the longest that one request waits for something to happen.
const maxLongPoll = time.Minute

func (s *Server) logs(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	o := api.LogOptions{
		ExecID: q.str("exec_id"), Stream: api.Stream(q.str("stream")),
		Tail:  int(q.integer("tail", 0, 0, 1<<31-1)),
		Since: q.number("since"), SinceTime: q.time("since_time"), Follow: q.boolean("follow"),
		WaitMS: q.integer("wait_ms", 0, 0, maxLongPoll.Milliseconds()),
	}
	if o.Stream != "" && o.Stream != api.Stdout && o.Stream != api.Stderr {
		q.fail("stream", "there are no logs of stream %q", clip(string(o.Stream), 40)).WithHint("want stdout or stderr")
	}
	if err := q.end(); err != nil {
		return err
	}
	return s.lines(w, r, o.Follow, func(ctx context.Context, lines *lineWriter) error {
		return s.core.Logs(ctx, r.caller, r.ref(), o, func(e api.LogEntry) error { return lines.write(e) })
	})
}
