package httpapi

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/await"
)

// Deadlines are how long the server serves requests of each kind. A field that is 0 is
// its default.
type Deadlines struct {
	// Call is for what only looks, or changes a small thing.
	Call time.Duration
	// Change is for what ends, pauses or resumes a sandbox. A grace period that the
	// request asks for is added.
	Change time.Duration
	// Work is for what may take long: a sandbox with its image, a snapshot, a build.
	Work time.Duration
	// Transfer is for bodies and answers of any length: how long not one byte of them
	// may move.
	Transfer time.Duration
}

// DefaultDeadlines are used where no others are set. Work holds the longest that a
// creation may wait for its turn, for its image and for its engine.
func DefaultDeadlines() Deadlines {
	return Deadlines{Call: time.Minute, Change: 2 * time.Minute, Work: 45 * time.Minute, Transfer: stallTimeout}
}

func (d Deadlines) filled() Deadlines {
	usual := DefaultDeadlines()
	return Deadlines{
		Call: cmp.Or(d.Call, usual.Call), Change: cmp.Or(d.Change, usual.Change),
		Work: cmp.Or(d.Work, usual.Work), Transfer: cmp.Or(d.Transfer, usual.Transfer),
	}
}

// pace selects the deadline of an operation. The table of routes has it for each route.
type pace string

const (
	paceCall     pace = "call"
	paceChange   pace = "change"
	paceWork     pace = "work"
	paceTransfer pace = "transfer"
	// paceWait is for operations that wait by design: for a program, an event, or their client.
	// Such an operation ends when either side is found dead: clients and agents are pinged.
	paceWait pace = "wait"
)

// of returns the deadline of a pace; 0 is indefinitely.
func (d Deadlines) of(p pace) time.Duration {
	switch p {
	case paceCall:
		return d.Call
	case paceChange:
		return d.Change
	case paceWork:
		return d.Work
	case paceTransfer:
		return d.Transfer
	case paceWait:
	}
	return 0
}

// deadlineGrace is how long a handler whose deadline has passed may take to return before
// its request is answered without it.
const deadlineGrace = 500 * time.Millisecond

// errDeadline is the cause of a context whose request's deadline has passed.
var errDeadline = errors.New("the deadline of the request has passed")

// timed is one request with a deadline.
type timed struct {
	limit time.Duration
	over  context.CancelCauseFunc
	// late is closed when the handler is not waited for any more.
	late chan struct{}

	mu     sync.Mutex
	timer  *time.Timer
	passed bool
}

// extend gives the request more time: d from now on.
func (t *timed) extend(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.passed {
		t.limit = d
		t.timer.Reset(d)
	}
}

// moved is what a transfer calls when bytes have.
func (t *timed) moved() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.passed {
		t.timer.Reset(t.limit)
	}
}

// grace adds to the deadline of a request that asks for a grace period.
func (r request) grace(d time.Duration) {
	if r.timed != nil {
		r.timed.extend(r.timed.limit + d)
	}
}

func (t *timed) pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.passed {
		return // it was extended in the moment in which it passed
	}
	t.passed = true
	t.over(errDeadline)
	time.AfterFunc(deadlineGrace, func() { close(t.late) })
}

func (t *timed) isPassed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.passed
}

// within serves a request by h, and answers it when its deadline passes, whatever h does:
// h may go on, but it writes no more.
func (s *Server) within(p pace, rw http.ResponseWriter, r request, h handler) error {
	limit := s.deadlines.of(p)
	w, ok := rw.(*recorder)
	if limit == 0 || !ok {
		return h(rw, r)
	}
	caller := r.Context()
	ctx, notes := await.With(caller)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := &timed{limit: limit, over: cancel, late: make(chan struct{})}
	t.timer = time.AfterFunc(limit, t.pass)
	defer t.timer.Stop()
	if p != paceTransfer {
		// What ends by this is known as late, and not as given up by its caller.
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, time.Now().Add(limit), errDeadline)
		defer stop()
	}
	out := &gatedWriter{w: w, header: w.Header().Clone()}
	if p == paceTransfer {
		out.moved = t.moved
	}
	r.Request = r.WithContext(ctx)
	r.timed = t
	if out.moved != nil && r.Body != nil {
		r.Body = movingBody{r.Body, t.moved}
	}
	done := make(chan error, 1)
	begun := time.Now()
	go func() { done <- s.guarded(func() error { return h(out, r) }) }() // it ends with h, which may be later than the request
	select {
	case err := <-done:
		out.finish(err == nil)
		if err != nil && caller.Err() == nil && (t.isPassed() || errors.Is(context.Cause(ctx), errDeadline)) {
			return overdue(r, begun, notes, err)
		}
		return err
	case <-t.late:
		err := overdue(r, begun, notes, nil)
		out.giveUp()
		return err
	}
}

