// Package envd serves the data plane of E2B's API: processes, files and watches of one sandbox, as
// E2B's clients know them from the program envd. The server runs in the daemon, and every call is an
// operation of core, as the caller that the sandbox is served for. The API server in front finds the
// sandbox of a request and names its caller.
package envd

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/envdpb"
)

const (
	// maxMessage bounds one message of a client in bytes.
	maxMessage = 16 << 20
	// maxRequests bounds the requests of one sandbox that are served at the same time.
	maxRequests = 1024
)

// errCut is the cause of the end of a request that Cut or Close ended.
var errCut = errors.New("the request was cut")

// Sandbox is one sandbox as a request on its data plane sees it.
type Sandbox struct {
	// Ref is core's ID of the sandbox.
	Ref string
	// Caller is the caller of the operations.
	Caller core.Caller
	// Token is the access token. If it is empty, none is needed.
	Token string
	// User is the default user inside. Empty is the user of the sandbox.
	User string
	// Dir is the default working directory. Empty is the home of the user.
	Dir string
	// Env is the environment of every process.
	Env map[string]string
}

// Options are what a Server works with. Core is required.
type Options struct {
	Core Core
	// Log gets failures of the daemon; nil discards them. It is never given a token, an environment
	// or the content of files.
	Log *slog.Logger
	// Version is the version of Cloche.
	Version string
}

// Server serves the data plane of sandboxes. It is safe for concurrent use.
type Server struct {
	core      Core
	log       *slog.Logger
	version   string
	processes *processTable
	accounts  *accountCache
	watchers  *watcherTable
	rpc       *http.ServeMux

	mu     sync.Mutex // guards what follows
	closed bool
	live   map[string]map[*request]struct{}
	wg     sync.WaitGroup
}

// New makes a Server over core. Close ends its streams.
func New(o Options) *Server {
	s := &Server{
		core: o.Core, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), version: o.Version,
		processes: newProcessTable(), accounts: newAccountCache(), watchers: newWatcherTable(),
		rpc: http.NewServeMux(), live: map[string]map[*request]struct{}{},
	}
	limits := []connect.HandlerOption{connect.WithReadMaxBytes(maxMessage)}
	s.rpc.Handle(envdpb.NewProcessHandler(&processService{s}, limits...))
	s.rpc.Handle(envdpb.NewFilesystemHandler(&filesystemService{s}, limits...))
	return s
}

// Close cuts every request and waits until all have ended.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, requests := range s.live {
		for r := range requests {
			r.cancel(errCut)
		}
	}
	s.mu.Unlock()
	s.watchers.close()
	s.wg.Wait()
	return nil
}

// Cut ends at once, without a trailer, every stream of a sandbox.
func (s *Server) Cut(ref string) {
	s.mu.Lock()
	for r := range s.live[ref] {
		r.cancel(errCut)
	}
	s.mu.Unlock()
	s.watchers.forget(ref)
	s.processes.forget(ref)
	s.accounts.forget(ref)
}

// request is one request that is being served.
type request struct {
	sb     Sandbox
	cancel context.CancelCauseFunc
}

type requestKey struct{}

// requestOf returns the request that a handler serves.
func requestOf(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

// begin registers a request; false if there are too many, or the server ends.
func (s *Server) begin(r *request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.live[r.sb.Ref]) >= maxRequests {
		return false
	}
	if s.live[r.sb.Ref] == nil {
		s.live[r.sb.Ref] = map[*request]struct{}{}
	}
	s.live[r.sb.Ref][r] = struct{}{}
	s.wg.Add(1)
	return true
}

func (s *Server) end(r *request) {
	s.mu.Lock()
	delete(s.live[r.sb.Ref], r)
	if len(s.live[r.sb.Ref]) == 0 {
		delete(s.live, r.sb.Ref)
	}
	s.mu.Unlock()
	s.wg.Done()
}

// ServeSandbox serves one request on the data plane of sb. It panics with http.ErrAbortHandler when
// the request was cut, so that net/http breaks the connection.
func (s *Server) ServeSandbox(w http.ResponseWriter, r *http.Request, sb Sandbox) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	req := &request{sb: sb, cancel: cancel}
	if !s.begin(req) {
		writeFailure(w, http.StatusTooManyRequests, "too many requests of this sandbox are being served")
		return
	}
	defer s.end(req)
	ctx = context.WithValue(ctx, requestKey{}, req)
	rc := http.NewResponseController(w)
	stop := context.AfterFunc(ctx, func() {
		if context.Cause(ctx) == errCut { //nolint:errorlint // set by this package only
			now := time.Now()
			_ = rc.SetWriteDeadline(now)
			_ = rc.SetReadDeadline(now)
		}
	})
	defer stop()
	s.route(&cutWriter{ResponseWriter: w, ctx: ctx}, r.WithContext(ctx), sb)
	if context.Cause(ctx) == errCut { //nolint:errorlint // set by this package only
		panic(http.ErrAbortHandler) // net/http's own way to break a connection
	}
}

// cutWriter writes nothing after the request was cut: a client must not see an end that looks
// regular.
type cutWriter struct {
	http.ResponseWriter
	ctx context.Context
}

func (w *cutWriter) Write(p []byte) (int, error) {
	if context.Cause(w.ctx) == errCut { //nolint:errorlint // set by this package only
		return 0, errCut
	}
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (w *cutWriter) Flush() {
	if context.Cause(w.ctx) != errCut { //nolint:errorlint // set by this package only
		_ = http.NewResponseController(w.ResponseWriter).Flush()
	}
}

// Unwrap is for http.ResponseController.
func (w *cutWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// route serves one request.
func (s *Server) route(w http.ResponseWriter, r *http.Request, sb Sandbox) {
	switch r.URL.Path {
	case "/health":
		if allow(w, r, http.MethodGet, http.MethodHead) {
			w.WriteHeader(http.StatusNoContent)
		}
		return
	case "/files":
		s.serveFiles(w, r, sb)
		return
	}
	rpc := strings.HasPrefix(r.URL.Path, "/"+envdpb.ProcessName+"/") || strings.HasPrefix(r.URL.Path, "/"+envdpb.FilesystemName+"/")
	switch {
	case !rpc && r.URL.Path != "/files/compose" && r.URL.Path != "/metrics" && r.URL.Path != "/envs":
		writeJSON(w, http.StatusNotFound, map[string]any{"code": http.StatusNotFound, "message": "this path is not served", "path": r.URL.Path})
	case !showsToken(r, sb):
		writeFailure(w, http.StatusUnauthorized, "the access token is missing or wrong")
	case rpc:
		s.rpc.ServeHTTP(w, r)
	case r.URL.Path == "/files/compose":
		if allow(w, r, http.MethodPost) {
			s.compose(w, r, sb)
		}
	case allow(w, r, http.MethodGet):
		if r.URL.Path == "/metrics" {
			s.serveMetrics(w, r, sb)
		} else {
			writeJSON(w, http.StatusOK, nonNil(sb.Env))
		}
	}
}

func nonNil(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// showsToken reports whether a request shows the access token of the sandbox.
func showsToken(r *http.Request, sb Sandbox) bool {
	return sb.Token == "" || subtle.ConstantTimeCompare([]byte(r.Header.Get("X-Access-Token")), []byte(sb.Token)) == 1
}

// allow answers a request with another method.
func allow(w http.ResponseWriter, r *http.Request, methods ...string) bool {
	for _, m := range methods {
		if r.Method == m {
			return true
		}
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	writeFailure(w, http.StatusMethodNotAllowed, "method "+r.Method+" is not allowed here")
	return false
}
