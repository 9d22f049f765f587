package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/httpapi"
	"github.com/cloche-dev/cloche/test/mockcore"
)

const token = "0123456789abcdef-test"

// fixture is a server on a unix socket and on TCP.
type fixture struct {
	t      *testing.T
	core   *mockcore.Core
	server *httpapi.Server
	unix   string
	tcp    string
	log    *lockedBuffer
}

func open(t *testing.T) *fixture { return openWith(t, func(*httpapi.Options) {}) }

// openWith opens one with other options.
func openWith(t *testing.T, change func(*httpapi.Options)) *fixture {
	t.Helper()
	dir, err := os.MkdirTemp("", "cl") // a unix socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &fixture{t: t, core: mockcore.New(), unix: filepath.Join(dir, "s"), log: &lockedBuffer{}}
	o := httpapi.Options{
		Core: h.core, Token: token, Origins: []string{"HTTPS://tools.example:443"}, Hosts: []string{"Box.example.:7070", "*.wild.example", "tools.example"},
		Version: "test", MaxBody: 1 << 20, Logger: slog.New(slog.NewJSONHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	change(&o)
	if h.server, err = httpapi.New(o); err != nil {
		t.Fatal(err)
	}
	ul, err := net.Listen("unix", h.unix)
	if err != nil {
		t.Fatal(err)
	}
	tl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.tcp = tl.Addr().String()
	served := make(chan error, 2)
	go func() { served <- h.server.Serve(ul) }()
	go func() { served <- h.server.Serve(tl) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := h.server.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		for range 2 {
			if err := <-served; err != nil {
				t.Errorf("serve: %v", err)
			}
		}
	})
	return h
}

func (h *fixture) client() *client.Client {
	c, err := client.New(client.Options{Host: "unix://" + h.unix})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

func (h *fixture) tcpClient(tok string) *client.Client {
	c, err := client.New(client.Options{Host: "tcp://" + h.tcp, Token: tok})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

// do sends one request over the unix socket.
func (h *fixture) do(method, path string, header http.Header, body io.Reader) (*http.Response, []byte) {
	h.t.Helper()
	return h.send("unix", h.unix, "", method, path, header, body)
}

func (h *fixture) send(network, addr, host, method, path string, header http.Header, body io.Reader) (*http.Response, []byte) {
	h.t.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequest(method, "http://cloche"+path, body)
	if err != nil {
		h.t.Fatal(err)
	}
	if host != "" {
		req.Host = host
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := (&http.Client{Transport: tr, Timeout: 20 * time.Second}).Do(req)
	if err != nil {
		h.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp, data
}

// errorOf decodes an error's body, which every error must have.
func (h *fixture) errorOf(resp *http.Response, data []byte) *api.Error {
	h.t.Helper()
	var b struct{ Error *api.Error }
	if err := json.Unmarshal(data, &b); err != nil || b.Error == nil {
		h.t.Fatalf("HTTP %d with no error in the body: %.200q", resp.StatusCode, data)
	}
	if b.Error.RequestID == "" || b.Error.RequestID != resp.Header.Get("X-Request-Id") {
		h.t.Errorf("request id %q in the error and %q in the header", b.Error.RequestID, resp.Header.Get("X-Request-Id"))
	}
	return b.Error
}

func (h *fixture) await(ok func() bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := h.core.Await(ctx, ok); err != nil {
		h.t.Fatal(err)
	}
}

func TestHostileRequests(t *testing.T) {
	h := open(t)
	sb, err := h.client().Create(t.Context(), api.SandboxSpec{Name: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	js := "application/json"
	files := "/v1/sandboxes/" + sb.ID + "/files"
	for _, tc := range []struct {
		name, method, path, ctype, body string
		status                          int
		code                            api.Code
		field                           string
	}{
		{"no content type", "POST", "/v1/sandboxes", "", `{}`, 400, api.CodeInvalid, "content-type"},
		{"form", "POST", "/v1/sandboxes", "application/x-www-form-urlencoded", `{}`, 400, api.CodeInvalid, "content-type"},
		{"text/plain", "POST", "/v1/run", "text/plain", `{}`, 400, api.CodeInvalid, "content-type"},
		{"charset", "POST", "/v1/run", "application/json; charset=utf-16", `{}`, 400, api.CodeInvalid, "content-type"},
		{"kill with a form", "POST", "/v1/sandboxes/mine/kill", "text/plain", `{}`, 400, api.CodeInvalid, "content-type"},
		{"upload as form", "PUT", files + "?path=/x", "multipart/form-data", `x`, 400, api.CodeInvalid, "content-type"},
		{"empty body", "POST", "/v1/sandboxes", js, ``, 400, api.CodeInvalid, "body"},
		{"not JSON", "POST", "/v1/sandboxes", js, `name=x`, 400, api.CodeInvalid, "body"},
		{"half JSON", "POST", "/v1/sandboxes", js, `{"name":`, 400, api.CodeInvalid, "body"},
		{"array", "POST", "/v1/sandboxes", js, `[]`, 400, api.CodeInvalid, "body"},
		{"null", "POST", "/v1/sandboxes", js, `null`, 400, api.CodeInvalid, "body"},
		{"a null image", "POST", "/v1/sandboxes", js, `{"image":null}`, 400, api.CodeInvalid, "image"},
		{"a null limit", "POST", "/v1/sandboxes", js, `{"limits":{"pids":null}}`, 400, api.CodeInvalid, "limits.pids"},
		{"a null lock", "POST", "/v1/sandboxes", js, `{"read_only_root":null}`, 400, api.CodeInvalid, "read_only_root"},
		{"a null variable", "POST", "/v1/sandboxes", js, `{"env":{"A":null}}`, 400, api.CodeInvalid, "env.A"},
		{"a null argument", "POST", "/v1/run", js, `{"spec":{},"exec":{"argv":["a",null]}}`, 400, api.CodeInvalid, "exec.argv[1]"},
		{"a null workspace", "POST", "/v1/sandboxes", js, `{"workspace":null}`, 400, api.CodeInvalid, "workspace"},
		{"trailing value", "POST", "/v1/sandboxes", js, `{} {}`, 400, api.CodeInvalid, "body"},
		{"trailing garbage", "POST", "/v1/sandboxes", js, `{}x`, 400, api.CodeInvalid, "body"},
		{"unknown field", "POST", "/v1/sandboxes", js, `{"nam":"x"}`, 400, api.CodeInvalid, "nam"},
		{"unknown nested field", "POST", "/v1/run", js, `{"spec":{"limits":{"pid":1}},"exec":{}}`, 400, api.CodeInvalid, "spec.limits.pid"},
		{"unknown field in a list", "POST", "/v1/sandboxes", js, `{"mounts":[{},{"src":"/"}]}`, 400, api.CodeInvalid, "mounts[1].src"},
		{"other case", "POST", "/v1/sandboxes", js, `{"Name":"x"}`, 400, api.CodeInvalid, "Name"},
		{"twice", "POST", "/v1/sandboxes", js, `{"name":"a","name":"b"}`, 400, api.CodeInvalid, "name"},
		{"wrong type", "POST", "/v1/sandboxes", js, `{"limits":{"pids":"many"}}`, 400, api.CodeInvalid, "limits.pids"},
		{"overflow", "POST", "/v1/sandboxes", js, `{"limits":{"pids":99999999999999999999}}`, 400, api.CodeInvalid, "limits.pids"},
		{"not UTF-8", "POST", "/v1/sandboxes", js, "{\"name\":\"\xff\"}", 400, api.CodeInvalid, "body"},
		{"deep", "POST", "/v1/sandboxes", js, `{"labels":` + strings.Repeat(`{"a":`, 100), 400, api.CodeInvalid, "body"},
		{"large", "POST", "/v1/sandboxes", js, `{"name":"` + strings.Repeat("x", 1<<20) + `"}`, 413, api.CodeTooLarge, ""},
		{"tty collected", "POST", "/v1/sandboxes/mine/exec", js, `{"argv":["true"],"tty":true}`, 400, api.CodeInvalid, "tty"},
		{"negative grace", "POST", "/v1/sandboxes/mine/stop", js, `{"grace_ms":-1}`, 400, api.CodeInvalid, "grace_ms"},
		{"unknown field of a process", "POST", "/v1/sandboxes/mine/processes", js, `{"argv":["cat"],"restarts":1}`, 400, api.CodeInvalid, "restarts"},
		{"unknown field of a readiness", "POST", "/v1/sandboxes/mine/processes", js, `{"argv":["cat"],"ready":{"http":{"prt":1}}}`, 400, api.CodeInvalid, "ready.http.prt"},
		{"a process's embedded type", "POST", "/v1/sandboxes/mine/processes", js, `{"ExecRequest":{"argv":["cat"]}}`, 400, api.CodeInvalid, "ExecRequest"},
		{"odd process id", "GET", "/v1/sandboxes/mine/processes/a%2Fb", "", "", 404, api.CodeNotFound, ""},
		{"input as JSON", "POST", "/v1/sandboxes/mine/processes/p/stdin", js, `{}`, 400, api.CodeInvalid, "content-type"},
		{"odd stdin offset", "POST", "/v1/sandboxes/mine/processes/p/stdin?offset=1e3", "application/octet-stream", "x", 400, api.CodeInvalid, "offset"},
		{"odd since", "GET", "/v1/sandboxes/mine/logs?since=now", "", "", 400, api.CodeInvalid, "since"},
		{"odd time", "GET", "/v1/sandboxes/mine/logs?since_time=yesterday", "", "", 400, api.CodeInvalid, "since_time"},
		{"long poll", "GET", "/v1/sandboxes/mine/logs?wait_ms=60001", "", "", 400, api.CodeInvalid, "wait_ms"},
		{"odd port", "GET", "/v1/sandboxes/mine/ports/70000", "", "", 400, api.CodeInvalid, "port"},
		{"no such path", "GET", "/v1/nothing", "", "", 404, api.CodeNotFound, ""},
		{"root", "GET", "/", "", "", 404, api.CodeNotFound, ""},
		{"dots", "GET", "/v1/sandboxes/../status", "", "", 404, api.CodeNotFound, ""},
		{"slashes", "GET", "/v1//status", "", "", 404, api.CodeNotFound, ""},
		{"wrong method", "PUT", "/v1/sandboxes", js, "{}", 405, api.CodeInvalid, "method"},
		{"odd method", "BREW", "/v1/status", "", "", 405, api.CodeInvalid, "method"},
		{"bad ref", "GET", "/v1/sandboxes/a%2Fb", "", "", 404, api.CodeNotFound, ""},
		{"NUL ref", "GET", "/v1/sandboxes/a%00", "", "", 404, api.CodeNotFound, ""},
		{"long ref", "GET", "/v1/sandboxes/" + strings.Repeat("a", 5000), "", "", 404, api.CodeNotFound, ""},
		{"unknown parameter", "GET", "/v1/status?verbose=1", "", "", 400, api.CodeInvalid, "verbose"},
		{"bad query", "GET", "/v1/status?a=%zz", "", "", 400, api.CodeInvalid, "query"},
		{"no path", "GET", files, "", "", 400, api.CodeInvalid, "path"},
		{"NUL path", "GET", files + "?path=/a%00b", "", "", 400, api.CodeInvalid, "path"},
		{"two paths", "GET", files + "?path=/a&path=/b", "", "", 400, api.CodeInvalid, "path"},
		{"long path", "GET", files + "?path=/" + strings.Repeat("a", 4096), "", "", 400, api.CodeInvalid, "path"},
		{"negative offset", "GET", files + "?path=/a&offset=-1", "", "", 400, api.CodeInvalid, "offset"},
		{"odd length", "GET", files + "?path=/a&length=ten", "", "", 400, api.CodeInvalid, "length"},
		{"odd mode", "POST", files + "/mkdir?path=/a&mode=9", "", "", 400, api.CodeInvalid, "mode"},
		{"odd recursive", "DELETE", files + "?path=/a&recursive=1", "", "", 400, api.CodeInvalid, "recursive"},
		{"label no pair", "GET", "/v1/sandboxes?label=x", "", "", 400, api.CodeInvalid, "label"},
		{"unknown state", "GET", "/v1/sandboxes?state=asleep", "", "", 400, api.CodeInvalid, "state"},
		{"large page", "GET", "/v1/sandboxes?limit=1001", "", "", 400, api.CodeInvalid, "limit"},
		{"odd log stream", "GET", "/v1/sandboxes/mine/logs?stream=stdin", "", "", 400, api.CodeInvalid, "stream"},
		{"no WebSocket", "GET", "/v1/run/stream", "", "", 400, api.CodeInvalid, "upgrade"},
		{"panic", "POST", "/v1/sandboxes", js, `{"profile":"panic"}`, 500, api.CodeInternal, ""},
		{"fault", "POST", "/v1/sandboxes", js, `{"profile":"fault"}`, 500, api.CodeInternal, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			hd := http.Header{}
			if tc.ctype != "" {
				hd.Set("Content-Type", tc.ctype)
			}
			var body io.Reader
			if tc.body != "" {
				body = strings.NewReader(tc.body)
			}
			h := *h
			h.t = t
			resp, data := h.do(tc.method, tc.path, hd, body)
			e := h.errorOf(resp, data)
			if resp.StatusCode != tc.status || e.Code != tc.code || e.Field != tc.field {
				t.Errorf("HTTP %d %s field %q, want %d %s field %q: %s", resp.StatusCode, e.Code, e.Field, tc.status, tc.code, tc.field, e)
			}
			if strings.Contains(string(data), "/secret/host") || strings.Contains(string(data), "goroutine") {
				t.Errorf("the answer tells of the inside: %s", data)
			}
		})
	}
	if n := h.core.Live(); n != 1 {
		t.Errorf("%d sandboxes after requests that were all refused, want the 1 from before", n)
	}
}

func TestTenants(t *testing.T) {
	h := open(t)
	mine, err := h.client().Create(t.Context(), api.SandboxSpec{Name: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	if want := core.UnixCaller(os.Geteuid(), os.Geteuid()).Tenant; mine.Tenant != want {
		t.Errorf("tenant %q over the unix socket, want %q", mine.Tenant, want)
	}
	other := h.tcpClient(token)
	if _, err := other.Get(t.Context(), mine.ID); api.CodeOf(err) != api.CodeNotFound {
		t.Errorf("a foreign tenant's get: %v, want not found", err)
	}
	theirs, err := other.Create(t.Context(), api.SandboxSpec{Name: "mine"})
	if err != nil {
		t.Fatalf("the same name for another tenant: %v", err)
	}
	if theirs.Tenant == mine.Tenant {
		t.Errorf("both are of tenant %q", mine.Tenant)
	}
	// A fault's text is the operator's only.
	_, err = other.Create(t.Context(), api.SandboxSpec{Profile: "fault"})
	if api.CodeOf(err) != api.CodeInternal || strings.Contains(err.Error(), "secret") {
		t.Errorf("a fault for a foreign tenant: %v", err)
	}
}

func TestHugeHeader(t *testing.T) {
	h := open(t)
	resp, _ := h.do("GET", "/v1/version", http.Header{"X-Big": {strings.Repeat("x", 128<<10)}}, nil)
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("HTTP %d, want 431", resp.StatusCode)
	}
}

func TestRequestID(t *testing.T) {
	h := open(t)
	for _, tc := range []struct {
		sent string
		kept bool
	}{{"abc-1.2_3", true}, {"two words", false}, {"", false}, {strings.Repeat("x", 65), false}, {`a"b`, false}} {
		resp, _ := h.do("GET", "/v1/version", http.Header{"X-Request-Id": {tc.sent}}, nil)
		got := resp.Header.Get("X-Request-Id")
		if (got == tc.sent) != tc.kept || got == "" {
			t.Errorf("sent %q, answered %q", tc.sent, got)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	h := open(t)
	resp, data := h.do("POST", "/v1/sandboxes", http.Header{"Content-Type": {"application/json"}}, strings.NewReader(`{"profile":"full"}`))
	if e := h.errorOf(resp, data); resp.StatusCode != 503 || e.RetryAfterMS != 1500 || resp.Header.Get("Retry-After") != "2" {
		t.Errorf("HTTP %d, %d ms, Retry-After %q", resp.StatusCode, e.RetryAfterMS, resp.Header.Get("Retry-After"))
	}
}

func TestEveryCodeHasAStatus(t *testing.T) {
	for _, c := range api.Codes() {
		if got := httpapi.StatusOf(c); got < 400 || got == 500 && c != api.CodeInternal {
			t.Errorf("code %s has status %d", c, got)
		}
	}
}

func TestTCPNeedsToken(t *testing.T) {
	s, err := httpapi.New(httpapi.Options{Core: mockcore.New()})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(ln); api.CodeOf(err) != api.CodeInvalid {
		t.Errorf("serve: %v, want a refusal", err)
	}
	if _, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		t.Error("the listener is still open")
	}
	if _, err := httpapi.New(httpapi.Options{Core: mockcore.New(), Token: "short"}); api.CodeOf(err) != api.CodeInvalid {
		t.Errorf("a short token: %v, want a refusal", err)
	}
}

// TestRunOfDeadCaller: the sandbox of a one-shot is removed when its caller
// disconnects, for each way of asking.
func TestRunOfDeadCaller(t *testing.T) {
	req := api.RunRequest{Exec: api.ExecRequest{Argv: []string{"sleep"}}}
	t.Run("collected", func(t *testing.T) {
		h := open(t)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error, 1)
		go func() {
			_, err := h.client().Run(ctx, req)
			got <- err
		}()
		h.await(func() bool { return h.core.Running() == 1 })
		cancel()
		if err := <-got; api.CodeOf(err) != api.CodeCanceled {
			t.Errorf("run: %v, want canceled", err)
		}
		h.await(func() bool { return h.core.Live() == 0 && h.core.Running() == 0 })
	})
	t.Run("streamed", func(t *testing.T) {
		h := open(t)
		st, err := h.client().RunStream(t.Context(), req, nil)
		if err != nil {
			t.Fatal(err)
		}
		st.Close()
		h.await(func() bool { return h.core.Live() == 0 && h.core.Running() == 0 })
	})
	t.Run("while creating", func(t *testing.T) {
		h := open(t)
		ctx, cancel := context.WithCancel(t.Context())
		stuck := req
		stuck.Spec.Profile = "stuck"
		_, err := h.client().RunStream(ctx, stuck, func(step string) {
			if step == "engine" {
				cancel()
			}
		})
		if api.CodeOf(err) != api.CodeCanceled {
			t.Errorf("run: %v, want canceled", err)
		}
		// Shutdown waits for the handler: it hangs if the create was not given up.
	})
	t.Run("shutdown", func(t *testing.T) {
		h := open(t)
		st, err := h.client().RunStream(t.Context(), req, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		if err := h.server.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if h.core.Live() != 0 {
			t.Error("the sandbox of a run is there after shutdown")
		}
	})
}

// TestKnownCaller serves a listener inside the process.
func TestKnownCaller(t *testing.T) {
	s, err := httpapi.New(httpapi.Options{Core: mockcore.New(), Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ln := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	served := make(chan error, 1)
	go func() { served <- s.ServeAs(ln, core.Caller{Tenant: "inside", UID: -1}) }()
	c, err := client.New(client.Options{Host: "http://cloche", Dial: ln.dial})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	st, err := c.RunStream(t.Context(), api.RunRequest{Exec: api.ExecRequest{Argv: []string{"cat"}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if st.Sandbox().Tenant != "inside" {
		t.Errorf("tenant %q", st.Sandbox().Tenant)
	}
	if _, err := st.Write([]byte("through a pipe")); err != nil {
		t.Fatal(err)
	}
	if err := st.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if res, err := st.Copy(&out, nil); err != nil || !res.OK() || out.String() != "through a pipe" {
		t.Errorf("%v %v %q", res, err, out.String())
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
