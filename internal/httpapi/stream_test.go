package httpapi_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// ws is a WebSocket without the manners of the client package.
type ws struct {
	h    *fixture
	conn *websocket.Conn
	ctx  context.Context
}

type message struct {
	text bool
	data []byte
}

func (h *fixture) dialWS(path string) *ws {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	h.t.Cleanup(cancel)
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", h.unix)
	}}
	h.t.Cleanup(tr.CloseIdleConnections)
	conn, _, err := websocket.Dial(ctx, "http://cloche"+path, &websocket.DialOptions{HTTPClient: &http.Client{Transport: tr}})
	if err != nil {
		h.t.Fatal(err)
	}
	conn.SetReadLimit(1 << 20)
	h.t.Cleanup(func() { conn.CloseNow() })
	return &ws{h, conn, ctx}
}

func (w *ws) text(s string) {
	w.h.t.Helper()
	if err := w.conn.Write(w.ctx, websocket.MessageText, []byte(s)); err != nil {
		w.h.t.Fatal(err)
	}
}

func (w *ws) binary(s string) {
	w.h.t.Helper()
	if err := w.conn.Write(w.ctx, websocket.MessageBinary, []byte(s)); err != nil {
		w.h.t.Fatal(err)
	}
}

// rest reads to the end.
func (w *ws) rest() (l []message) {
	w.h.t.Helper()
	for {
		kind, data, err := w.conn.Read(w.ctx)
		if err != nil {
			if w.ctx.Err() != nil {
				w.h.t.Fatal("the server did not close the stream")
			}
			return l
		}
		l = append(l, message{kind == websocket.MessageText, data})
	}
}

// last is the error that the stream ended with.
func (w *ws) last() *api.Error {
	w.h.t.Helper()
	l := w.rest()
	if len(l) == 0 {
		w.h.t.Fatal("the stream ended without a message")
	}
	var m api.ServerMessage
	if err := json.Unmarshal(l[len(l)-1].data, &m); err != nil || m.Error == nil {
		w.h.t.Fatalf("the last message is no error: %q", l[len(l)-1].data)
	}
	return m.Error
}