// overdue is the error of a request whose deadline has passed: what did not answer, and
// for how long.
func overdue(r request, begun time.Time, notes *await.Notes, cause error) error {
	part, since := notes.Last()
	waited := time.Since(begun)
	if part == "" {
		part = "the daemon's own work"
	} else {
		waited = time.Since(since)
	}
	if errors.Is(cause, errSlow) {
		return cause
	}
	if e, ok := errors.AsType[*api.Error](cause); ok && e.Code != api.CodeTimeout && e.Code != api.CodeCanceled && e.Code != api.CodeInternal {
		return e // it ended for a reason of its own in the same moment
	}
	e := api.Errorf(api.CodeTimeout, "the request was not done within %s: %s has not answered for %s", round(time.Since(begun)), part, round(waited)).
		WithHint("what was asked may be done yet; look before you ask again")
	e.Retryable = r.Method == http.MethodGet
	return e.WithCause(cmp.Or[error](cause, errDeadline))
}

// round makes a time short enough to be read.
func round(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }

// gatedWriter is the answer of a handler that may outlive its request: what it writes
// afterwards goes nowhere. It has a header of its own until it writes.
type gatedWriter struct {
	moved func()

	mu     sync.Mutex
	w      *recorder
	header http.Header
	begun  bool
	shut   bool
}

// Header implements http.ResponseWriter.
func (g *gatedWriter) Header() http.Header { return g.header }

// WriteHeader implements http.ResponseWriter.
func (g *gatedWriter) WriteHeader(code int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.begin(code)
}

func (g *gatedWriter) begin(code int) {
	if g.shut || g.begun {
		return
	}
	g.begun = code >= http.StatusOK
	clear(g.w.Header())
	maps.Copy(g.w.Header(), g.header)
	g.w.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (g *gatedWriter) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return 0, errDeadline
	}
	g.begin(http.StatusOK)
	n, err := g.w.Write(p)
	if n > 0 && g.moved != nil {
		g.moved()
	}
	return n, err
}

// FlushError is what http.ResponseController calls.
func (g *gatedWriter) FlushError() error {
	return g.while(func(rc *http.ResponseController) error {
		g.begin(http.StatusOK)
		return rc.Flush()
	})
}

// SetReadDeadline is what http.ResponseController calls.
func (g *gatedWriter) SetReadDeadline(at time.Time) error {
	return g.while(func(rc *http.ResponseController) error { return rc.SetReadDeadline(at) })
}

// SetWriteDeadline is what http.ResponseController calls.
func (g *gatedWriter) SetWriteDeadline(at time.Time) error {
	return g.while(func(rc *http.ResponseController) error { return rc.SetWriteDeadline(at) })
}

func (g *gatedWriter) while(do func(*http.ResponseController) error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return errDeadline
	}
	return do(http.NewResponseController(g.w.ResponseWriter))
}

// finish is for after the handler. Trailers are in its header, and what net/http is to
// answer for a handler that wrote nothing.
func (g *gatedWriter) finish(ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.begun || ok {
		maps.Copy(g.w.Header(), g.header)
	}
	g.shut = true
}

// giveUp shuts it while the handler goes on, which is kept from holding the connection.
func (g *gatedWriter) giveUp() {
	rc := http.NewResponseController(g.w.ResponseWriter)
	if !g.w.body.ended.Load() {
		_ = rc.SetReadDeadline(time.Unix(1, 0)) // a test's connection knows none
	}
	if !g.mu.TryLock() {
		_ = rc.SetWriteDeadline(time.Unix(1, 0))
		g.mu.Lock()
	}
	defer g.mu.Unlock()
	g.shut = true
	g.w.Header().Set("Connection", "close")
}

// movingBody is the body of a transfer.
type movingBody struct {
	io.ReadCloser
	moved func()
}

// Read implements io.Reader.
func (b movingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.moved()
	}
	return n, err
}
