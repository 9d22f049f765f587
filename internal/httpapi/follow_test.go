package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/httpapi"
	"github.com/cloche-dev/cloche/test/mockcore"
)

// inside is a server in a synctest bubble, with a sandbox "box" that has the
// processes "cat", whose input is open, and "done".
type inside struct {
	t      *testing.T
	core   *mockcore.Core
	server *httpapi.Server
	ln     *pipeListener
	client *client.Client
}

// bubble runs fn where time passes when nothing happens. The bubble itself fails
// when a goroutine of the server is left after its shutdown.
func bubble(t *testing.T, fn func(t *testing.T, h *inside)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &inside{t: t, core: mockcore.New(), ln: &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}}
		var err error
		if h.server, err = httpapi.New(httpapi.Options{Core: h.core}); err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- h.server.ServeAs(h.ln, core.Caller{Tenant: "t", UID: -1}) }()
		h.client, err = client.New(client.Options{Host: "http://cloche", Dial: h.ln.dial, NoReconnect: true})
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		if _, err := h.client.Create(ctx, api.SandboxSpec{Name: "box"}); err != nil {
			t.Fatal(err)
		}
		for id, argv := range map[string][]string{"cat": {"cat"}, "done": {"echo", "all of it"}} {
			spec := api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: id, Argv: argv}, OpenStdin: true}
			if _, err := h.client.StartProcess(ctx, "box", spec); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := h.client.WaitProcess(ctx, "box", "done", api.WaitRequest{}); err != nil {
			t.Fatal(err)
		}
		fn(t, h)
		h.client.Close()
		if err := h.server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		for _, sb := range []string{"box"} {
			_ = h.core.Remove(context.Background(), core.Caller{Operator: true}, sb)
		}
	})
}

// raw sends one request on a connection of its own, whose answer is read
// only by the caller.
func (h *inside) raw(path string, header ...string) net.Conn {
	h.t.Helper()
	conn, err := h.ln.dial(h.t.Context(), "", "")
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: cloche\r\n%s\r\n", path, strings.Join(append(header, ""), "\r\n")); err != nil {
		h.t.Fatal(err)
	}
	return conn
}

// write gives "cat" input, which is its output.
func (h *inside) write(n int) {
	h.t.Helper()
	if _, err := h.client.WriteStdin(h.t.Context(), "box", "cat", nil, bytes.NewReader(make([]byte, n)), false); err != nil {
		h.t.Fatal(err)
	}
}

// TestReadersThatDoNotRead: whatever is followed ends within a bounded time when
// its reader takes nothing, and holds up neither the process nor other readers.
func TestReadersThatDoNotRead(t *testing.T) {
	for _, path := range []string{
		"/v1/events", "/v1/sandboxes/box/logs?follow=true", "/v1/sandboxes/box/logs?follow=true&exec_id=cat", "/v1/events?follow=false",
	} {
		t.Run(path, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *inside) {
				conn := h.raw(path)
				began := time.Now()
				h.write(1 << 20)
				if took := time.Since(began); took > time.Second {
					t.Errorf("the writer was held up for %v", took)
				}
				synctest.Wait()
				time.Sleep(6 * time.Minute)
				synctest.Wait()
				// The server has left: what is read ends, with less than everything.
				data, _ := io.ReadAll(conn)
				if len(data) > 4096 {
					t.Errorf("%d bytes were there for a reader that had left", len(data))
				}
				conn.Close()
			})
		})
	}
}

