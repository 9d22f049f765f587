package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/core"
)

// headerRequestID is the caller's own id for a request, or the one it gets.
const headerRequestID = "X-Request-Id"

// request is one request with its caller named.
type request struct {
	*http.Request
	caller core.Caller
	id     string
}

func (r request) ref() string { return r.PathValue("ref") }

// handler serves one route. An error it returns is answered by the edge, unless
// an answer has begun: then the connection is broken off, so that nobody takes
// it for a whole one.
type handler func(w http.ResponseWriter, r request) error

type requestKey struct{}

// edge is what every request goes through: it gives it an id, names its caller,
// finds its route, answers its error, logs it, and is the one place where a
// panic is caught.
func (s *Server) edge(w http.ResponseWriter, hr *http.Request) {
	began := time.Now()
	rec := &recorder{ResponseWriter: w}
	r := request{id: requestID(hr)}
	h := rec.Header()
	h.Set(headerRequestID, r.id)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	err := s.guarded(func() error {
		caller, err := s.admit(hr)
		if err != nil {
			return err
		}
		r.caller = caller
		ctx := context.WithValue(core.WithRequestID(hr.Context(), r.id), requestKey{}, r)
		return s.route(rec, hr.WithContext(ctx))
	})
	s.logRequest(r, hr, rec, err, time.Since(began))
	if err == nil {
		return
	}
	if rec.code != 0 {
		panic(http.ErrAbortHandler) // net/http's own way to break a connection off
	}
	e := toWire(err, r.id, r.caller)
	code := status(e.Code)
	if errors.Is(err, errMethod) {
		code = http.StatusMethodNotAllowed
	}
	writeError(rec, e, code)
}

// guarded turns a panic into an error, with its stack.
func (s *Server) guarded(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic in a request", "panic", p, "stack", string(debug.Stack()))
			err = cloche.Errorf(cloche.CodeInternal, "the daemon met an internal error")
		}
	}()
	return fn()
}

// errMethod is the cause of an error for a path that exists, by another method.
var errMethod = errors.New("method not allowed")

// route calls the handler of a request's route. The mux is asked for it first
// because its own answers are redirects and plain text.
func (s *Server) route(w http.ResponseWriter, r *http.Request) error {
	notFound := cloche.Errorf(cloche.CodeNotFound, "there is no such path in this API").
		WithHint("the contract is at /%s/openapi.yaml", cloche.APIVersion)
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
		return cloche.Invalid("method", "this path does not take %q", clip(r.Method, 32)).
			WithHint("it takes %s", strings.Join(allow, ", ")).WithCause(errMethod)
	}
	var err error
	s.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), errKey{}, &err)))
	return err
}

func isDots(elem string) bool { return elem == "." || elem == ".." }

// errKey is where a handler's error goes, for http.Handler has no place for it.
type errKey struct{}

// handle makes a mux handler of a handler.
func (s *Server) handle(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, hr *http.Request) {
		r, ok := hr.Context().Value(requestKey{}).(request)
		out, ok2 := hr.Context().Value(errKey{}).(*error)
		if !ok || !ok2 {
			http.Error(w, "internal error", http.StatusInternalServerError)
			return
		}
		r.Request = hr
		if ref := r.ref(); strings.Contains(hr.Pattern, "{ref}") && !cloche.ValidName(ref) {
			*out = cloche.Errorf(cloche.CodeNotFound, "there is no sandbox %q", clip(ref, 80)).WithHint("give its id or its name")
			return
		}
		*out = h(w, r)
	}
}

func (s *Server) logRequest(r request, hr *http.Request, rec *recorder, err error, took time.Duration) {
	level := slog.LevelInfo
	attrs := []slog.Attr{
		slog.String("request", r.id), slog.String("method", clip(hr.Method, 32)), slog.String("path", clip(hr.URL.Path, 256)),
		slog.String("tenant", r.caller.Tenant), slog.Int("status", rec.code), slog.Duration("took", took),
	}
	if err != nil {
		if c := cloche.CodeOf(err); c == cloche.CodeInternal {
			level = slog.LevelError
		}
		attrs = append(attrs, slog.String("code", string(cloche.CodeOf(err))), slog.String("error", err.Error()))
	}
	s.log.LogAttrs(context.WithoutCancel(hr.Context()), level, "request", attrs...)
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
	return cloche.NewID("rq-")
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
	code int
}

func (w *recorder) WriteHeader(code int) {
	if w.code == 0 || w.code/100 == 1 && w.code != http.StatusSwitchingProtocols {
		w.code = code
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *recorder) Write(p []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController and the WebSocket library through.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }
