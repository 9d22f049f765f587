package httpapi

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/reverse"
)

// endpoints serves the routes of endpoints and recordings.
type endpoints struct{ *Server }

func (s endpoints) routes() []route {
	return []route{
		{http.MethodGet, "/v1/sandboxes/{ref}/endpoints", "endpoints", paceCall, s.endpoints},
		{http.MethodPost, "/v1/sandboxes/{ref}/endpoints", "add_endpoint", paceCall, s.addEndpoint},
		{http.MethodGet, "/v1/sandboxes/{ref}/endpoints/{name}", "endpoints", paceCall, s.endpoint},
		{http.MethodPut, "/v1/sandboxes/{ref}/endpoints/{name}", "add_endpoint", paceCall, s.putEndpoint},
		{http.MethodDelete, "/v1/sandboxes/{ref}/endpoints/{name}", "remove_endpoint", paceChange, s.removeEndpoint},
		{http.MethodGet, "/v1/sandboxes/{ref}/endpoints/{name}/serve", "serve_endpoint", paceWait, s.serveEndpoint},
		{http.MethodGet, "/v1/recordings", "list_recordings", paceCall, s.recordings},
		{http.MethodGet, "/v1/recordings/{name}", "get_recording", paceCall, s.getRecording},
		{http.MethodGet, "/v1/recordings/{name}/data", "get_recording", paceTransfer, s.readRecording},
		{http.MethodPut, "/v1/recordings/{name}/data", "put_recording", paceTransfer, s.putRecording},
		{http.MethodDelete, "/v1/recordings/{name}", "remove_recording", paceCall, s.removeRecording},
	}
}

func (s endpoints) endpoints(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	list, err := s.core.Endpoints(r.Context(), r.caller, r.ref())
	if err != nil {
		return err
	}
	list.Endpoints = nonNil(list.Endpoints)
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (s endpoints) endpoint(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	st, err := s.core.Endpoint(r.Context(), r.caller, r.ref(), clip(r.PathValue("name"), 80))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, st)
	return nil
}

func (s endpoints) addEndpoint(w http.ResponseWriter, r request) error {
	var e api.Endpoint
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &e); err != nil {
		return err
	}
	return s.setEndpoint(w, r, e, http.StatusCreated, false)
}

func (s endpoints) putEndpoint(w http.ResponseWriter, r request) error {
	var e api.Endpoint
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &e); err != nil {
		return err
	}
	name := r.PathValue("name")
	if e.Name == "" {
		e.Name = name
	}
	if e.Name != name {
		return api.Invalid("name", "the path names endpoint %.80q, and the body another", name).WithHint("leave name out of the body")
	}
	return s.setEndpoint(w, r, e, http.StatusOK, true)
}

// setEndpoint finishes what it has begun when its caller leaves.
func (s endpoints) setEndpoint(w http.ResponseWriter, r request, e api.Endpoint, status int, replace bool) error {
	st, err := s.core.AddEndpoint(context.WithoutCancel(r.Context()), r.caller, r.ref(), e, replace)
	if err != nil {
		return err
	}
	writeJSON(w, status, st)
	return nil
}

func (s endpoints) removeEndpoint(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	ms := q.integer("grace_ms", -1, 0, maxGrace.Milliseconds())
	if err := q.end(); err != nil {
		return err
	}
	var grace *time.Duration
	if ms >= 0 {
		grace = new(time.Duration(ms) * time.Millisecond)
		r.grace(*grace)
	}
	removed, err := s.core.RemoveEndpoint(context.WithoutCancel(r.Context()), r.caller, r.ref(), clip(r.PathValue("name"), 80), grace)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, removed)
	return nil
}

// serveEndpoint has the client serve an endpoint: on the WebSocket the daemon opens
// a stream for each connection. Who may not is told so by an ordinary answer.
func (s endpoints) serveEndpoint(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := wantsSocket(w, r); err != nil {
		return err
	}
	if err := s.beginStream(); err != nil {
		return err
	}
	defer s.streams.Done()
	ctx, cancel := context.WithCancel(core.WithRequestID(s.live, r.id))
	defer cancel()
	defer r.untilBarred(cancel)()
	o := &opener{ready: make(chan struct{}), gone: make(chan struct{})}
	detach, err := s.core.ServeEndpoint(ctx, r.caller, r.ref(), clip(r.PathValue("name"), 80), o)
	if err != nil {
		return err
	}
	defer detach()
	ws, err := accept(w, r)
	if err != nil {
		return nil // the library has answered
	}
	defer ws.CloseNow()
	ws.SetReadLimit(-1) // a message is read piece by piece
	if o.session, err = reverse.Open(websocket.NetConn(ctx, ws, websocket.MessageBinary)); err != nil {
		return nil
	}
	close(o.ready)
	select {
	case <-o.session.Done():
	case <-o.gone:
	case <-ctx.Done():
	}
	o.session.Close()
	return nil
}

// opener opens streams to the client of a WebSocket.
type opener struct {
	ready   chan struct{}
	session *reverse.Session // set before ready is closed
	gone    chan struct{}
	once    sync.Once
}

var errGone = errors.New("the endpoint was taken away")

// Open implements core.Opener.
func (o *opener) Open(ctx context.Context) (net.Conn, error) {
	select {
	case <-o.ready:
		return o.session.Open(ctx)
	case <-o.gone:
		return nil, errGone
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close implements core.Opener: the client is let go.
func (o *opener) Close() error {
	o.once.Do(func() { close(o.gone) })
	return nil
}
