package client_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

func TestHosts(t *testing.T) {
	for host, ok := range map[string]bool{
		"unix:///run/cloche.sock": true, "unix:///a%20b/c": true, "tcp://127.0.0.1:7070": true, "http://box:1": true,
		"https://box.example": true, "https://box.example/": true, "tcp://[::1]:7070": true,
		"unix://relative": false, "unix:/one-slash": false, "tcp://nowhere": false, "/run/cloche.sock": false, "ftp://x": false,
		"http://u:p@box": false, "http://box/v1": false, "http://box?x": false, "http://": false, "tcp://": false, "::": false,
		"unix:///" + strings.Repeat("x", 200): false,
	} {
		_, err := client.New(client.Options{Host: host})
		if ok != (err == nil) || err != nil && !errors.Is(err, api.ErrInvalid) {
			t.Errorf("host %q: %v", host, err)
		}
	}
	if _, err := client.New(client.Options{Token: "a\r\nX: y"}); !errors.Is(err, api.ErrInvalid) || strings.Contains(err.Error(), "X: y") {
		t.Errorf("token with a line break: %v", err)
	}
}

func TestFromEnv(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(client.EnvHost, "")
	t.Setenv(client.EnvHome, dir)
	c, err := client.FromEnv()
	if err != nil {
		t.Skip("needs a short temporary directory: a unix socket's path has a limit")
	}
	if want := "unix://" + filepath.ToSlash(filepath.Join(dir, client.SocketName)); c.Host() != want {
		t.Errorf("host %q, want %q", c.Host(), want)
	}
	t.Setenv(client.EnvHost, "tcp://box:1")
	if c, err := client.FromEnv(); err != nil || c.Host() != "tcp://box:1" {
		t.Errorf("%v %v", c, err)
	}
}

// TestNoDaemon separates two errors that a caller must not confuse: no daemon, and
// a daemon that refuses.
func TestNoDaemon(t *testing.T) {
	dir, err := os.MkdirTemp("", "cl")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := ln.Addr().String()
	ln.Close()
	failing := func(errno syscall.Errno) func(context.Context, string, string) (net.Conn, error) {
		return func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", errno)}
		}
	}
	for _, tc := range []struct {
		name       string
		o          client.Options
		code       api.Code
		notRunning bool
	}{
		{"no socket", client.Options{Host: "unix://" + filepath.ToSlash(filepath.Join(dir, "s"))}, api.CodeUnavailable, true},
		{"nobody listens", client.Options{Host: "tcp://" + free}, api.CodeUnavailable, true},
		{"stale socket", client.Options{Host: "unix:///s", Dial: failing(syscall.ECONNREFUSED)}, api.CodeUnavailable, true},
		{"not ours", client.Options{Host: "unix:///s", Dial: failing(syscall.EACCES)}, api.CodeUnauthenticated, false},
		{"no route", client.Options{Host: "tcp://x:1", Dial: failing(syscall.ENETUNREACH)}, api.CodeUnavailable, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := client.New(tc.o)
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.Status(t.Context())
			_, serr := c.RunStream(t.Context(), api.RunRequest{}, nil)
			for _, err := range []error{err, serr} {
				e, ok := errors.AsType[*api.Error](err)
				if !ok || e.Code != tc.code || errors.Is(err, client.ErrNotRunning) != tc.notRunning || e.Hint == "" && tc.notRunning {
					t.Errorf("%v (not running: %v)", err, errors.Is(err, client.ErrNotRunning))
				}
			}
		})
	}
}

// strange serves answers that no daemon gives.
func strange(t *testing.T, h http.HandlerFunc) *client.Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := client.New(client.Options{Host: s.URL, Token: "a-secret-token-of-mine"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestStrangeAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		h    http.HandlerFunc
		code api.Code
	}{
		"a web page": {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }, api.CodeInternal},
		"a proxy's error": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "bad gateway", http.StatusBadGateway)
		}, api.CodeUnavailable},
		"an error without code": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(500)
			io.WriteString(w, `{"error":{"message":"hm"}}`)
		}, api.CodeInternal},
		"half an answer": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, `{"version":`)
		}, api.CodeUnavailable},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, api.CodeInternal},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			c := strange(t, func(w http.ResponseWriter, r *http.Request) {
				calls++
				tc.h(w, r)
			})
			_, err := c.Create(t.Context(), api.SandboxSpec{})
			if api.CodeOf(err) != tc.code || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v, want %s", err, tc.code)
			}
			if calls != 1 {
				t.Errorf("%d requests for one create", calls)
			}
		})
	}
}

