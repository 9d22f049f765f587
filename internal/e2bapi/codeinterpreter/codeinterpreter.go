// Package codeinterpreter serves the API of E2B's code interpreter, which its clients ask for at port
// 49999 of a sandbox: code contexts, and runs of code with a stream of results. The server runs in the
// daemon, and every call is an operation of core.
package codeinterpreter

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/e2bapi/envd"
)

// Port is the port of the code interpreter in E2B's sandboxes.
const Port = 49999

const (
	// maxBody limits the body of a request in bytes.
	maxBody = 16 << 20
	// keepAlive is the longest silence of a stream: clients give up after a longer one.
	keepAlive = 5 * time.Second
)

// Core is the part of package core that code contexts need.
type Core interface {
	CreateContext(ctx context.Context, caller core.Caller, ref string, spec api.CodeContextSpec) (api.CodeContext, error)
	Contexts(ctx context.Context, caller core.Caller, ref string) (api.CodeContextList, error)
	RestartContext(ctx context.Context, caller core.Caller, ref, id string) error
	RemoveContext(ctx context.Context, caller core.Caller, ref, id string) error
	RunCode(ctx context.Context, caller core.Caller, ref string, r api.CodeRequest, fn func(api.CodeEvent) error) error
}

// Options are what a Server works with. All fields are required.
type Options struct {
	Core Core
	// Decode reads a JSON body of at most limit bytes.
	Decode func(r *http.Request, into any, limit int64) error
	// Translate returns the status and the text of an error.
	Translate func(error) (status int, text string)
	Log       *slog.Logger
}

// Server serves the code contexts of sandboxes. It is safe for concurrent use.
type Server struct {
	o   Options
	mux *http.ServeMux
}

// New makes a Server.
func New(o Options) *Server {
	s := &Server{o: o, mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, "OK") })
	s.mux.HandleFunc("POST /execute", s.handle(s.execute))
	s.mux.HandleFunc("POST /contexts", s.handle(s.create))
	s.mux.HandleFunc("GET /contexts", s.handle(s.list))
	s.mux.HandleFunc("POST /contexts/{id}/restart", s.handle(s.restart))
	s.mux.HandleFunc("DELETE /contexts/{id}", s.handle(s.remove))
	return s
}

type sandboxKey struct{}

// ServeSandbox serves a request for the code interpreter of a sandbox.
func (s *Server) ServeSandbox(w http.ResponseWriter, r *http.Request, sb envd.Sandbox) {
	s.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sandboxKey{}, sb)))
}

// handle adapts a handler. The clients read an error's text from the body.
func (s *Server) handle(h func(w http.ResponseWriter, r *http.Request, sb envd.Sandbox) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		sb, ok := r.Context().Value(sandboxKey{}).(envd.Sandbox)
		if !ok {
			http.Error(w, "no sandbox", http.StatusInternalServerError)
			return
		}
		if err := h(w, r, sb); err != nil {
			s.o.Log.Debug("a request for code failed", "sandbox", sb.Ref, "path", r.URL.Path, "error", err)
			status, text := s.o.Translate(err)
			if status == http.StatusNotImplemented {
				status = http.StatusNotFound // no kernel; the client for JavaScript shows the text of no other status
			}
			http.Error(w, text, status)
		}
	}
}

// contextOf answers with the body that the clients expect for a context that does not exist.
func contextOf(id string, err error) error {
	if api.CodeOf(err) == api.CodeNotFound {
		return api.Errorf(api.CodeNotFound, "Context %s not found", id)
	}
	return err
}

// codeContext is a context as E2B's clients know it.
type codeContext struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

func wireContext(c api.CodeContext, sb envd.Sandbox) codeContext {
	if c.Cwd == "" {
		c.Cwd = sb.Dir
	}
	return codeContext{c.ID, c.Language, c.Cwd}
}

