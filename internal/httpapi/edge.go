package httpapi

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// headerRequestID is the caller's own id for a request, or the one it gets.
const headerRequestID = "X-Request-Id"

// request is one request with its caller named.
type request struct {
	*http.Request
	caller core.Caller
	id     string
	// live ends when the caller's key does; nil is a caller without one.
	live context.Context
	// redact takes the values of secrets out of a text; nil knows none.
	redact func(string) string
	// timed is the request's deadline; nil is one that has none.
	timed *timed
	// oldJobs is set at the deprecated paths of jobs.
	oldJobs bool
}

// untilBarred calls fn when the caller's key ends, unless stop is called first.
func (r request) untilBarred(fn func()) (stop func() bool) {
	if r.live == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(r.live, fn)
}

func (r request) ref() string     { return r.PathValue("ref") }
func (r request) process() string { return r.PathValue("id") }

// handler serves one route. If it returns an error, the edge sends it, unless an answer has begun.
// In that case the connection is closed, so that the client does not take the answer for complete.
type handler func(w http.ResponseWriter, r request) error

type requestKey struct{}

// edge is what every request goes through: it gives it an id, names its caller,
// finds its route, answers its error, logs it, and is the one place where a
// panic is caught.
func (s *Server) edge(w http.ResponseWriter, hr *http.Request) {
	if d, ok := hr.Context().Value(listenerKey{}).(listener); ok && d.via == viaTCP && s.also != nil && s.also.Serves(hr) {
		s.also.ServeHTTP(w, hr)
		return
	}
	began := time.Now()
	hr, body := track(hr)
	rec := &recorder{ResponseWriter: w, body: body}
	r := request{id: requestID(hr), redact: s.redact}
	h := rec.Header()
	h.Set(headerRequestID, r.id)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	err := s.guarded(func() error {
		from, err := s.addressed(hr)
		if err != nil {
			return err
		}
		if s.probes[hr.URL.Path] {
			return s.route(rec, hr.WithContext(context.WithValue(hr.Context(), requestKey{}, r)))
		}
		if s.share(rec, hr) {
			return nil
		}
		caller, live, err := s.admit(hr, from)
		if err != nil {
			return err
		}
		r.caller, r.live = caller, live
		ctx, cancel := within(hr.Context(), live)
		defer cancel()
		ctx = context.WithValue(core.WithRequestID(ctx, r.id), requestKey{}, r)
		return cut(ctx, s.route(rec, hr.WithContext(ctx)))
	})
	if api.CodeOf(err) == api.CodeInternal && hr.Context().Err() != nil {
		// The failure happened because the client disconnected.
		err = api.Errorf(api.CodeCanceled, "the caller went away: %w", err)
	}
	code := cmp.Or(rec.code, http.StatusOK)
	var e *api.Error
	if err != nil && rec.code == 0 {
		e = toWire(err, r)
		code = answerCode(e, err)
	}
	took := time.Since(began)
	s.logRequest(r, hr, code, err, took)
	if s.answered != nil {
		s.answered(rec.route, code, took)
	}
	switch {
	case e != nil:
		if !body.ended.Load() {
			h.Set("Connection", "close") // so that it is answered without a look at the rest
		}
		writeError(rec, e, code)
	case err != nil:
		panic(http.ErrAbortHandler) // net/http's own way to break a connection off
	case rec.code == 0:
		rec.linger() // net/http answers for a handler that did not
	}
}

// answerCode is the status of an error that is answered. A few causes have one
// that says more than their code's.
func answerCode(e *api.Error, err error) int {
	switch {
	case errors.Is(err, errMethod):
		return http.StatusMethodNotAllowed
	case errors.Is(err, errSlow):
		return http.StatusRequestTimeout
	}
	return statusOf(e)
}

// guarded turns a panic into an error, with its stack.
func (s *Server) guarded(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic in a request", "panic", p, "stack", string(debug.Stack()))
			err = api.Errorf(api.CodeInternal, "the daemon met an internal error")
		}
	}()
	return fn()
}

// errMethod is the cause of an error for a path that exists, by another method.
var errMethod = errors.New("method not allowed")

// route calls the handler of a request's route. The mux is asked for it first
// because its own answers are redirects and plain text.
func (s *Server) route(w http.ResponseWriter, r *http.Request) error {
	notFound := api.Errorf(api.CodeNotFound, "there is no such path in this API").
		WithHint("the contract is at /%s/openapi.yaml", api.APIVersion)
	if strings.Contains(r.URL.Path, "//") || slices.ContainsFunc(strings.Split(r.URL.Path, "/"), isDots) {
		return notFound
	}
	if _, pattern := s.mux.Handler(r); pattern == "" {
		var allow []string
		for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
			other := *r
			other.Method = m
			if _, p := s.mux.Handler(&other); p != "" {
				allow = append(allow, m)
			}
		}
		if allow == nil {
			return notFound
		}
		w.Header().Set("Allow", strings.Join(allow, ", "))
		return api.Invalid("method", "this path does not take %q", clip(r.Method, 32)).
			WithHint("it takes %s", strings.Join(allow, ", ")).WithCause(errMethod)
	}
	var err error
	s.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), errKey{}, &err)))
	return err
}