func TestAttachThatDoesNotRead(t *testing.T) {
	bubble(t, func(t *testing.T, h *inside) {
		ws := h.socket("/v1/sandboxes/box/processes/cat/attach", `{"attach":{"exclusive":true}}`)
		if _, _, err := ws.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := h.client.Attach(t.Context(), "box", "cat", api.AttachRequest{Write: true}); !errors.Is(err, api.ErrConflict) {
			t.Errorf("a second writer: %v", err)
		}
		if _, err := h.client.WriteStdin(t.Context(), "box", "cat", nil, strings.NewReader("x"), false); !errors.Is(err, api.ErrConflict) {
			t.Errorf("another's input: %v", err)
		}
		if err := ws.Write(t.Context(), websocket.MessageBinary, make([]byte, 200<<10)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		// Its place is free.
		a, err := h.client.Attach(t.Context(), "box", "cat", api.AttachRequest{Exclusive: true})
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
		ws.CloseNow()
	})
}

// socket opens a WebSocket without the manners of the client package.
func (h *inside) socket(path, first string) *websocket.Conn {
	h.t.Helper()
	tr := &http.Transport{DialContext: h.ln.dial}
	ws, _, err := websocket.Dial(h.t.Context(), "http://cloche"+path, &websocket.DialOptions{HTTPClient: &http.Client{Transport: tr}})
	if err != nil {
		h.t.Fatal(err)
	}
	tr.CloseIdleConnections()
	if err := ws.Write(h.t.Context(), websocket.MessageText, []byte(first)); err != nil {
		h.t.Fatal(err)
	}
	return ws
}

// TestHold: the sandbox goes with its connection: when it is closed, when its
// client is dead and does not say so, and with the server.
func TestHold(t *testing.T) {
	t.Run("closed", func(t *testing.T) {
		bubble(t, func(t *testing.T, h *inside) {
			held, err := h.client.Hold(t.Context(), api.SandboxSpec{Name: "mine"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour) // a quiet one lives
			if _, err := held.Exec(t.Context(), "true"); err != nil {
				t.Fatal(err)
			}
			held.Close()
			synctest.Wait()
			if n := h.core.Live(); n != 1 {
				t.Errorf("%d sandboxes, want the 1 that is not held", n)
			}
			if err := held.Err(); err != nil {
				t.Errorf("after close: %v", err)
			}
		})
	})
	t.Run("dead", func(t *testing.T) {
		bubble(t, func(t *testing.T, h *inside) {
			ws := h.socket("/v1/hold", `{"hold":{"name":"mine"}}`)
			for range 3 { // two steps and the sandbox
				if _, _, err := ws.Read(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(31 * time.Second) // it answers no ping
			synctest.Wait()
			if n := h.core.Live(); n != 1 {
				t.Errorf("%d sandboxes half a minute after their holder died, want 1", n)
			}
			ws.CloseNow()
		})
	})
	t.Run("shutdown", func(t *testing.T) {
		bubble(t, func(t *testing.T, h *inside) {
			held, err := h.client.Hold(t.Context(), api.SandboxSpec{Name: "mine"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := h.server.Shutdown(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-held.Done()
			if n := h.core.Live(); n != 1 || api.CodeOf(held.Err()) != api.CodeUnavailable {
				t.Errorf("%d sandboxes, %v", n, held.Err())
			}
			held.Close()
		})
	})
}

// TestShutdownEndsFollowers: at once, and with an error that says to come back.
func TestShutdownEndsFollowers(t *testing.T) {
	bubble(t, func(t *testing.T, h *inside) {
		ctx := t.Context()
		got := make(chan error, 4)
		go func() {
			got <- h.client.Events(ctx, api.EventOptions{Follow: true}, func(api.Event) error { return nil })
		}()
		go func() {
			got <- h.client.Logs(ctx, "box", api.LogOptions{Follow: true}, func(api.LogEntry) error { return nil })
		}()
		go func() {
			_, err := h.client.WaitProcess(ctx, "box", "cat", api.WaitRequest{})
			got <- err
		}()
		a, err := h.client.Attach(ctx, "box", "cat", api.AttachRequest{})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := a.Recv()
			got <- err
		}()
		time.Sleep(2 * time.Second)
		began := time.Now()
		if err := h.server.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			if err := <-got; api.CodeOf(err) != api.CodeUnavailable {
				t.Errorf("%v", err)
			}
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		a.Close()
	})
}

// TestEventStream looks at the bytes.
func TestEventStream(t *testing.T) {
	bubble(t, func(t *testing.T, h *inside) {
		conn := h.raw("/v1/events?after=0&kind=sandbox.created&kind=sandbox.paused&sandbox=box")
		defer conn.Close()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if kind := resp.Header.Get("Content-Type"); kind != "text/event-stream" || resp.StatusCode != 200 {
			t.Fatalf("HTTP %d %s", resp.StatusCode, kind)
		}
		sc := bufio.NewScanner(resp.Body)
		line := func() string {
			t.Helper()
			if !sc.Scan() {
				t.Fatal("the stream ended")
			}
			return sc.Text()
		}
		if a, b := line(), line(); a != "id: 1" || b != "event: sandbox.created" {
			t.Errorf("%q %q", a, b)
		}
		data, _ := strings.CutPrefix(line(), "data: ")
		var ev api.Event
		if err := json.Unmarshal([]byte(data), &ev); err != nil || ev.Name != "box" || line() != "" {
			t.Errorf("%q %v", data, err)
		}
		began := time.Now()
		for i := range 3 { // quiet, and not dead
			if a, b := line(), line(); a != ":" || b != "" {
				t.Errorf("%q %q", a, b)
			}
			if took := time.Since(began); took > time.Second+time.Duration(i)*15*time.Second {
				t.Errorf("comment %d came after %v", i, took)
			}
		}
		if _, err := h.client.Pause(t.Context(), "box"); err != nil {
			t.Fatal(err)
		}
		if a, b := line(), line(); !strings.HasPrefix(a, "id: ") || b != "event: sandbox.paused" {
			t.Errorf("%q %q", a, b)
		}
	})
}

// TestEventCursors: Last-Event-ID wins, and a reader of what comes next is told
// where that is.
func TestEventCursors(t *testing.T) {
	h := open(t)
	ctx := t.Context()
	for _, name := range []string{"a", "b", "c"} {
		if _, err := h.client().Create(ctx, api.SandboxSpec{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		query, last, want string
		status            int
	}{
		{"follow=false", "", "id: 1 id: 2 id: 3", 200},
		{"follow=false&after=1", "", "id: 2 id: 3", 200},
		{"follow=false&after=1", "2", "id: 3", 200},
		{"follow=false&after=-1", "", "id: 3", 200},
		{"follow=false&after=-1&sandbox=b", "", "id: 2", 200},
		{"follow=false&kind=process.exited", "", "", 200},
		{"follow=false&kind=nonsense", "", "", 400},
		{"follow=maybe", "", "", 400},
		{"after=x", "", "", 400},
		{"follow=false", "x", "", 400},
		{"follow=false", "-1", "", 400},
		{"sandbox=a/b", "", "", 404},
		{"sandbox=none", "", "", 404},
		{"sandbox=none&follow=false", "", "", 404},
		{"sandbox=none&after=-1", "", "", 404},
		{"since=1", "", "", 400},
	} {
		hd := http.Header{}
		if tc.last != "" {
			hd.Set("Last-Event-ID", tc.last)
		}
		resp, data := h.do("GET", "/v1/events?"+tc.query, hd, nil)
		var ids []string
		for l := range strings.Lines(string(data)) {
			if strings.HasPrefix(l, "id:") {
				ids = append(ids, strings.TrimSpace(l))
			}
		}
		if got := strings.Join(ids, " "); resp.StatusCode != tc.status || got != tc.want {
			t.Errorf("%s %q: HTTP %d %q, want %d %q", tc.query, tc.last, resp.StatusCode, got, tc.status, tc.want)
		}
	}
}