func TestStreamRefusals(t *testing.T) {
	h := open(t)
	if _, err := h.client().Create(t.Context(), api.SandboxSpec{Name: "box"}); err != nil {
		t.Fatal(err)
	}
	spec := api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: "p", Argv: []string{"cat"}}, OpenStdin: true}
	if _, err := h.client().StartProcess(t.Context(), "box", spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.client().RemoveProcess(context.Background(), "box", "p") })
	const exec, run = "/v1/sandboxes/box/exec/stream", "/v1/run/stream"
	const attach, hold = "/v1/sandboxes/box/processes/p/attach", "/v1/hold"
	for _, tc := range []struct {
		name, path string
		messages   []string
		code       api.Code
		field      string
	}{
		{"not JSON", exec, []string{"hello"}, api.CodeInvalid, "body"},
		{"empty", exec, []string{"{}"}, api.CodeInvalid, "exec"},
		{"run on exec", exec, []string{`{"run":{"spec":{},"exec":{}}}`}, api.CodeInvalid, "exec"},
		{"exec on run", run, []string{`{"exec":{}}`}, api.CodeInvalid, "run"},
		{"two things", exec, []string{`{"exec":{"argv":["cat"]},"close_stdin":true}`}, api.CodeInvalid, "body"},
		{"unknown field", exec, []string{`{"exec":{"argvs":["cat"]}}`}, api.CodeInvalid, "exec.argvs"},
		{"no such program", exec, []string{`{"exec":{"argv":["missing"]}}`}, api.CodeCommandNotFound, ""},
		{"no such sandbox", "/v1/sandboxes/none/exec/stream", []string{`{"exec":{"argv":["cat"]}}`}, api.CodeNotFound, ""},
		{"refused run", run, []string{`{"run":{"spec":{"profile":"forbidden"},"exec":{"argv":["cat"]}}}`}, api.CodeDenied, ""},
		{"too large", run, []string{`{"run":{"spec":{"name":"` + strings.Repeat("x", 1<<20) + `"},"exec":{}}}`}, api.CodeTooLarge, ""},
		{"second exec", exec, []string{`{"exec":{"argv":["cat"]}}`, `{"exec":{"argv":["cat"]}}`}, api.CodeInvalid, "body"},
		{"odd signal", exec, []string{`{"exec":{"argv":["cat"]}}`, `{"signal":"SIGKILL; rm"}`}, api.CodeInvalid, "signal"},
		{"exec on attach", attach, []string{`{"exec":{"argv":["cat"]}}`}, api.CodeInvalid, "attach"},
		{"two first things", attach, []string{`{"attach":{},"hold":{}}`}, api.CodeInvalid, "attach"},
		{"second attach", attach, []string{`{"attach":{}}`, `{"attach":{}}`}, api.CodeInvalid, "body"},
		{"end of input by a reader", attach, []string{`{"attach":{}}`, `{"close_stdin":true}`}, api.CodeInvalid, "write"},
		{"attach to nothing", "/v1/sandboxes/box/processes/q/attach", []string{`{"attach":{}}`}, api.CodeNotFound, ""},
		{"empty hold", hold, []string{`{}`}, api.CodeInvalid, "hold"},
		{"refused hold", hold, []string{`{"hold":{"profile":"forbidden"}}`}, api.CodeDenied, ""},
		{"more than a hold", hold, []string{`{"hold":{}}`, `{"close_stdin":true}`}, api.CodeInvalid, "body"},
		{"odd size", exec, []string{`{"exec":{"argv":["cat"]}}`, `{"resize":{"rows":-1,"cols":1}}`}, api.CodeInvalid, "resize.rows"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := *h
			h.t = t
			w := h.dialWS(tc.path)
			for _, m := range tc.messages {
				w.text(m)
			}
			if e := w.last(); e.Code != tc.code || e.Field != tc.field {
				t.Errorf("%s field %q, want %s field %q: %v", e.Code, e.Field, tc.code, tc.field, e)
			}
		})
	}
	t.Run("binary first", func(t *testing.T) {
		h := *h
		h.t = t
		w := h.dialWS(exec)
		if err := w.conn.Write(w.ctx, websocket.MessageBinary, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if e := w.last(); e.Code != api.CodeInvalid {
			t.Error(e)
		}
	})
	t.Run("foreign origin", func(t *testing.T) {
		resp, data := h.do("GET", exec, http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
			"Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="}, "Origin": {"http://cloche"}}, nil)
		if e := h.errorOf(resp, data); resp.StatusCode != 403 || e.Code != api.CodeDenied {
			t.Errorf("HTTP %d %v", resp.StatusCode, e)
		}
	})
}

func TestStreamOrder(t *testing.T) {
	h := open(t)
	w := h.dialWS("/v1/run/stream")
	w.text(`{"run":{"spec":{},"exec":{"argv":["both"]}}}`)
	var kinds []string
	var seq uint64
	for _, m := range w.rest() {
		if !m.text {
			if got := binary.BigEndian.Uint64(m.data[1:9]); got != seq {
				t.Errorf("sequence %d, want %d", got, seq)
			}
			seq++
			kinds = append(kinds, string('0'+rune(m.data[0]))+string(m.data[9:10]))
			continue
		}
		var s map[string]json.RawMessage
		if err := json.Unmarshal(m.data, &s); err != nil {
			t.Fatal(err)
		}
		for k := range s {
			kinds = append(kinds, k)
		}
	}
	if got, want := strings.Join(kinds, " "), "step step sandbox started 10 21 12 23 exit"; got != want {
		t.Errorf("messages %q, want %q", got, want)
	}
	h.await(func() bool { return h.core.Live() == 0 })
}