func isDots(elem string) bool { return elem == "." || elem == ".." }

// errKey is where a handler's error goes, for http.Handler has no place for it.
type errKey struct{}

// handle makes a mux handler of a route.
func (s *Server) handle(rt route) http.HandlerFunc {
	verb := rt.verb
	return func(w http.ResponseWriter, hr *http.Request) {
		r, ok := hr.Context().Value(requestKey{}).(request)
		out, ok2 := hr.Context().Value(errKey{}).(*error)
		if !ok || !ok2 {
			http.Error(w, "internal error", http.StatusInternalServerError)
			return
		}
		r.Request = hr
		if rec, ok := w.(*recorder); ok {
			rec.route = hr.Pattern
		}
		if verb != ofProbes {
			if *out = s.core.Admit(hr.Context(), r.caller, verb); *out != nil {
				return
			}
		}
		if ref := r.ref(); strings.Contains(hr.Pattern, "{ref}") && !api.ValidName(ref) && ref != api.RefByNaming {
			*out = noSandbox(ref)
			return
		}
		if id := r.PathValue("id"); strings.Contains(hr.Pattern, "{id}") && !api.ValidName(id) {
			*out = api.Errorf(api.CodeNotFound, "there is no process %q", clip(id, 80)).WithHint("give its id, as the list of processes has it")
			return
		}
		*out = s.within(rt.pace, w, r, rt.serve)
	}
}

// noSandbox is for a name that no sandbox can have.
func noSandbox(ref string) *api.Error {
	return api.Errorf(api.CodeNotFound, "there is no sandbox %q", clip(ref, 80)).WithHint("give its id or its name")
}

func (s *Server) logRequest(r request, hr *http.Request, code int, err error, took time.Duration) {
	level := slog.LevelInfo
	if err == nil && s.probes[hr.URL.Path] {
		level = slog.LevelDebug // every few seconds, for as long as the daemon lives
	}
	attrs := []slog.Attr{
		slog.String("request", r.id), slog.String("method", clip(hr.Method, 32)), slog.String("path", loggedPath(hr.URL.Path)),
		slog.String("tenant", r.caller.Tenant), slog.Int("status", code), slog.Duration("took", took),
	}
	if err != nil {
		switch api.CodeOf(err) {
		case api.CodeInternal:
			level = slog.LevelError
		case api.CodeCanceled:
			level = slog.LevelDebug
		}
		attrs = append(attrs, slog.String("code", string(api.CodeOf(err))), slog.String("error", err.Error()))
	}
	s.log.LogAttrs(context.WithoutCancel(hr.Context()), level, "request", attrs...)
}

// loggedPath returns a path for the log. It hides a key that a caller used by mistake in place of
// its ID.
func loggedPath(p string) string {
	if i := strings.Index(p, "clk_"); i >= 0 {
		return clip(p[:i], 256) + "clk_…"
	}
	return clip(p, 256)
}

// requestID takes over a caller's id that cannot forge a log line, else makes one.
func requestID(r *http.Request) string {
	id := r.Header.Get(headerRequestID)
	ok := id != "" && len(id) <= 64 && !strings.ContainsFunc(id, func(c rune) bool {
		return !(c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-' || c == '_' || c == '.')
	})
	if ok {
		return id
	}
	return api.NewID("rq-")
}

// clip shortens what a caller sent for a message or a log line.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}

// recorder notes whether an answer has begun.
type recorder struct {
	http.ResponseWriter
	body *tracked
	code int
	// route is the pattern that the request was served by.
	route string
}

// linger limits how long net/http reads the rest of an unread body: before it sends an answer, and
// when it closes the body. If the body was read to its end, net/http watches the connection, and
// this server must not set the deadline.
func (w *recorder) linger() {
	if w.body.ended.Load() {
		return
	}
	// A connection that knows no deadline is gone already, or a test's.
	_ = http.NewResponseController(w.ResponseWriter).SetReadDeadline(time.Now().Add(lingerTimeout))
}

func (w *recorder) WriteHeader(code int) {
	if w.code == 0 || w.code/100 == 1 && w.code != http.StatusSwitchingProtocols {
		w.code = code
		w.linger()
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *recorder) Write(p []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
		w.linger()
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController and the WebSocket library through.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }
