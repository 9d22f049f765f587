package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// events serves what happened as an event stream, which browsers and proxies
// know how to carry and to take up again.
func (s system) events(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	return s.serveEvents(w, r, q, api.EventOptions{Sandbox: q.str("sandbox")})
}

// endpointEvents are those of one endpoint, whatever became of it.
func (s system) endpointEvents(w http.ResponseWriter, r request) error {
	name := r.PathValue("name")
	if !api.ValidEndpointName(name) {
		return api.Errorf(api.CodeNotFound, "there is no endpoint %.80q", name)
	}
	return s.serveEvents(w, r, queryOf(r), api.EventOptions{Sandbox: r.ref(), Endpoint: name})
}

// serveEvents serves those that o and the rest of the query choose.
func (s system) serveEvents(w http.ResponseWriter, r request, q *query, o api.EventOptions) error {
	o.Follow = q.choice("follow", true)
	for _, k := range q.all("kind") {
		o.Kinds = append(o.Kinds, api.EventKind(k))
	}
	if n := q.number("after"); n != nil {
		o.After = *n
	}
	if err := q.end(); err != nil {
		return err
	}
	if o.Sandbox != "" && !api.ValidName(o.Sandbox) {
		return noSandbox(o.Sandbox)
	}
	// A reader that comes back says where it was in the way of its format.
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		n, err := strconv.ParseInt(id, 10, 64)
		if err != nil || n < 0 {
			return api.Invalid("last-event-id", "the last event's id is %q", clip(id, 40)).WithHint("send an id of this stream, or none")
		}
		o.After = n
	}
	ctx, cancel := s.lasting(r)
	defer cancel()
	out := newEventWriter(w)
	defer out.close()
	if o.After < 0 {
		// A reader of what comes next is told where that is, so that it can come
		// back and miss nothing.
		now := o
		now.After, now.Follow, o.After = 0, false, 0
		err := s.core.Events(ctx, r.caller, now, func(e api.Event) error {
			o.After = e.Cursor
			return nil
		})
		if err == nil {
			err = out.write("id: %d\n\n", o.After)
		}
		if err != nil || !o.Follow {
			return out.fail(cut(ctx, err), r)
		}
	}
	stop := func() {}
	if o.Follow {
		stop = s.keepAlive(r, cancel, out.beat)
	}
	err := s.core.Events(ctx, r.caller, o, out.event)
	stop()
	if err != nil {
		return out.fail(cut(ctx, err), r)
	}
	return out.write("")
}

// eventWriter is an answer of events, each sent when it is written. It is safe
// for concurrent use.
type eventWriter struct {
	mu    sync.Mutex
	w     http.ResponseWriter
	rc    *http.ResponseController
	begun bool
}

func newEventWriter(w http.ResponseWriter) *eventWriter {
	return &eventWriter{w: w, rc: http.NewResponseController(w)}
}

func (e *eventWriter) event(ev api.Event) error {
	data, err := json.Marshal(ev) // which has no line breaks
	if err != nil {
		return fmt.Errorf("encode an event: %w", err)
	}
	return e.write("id: %d\nevent: %s\ndata: %s\n\n", ev.Cursor, ev.Kind, data)
}

// beat sends a comment, which shows that both ends are still there. An event on
// its way shows it too.
func (e *eventWriter) beat() error {
	if !e.mu.TryLock() {
		return nil
	}
	defer e.mu.Unlock()
	return e.writeLocked(":\n\n")
}

// write sends the header where it was not, and then what it is given.
func (e *eventWriter) write(format string, args ...any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.writeLocked(format, args...)
}

func (e *eventWriter) writeLocked(format string, args ...any) error {
	if !e.begun {
		e.begun = true
		e.w.Header().Set("Content-Type", "text/event-stream")
		e.w.WriteHeader(http.StatusOK)
	}
	if err := e.rc.SetWriteDeadline(time.Now().Add(stallTimeout)); err != nil {
		return fmt.Errorf("limit the time for an event: %w", err)
	}
	if _, err := fmt.Fprintf(e.w, format, args...); err != nil {
		return fmt.Errorf("write an event: %w", err)
	}
	if err := e.rc.Flush(); err != nil {
		return fmt.Errorf("write an event: %w", err)
	}
	return nil
}

// fail ends the answer with an error: as an event of that name when the answer
// has begun, and otherwise as the edge answers it.
func (e *eventWriter) fail(err error, r request) error {
	e.mu.Lock()
	begun := e.begun
	e.mu.Unlock()
	if err == nil || !begun {
		return err
	}
	data, merr := json.Marshal(errorBody{toWire(err, r)})
	if merr != nil {
		return merr
	}
	return e.write("event: error\ndata: %s\n\n", data)
}

// close ends the writing before the handler returns, after which nothing may
// touch the answer. The deadline must not reach the connection's next request.
func (e *eventWriter) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = e.rc.SetWriteDeadline(time.Time{})
}