func (s *Server) create(w http.ResponseWriter, r *http.Request, sb envd.Sandbox) error {
	var req struct{ Language, Cwd string }
	if err := s.o.Decode(r, &req, maxBody); err != nil {
		return err
	}
	c, err := s.o.Core.CreateContext(r.Context(), sb.Caller, sb.Ref, api.CodeContextSpec{Language: req.Language, Cwd: req.Cwd})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, wireContext(c, sb))
	return nil
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, sb envd.Sandbox) error {
	l, err := s.o.Core.Contexts(r.Context(), sb.Caller, sb.Ref)
	if err != nil {
		return err
	}
	out := []codeContext{}
	for _, c := range l.Contexts {
		if !c.State.Ended() {
			out = append(out, wireContext(c, sb))
		}
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

func (s *Server) restart(w http.ResponseWriter, r *http.Request, sb envd.Sandbox) error {
	if err := s.o.Core.RestartContext(r.Context(), sb.Caller, sb.Ref, r.PathValue("id")); err != nil {
		return contextOf(r.PathValue("id"), err)
	}
	writeJSON(w, http.StatusOK, nil)
	return nil
}

func (s *Server) remove(w http.ResponseWriter, r *http.Request, sb envd.Sandbox) error {
	if err := s.o.Core.RemoveContext(context.WithoutCancel(r.Context()), sb.Caller, sb.Ref, r.PathValue("id")); err != nil {
		return contextOf(r.PathValue("id"), err)
	}
	writeJSON(w, http.StatusOK, nil)
	return nil
}

// execute runs code. Only this call has the access token: the clients send none with the others.
func (s *Server) execute(w http.ResponseWriter, r *http.Request, sb envd.Sandbox) error {
	if sb.Token != "" && subtle.ConstantTimeCompare([]byte(r.Header.Get("X-Access-Token")), []byte(sb.Token)) != 1 {
		return api.Errorf(api.CodeUnauthenticated, "the access token of the sandbox is missing or wrong")
	}
	var req struct {
		Code      string            `json:"code"`
		ContextID string            `json:"context_id"`
		Language  string            `json:"language"`
		EnvVars   map[string]string `json:"env_vars"`
	}
	if err := s.o.Decode(r, &req, maxBody); err != nil {
		return err
	}
	if req.ContextID != "" && req.Language != "" {
		return api.Invalid("context_id", "Only one of context_id or language can be provided")
	}
	out := &stream{w: w, rc: http.NewResponseController(w), ended: make(chan struct{})}
	out.wg.Go(out.beat)
	defer out.close()
	err := s.o.Core.RunCode(r.Context(), sb.Caller, sb.Ref, api.CodeRequest{Code: req.Code, Context: req.ContextID, Language: req.Language, Env: req.EnvVars, TimeoutMS: new(int64(0))}, out.event)
	switch {
	case err == nil:
		return nil
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // a stream that ends politely is a run that ended
	}
	if out.close(); out.begin() {
		_, text := s.o.Translate(err)
		return out.fail(api.CodeOf(err), text)
	}
	return contextOf(req.ContextID, err)
}

// stream is the answer of a run: a line of JSON for each event. It is safe for concurrent use.
type stream struct {
	mu    sync.Mutex
	w     http.ResponseWriter
	rc    *http.ResponseController
	begun bool
	ended chan struct{}
	once  sync.Once
	wg    sync.WaitGroup
}

// begin reports whether the answer has begun.
func (s *stream) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// close ends the keepalives. It can be called again.
func (s *stream) close() {
	s.once.Do(func() { close(s.ended) })
	s.wg.Wait()
}

func (s *stream) event(e api.CodeEvent) error {
	now := time.Now().UnixNano()
	switch e.Type {
	case api.CodeStarted:
		// The answer begins now: the client for JavaScript counts the timeout from here.
		return s.line(map[string]any{"type": "keepalive"})
	case api.CodeStdout, api.CodeStderr:
		return s.line(map[string]any{"type": e.Type, "text": e.Text, "timestamp": now})
	case api.CodeResult:
		return s.line(result(e))
	case api.CodeError:
		return s.line(map[string]any{"type": "error", "name": e.Name, "value": e.Value, "traceback": e.Traceback})
	case api.CodeEnd:
		if err := s.line(map[string]any{"type": "number_of_executions", "execution_count": e.ExecutionCount}); err != nil {
			return err
		}
		return s.line(map[string]any{"type": "end_of_execution"})
	}
	return nil
}

// fail ends a stream that has begun.
func (s *stream) fail(code api.Code, message string) error {
	if err := s.line(map[string]any{"type": "error", "name": string(code), "value": message, "traceback": ""}); err != nil {
		return err
	}
	return s.line(map[string]any{"type": "end_of_execution"})
}

func (s *stream) line(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", "application/x-ndjson")
		s.w.WriteHeader(http.StatusOK)
	}
	if _, err := s.w.Write(append(data, '\n')); err != nil {
		return err
	}
	return s.rc.Flush()
}

// beat sends keepalives until the stream ends.
func (s *stream) beat() {
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-tick.C:
			if s.line(map[string]any{"type": "keepalive"}) != nil {
				return
			}
		}
	}
}

// formats are the names of E2B's clients for MIME types.
var formats = map[string]string{
	"text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf",
	"text/latex": "latex", "application/json": "json", "application/javascript": "javascript", api.MIMETable: "data", api.MIMEChart: "chart",
}

// result translates a result. Formats that E2B does not know are extra.
func result(e api.CodeEvent) map[string]any {
	out, extra := map[string]any{"type": "result", "is_main_result": e.Main}, map[string]json.RawMessage{}
	for kind, value := range e.Data {
		name := formats[kind]
		switch {
		case kind == "text/plain":
			var text string
			if json.Unmarshal(value, &text) == nil {
				out["text"] = unquoted(text)
			}
		case bytes.Equal(value, []byte("null")):
		case name != "":
			out[name] = value
		default:
			extra[kind] = value
		}
	}
	if len(extra) > 0 {
		out["extra"] = extra
	}
	return out
}

// unquoted removes the quotes of a text that Python shows as a string.
func unquoted(text string) string {
	if n := len(text); n > 1 && text[0] == text[n-1] && strings.ContainsRune(`'"`, rune(text[0])) {
		return text[1 : n-1]
	}
	return text
}

// writeJSON answers with a body. An error of the connection has no one to be told to.
func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