func TestExecStream(t *testing.T) {
	for _, listener := range []string{"unix", "tcp"} {
		t.Run(listener, func(t *testing.T) {
			h := open(t)
			c := h.client()
			if listener == "tcp" {
				c = h.tcpClient(token)
			}
			sb, err := c.Create(t.Context(), api.SandboxSpec{})
			if err != nil {
				t.Fatal(err)
			}
			start := func(argv ...string) *client.Stream {
				t.Helper()
				st, err := sb.ExecStream(t.Context(), api.ExecRequest{Argv: argv})
				if err != nil {
					t.Fatal(err)
				}
				return st
			}
			t.Run("stdin", func(t *testing.T) {
				st := start("cat")
				in := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // 2 MiB, more than any window
				wrote := make(chan error, 1)
				go func() {
					_, err := st.Write(in)
					wrote <- errors.Join(err, st.CloseWrite())
				}()
				var out bytes.Buffer
				res, err := st.Copy(&out, nil)
				if err != nil || !res.OK() {
					t.Fatalf("%v %v", res, err)
				}
				if err := <-wrote; err != nil {
					t.Error(err)
				}
				if !bytes.Equal(out.Bytes(), in) {
					t.Errorf("%d bytes back of %d", out.Len(), len(in))
				}
				if _, err := st.Recv(); !errors.Is(err, io.EOF) {
					t.Errorf("after the exit: %v, want EOF", err)
				}
			})
			t.Run("signal", func(t *testing.T) {
				st := start("sleep")
				if ev, err := st.Recv(); err != nil || string(ev.Data) != "asleep\n" {
					t.Fatalf("%v %v", ev, err)
				}
				if err := st.Signal("TERM"); err != nil {
					t.Fatal(err)
				}
				if res, err := st.Copy(nil, nil); err != nil || res.Signal != "TERM" || res.ExitCode != nil {
					t.Errorf("%v %v", res, err)
				}
			})
			t.Run("signal overtakes stdin", func(t *testing.T) {
				st := start("sleep") // which never reads
				if _, err := st.Write(make([]byte, 512<<10)); err != nil {
					t.Fatal(err)
				}
				if err := st.Signal("INT"); err != nil {
					t.Fatal(err)
				}
				if res, err := st.Copy(nil, nil); err != nil || res.Signal != "INT" {
					t.Errorf("%v %v", res, err)
				}
			})
			t.Run("resize", func(t *testing.T) {
				st := start("size")
				if err := st.Resize(40, 132); err != nil {
					t.Fatal(err)
				}
				var out bytes.Buffer
				if _, err := st.Copy(&out, nil); err != nil || out.String() != "40x132\n" {
					t.Errorf("%q %v", out.String(), err)
				}
			})
			t.Run("client death", func(t *testing.T) {
				st := start("sleep")
				id := st.ExecID()
				st.Close()
				ps, err := sb.Processes(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range ps {
					if p.ExecID == id && !p.Running {
						t.Error("the program ended with its stream")
					}
				}
			})
		})
	}
}

// TestSlowClient: a client that does not read holds the program up, and is not
// buffered for.
func TestSlowClient(t *testing.T) {
	h := open(t)
	w := h.dialWS("/v1/run/stream")
	w.text(`{"run":{"spec":{},"exec":{"argv":["yes"]}}}`)
	// The program writes frames of 32 KiB without end. It blocks when the socket's
	// buffers are full; that it does is seen by it having been counted as running
	// while what it sent stops growing.
	h.await(func() bool { return h.core.Running() == 1 })
	var before int64 = -1
	for now := h.core.Sent(); now != before; now = h.core.Sent() {
		before = now
		// Let it write for as long as a frame takes a hundred times over.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		<-ctx.Done()
		cancel()
	}
	if frames := before; frames*32<<10 > 16<<20 {
		t.Errorf("%d frames of 32 KiB were taken from the program for a client that read none", frames)
	}
	// It goes on when the client reads.
	seen := 0
	for seen < 64 {
		_, data, err := w.conn.Read(w.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 9 && data[0] == api.FrameStdout {
			seen++
		}
	}
	w.conn.CloseNow()
	h.await(func() bool { return h.core.Live() == 0 && h.core.Running() == 0 })
}