func TestListAllEnds(t *testing.T) {
	c := strange(t, func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"sandboxes":[{"id":"a"}],"next":"again"}`)
	})
	n := 0
	var last error
	for _, err := range c.ListAll(t.Context(), api.ListOptions{}) {
		n++
		last = err
	}
	if n > 3 || last == nil {
		t.Errorf("%d steps, last error %v; want an end with an error", n, last)
	}
}

func TestLongLine(t *testing.T) {
	c := strange(t, func(w http.ResponseWriter, _ *http.Request) {
		for range 40 {
			if _, err := io.WriteString(w, strings.Repeat(" ", 1<<20)); err != nil {
				return
			}
		}
	})
	err := c.Logs(t.Context(), "box", api.LogOptions{}, func(api.LogEntry) error { return nil })
	if api.CodeOf(err) != api.CodeInternal {
		t.Errorf("%v, want a refusal of the line", err)
	}
}

// TestOneShotRequest looks at what a one-shot asks for, which is one call.
func TestOneShotRequest(t *testing.T) {
	var got []api.RunRequest
	c := strange(t, func(w http.ResponseWriter, r *http.Request) {
		var req api.RunRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil || r.URL.Path != "/v1/run" {
			t.Errorf("%s %v", r.URL.Path, err)
		}
		got = append(got, req)
		io.WriteString(w, `{"result":{"exit_code":null}}`)
	})
	for range 2 {
		res, err := c.RunPython(t.Context(), "1", client.OneShot{Timeout: 1500e6, Stdin: []byte("in")})
		if err != nil || res.OK() {
			t.Fatalf("%v %v: an unknown exit code is no success", res, err)
		}
	}
	if _, err := c.RunShell(t.Context(), "1", client.OneShot{SandboxSpec: api.SandboxSpec{Name: "mine"}, Timeout: 1}); err != nil {
		t.Fatal(err)
	}
	if a, b := got[0].Spec.Name, got[1].Spec.Name; a == b || !strings.HasPrefix(a, "py-") || len(a) < 3+13 || !api.ValidName(a) {
		t.Errorf("names %q and %q", a, b)
	}
	if ms := got[0].Exec.TimeoutMS; ms == nil || *ms != 1500 || string(got[0].Exec.Stdin) != "in" || got[0].Exec.Python != "1" {
		t.Errorf("%+v", got[0].Exec)
	}
	if ms := got[2].Exec.TimeoutMS; got[2].Spec.Name != "mine" || ms == nil || *ms != 1 {
		t.Errorf("%+v: a timeout under a millisecond is still one", got[2])
	}
	if _, err := c.RunShell(t.Context(), "1", client.OneShot{Timeout: -1}); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("negative timeout: %v", err)
	}
}

func TestTextThatJSONCannotCarry(t *testing.T) {
	c := strange(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was made") })
	_, err := c.Exec(t.Context(), "box", api.ExecRequest{Argv: []string{"cat", "\xff"}})
	if e, ok := errors.AsType[*api.Error](err); !ok || e.Field != "argv[1]" {
		t.Errorf("%v, want a refusal of argv[1]", err)
	}
	if _, err := c.Create(t.Context(), api.SandboxSpec{Env: map[string]string{"A": "\xff"}}); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("%v", err)
	}
	if _, err := c.Get(t.Context(), ""); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("%v", err)
	}
}

// TestStrangeStreams: a daemon that breaks the protocol ends the stream.
func TestStrangeStreams(t *testing.T) {
	started := `{"started":{"exec_id":"e"}}`
	frame := func(kind, seq byte) string { return string([]byte{kind, 0, 0, 0, 0, 0, 0, 0, seq}) + "out" }
	for name, tc := range map[string]struct {
		sent []string // text when it begins with '{'
		code api.Code
	}{
		"output before the start": {[]string{frame(1, 0)}, api.CodeInternal},
		"exit before the start":   {[]string{`{"exit":{}}`}, api.CodeInternal},
		"not JSON":                {[]string{`{nonsense`}, api.CodeInternal},
		"short frame":             {[]string{started, "\x01\x00"}, api.CodeInternal},
		"unknown stream":          {[]string{started, frame(3, 0)}, api.CodeInternal},
		"a gap":                   {[]string{started, frame(1, 0), frame(2, 2)}, api.CodeInternal},
		"no exit":                 {[]string{started, frame(1, 0)}, api.CodeUnavailable},
		"an error":                {[]string{started, `{"error":{"code":"sandbox_lost","message":"gone"}}`}, api.CodeSandboxLost},
		"too large":               {[]string{started, strings.Repeat("x", 17<<20)}, api.CodeInternal},
	} {
		t.Run(name, func(t *testing.T) {
			c := strange(t, func(w http.ResponseWriter, r *http.Request) {
				conn, err := websocket.Accept(w, r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.CloseNow()
				if _, _, err := conn.Read(r.Context()); err != nil {
					t.Error(err)
				}
				for _, m := range tc.sent {
					kind := websocket.MessageBinary
					if strings.HasPrefix(m, "{") {
						kind = websocket.MessageText
					}
					if conn.Write(r.Context(), kind, []byte(m)) != nil {
						return
					}
				}
			})
			st, err := c.ExecStream(t.Context(), "box", api.ExecRequest{Argv: []string{"x"}})
			if err == nil {
				_, err = st.Copy(io.Discard, io.Discard)
				st.Close()
			}
			if api.CodeOf(err) != tc.code {
				t.Errorf("%v, want %s", err, tc.code)
			}
		})
	}
}

func TestContextOfACall(t *testing.T) {
	c := strange(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 1e6)
	defer cancel()
	if _, err := c.Status(ctx); api.CodeOf(err) != api.CodeTimeout || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want a deadline", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Status(gone); api.CodeOf(err) != api.CodeCanceled || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want canceled", err)
	}
}

// TestFromEnvTrusts: an https host is verified by the file that the environment names,
// and is told apart from one that does not listen.
func TestFromEnvTrusts(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"version":"x"}`)
	}))
	defer s.Close()
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	file := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	named := strings.Replace(s.URL, "127.0.0.1", "localhost", 1) // not in the certificate
	for _, tc := range []struct {
		host, file string
		code       api.Code // "" is an answer
		says       string
	}{
		{s.URL, file, "", ""},
		{s.URL, "", api.CodeUnavailable, "is not trusted: x509: certificate signed by unknown authority"},
		{named, file, api.CodeUnavailable, "is not trusted: x509: certificate is valid for"},
		{s.URL, empty, api.CodeInvalid, "has no certificate"},
		{s.URL, file + "x", api.CodeInvalid, "no such file"},
		{"tcp://" + s.Listener.Addr().String(), file + "x", api.CodeInvalid, "the daemon speaks TLS"},
	} {
		t.Setenv(client.EnvHost, tc.host)
		t.Setenv(client.EnvCAFile, tc.file)
		c, err := client.FromEnv()
		if err == nil {
			_, err = c.Version(t.Context())
			c.Close()
		}
		if api.CodeOf(err) != tc.code || tc.code != "" && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s with %q: %v", tc.host, tc.file, err)
		}
		if errors.Is(err, client.ErrNotRunning) {
			t.Errorf("%s with %q is no daemon: %v", tc.host, tc.file, err)
		}
	}
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	c, err := client.New(client.Options{Host: strings.Replace(plain.URL, "http:", "https:", 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Version(t.Context()); api.CodeOf(err) != api.CodeUnavailable || !strings.Contains(err.Error(), "does not speak TLS") {
		t.Errorf("a daemon without TLS: %v", err)
	}
}
