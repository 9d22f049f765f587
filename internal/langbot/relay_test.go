//go:build linux

package langbot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// fakeProcess is a process that answers each line of its input with the same line.
type fakeProcess struct {
	mu     sync.Mutex
	said   []byte
	exit   *int
	moved  chan struct{} // closed when anything changed
	stdin  []byte
	stderr []byte
}

func newFakeProcess() *fakeProcess { return &fakeProcess{moved: make(chan struct{})} }

func (p *fakeProcess) change(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn()
	close(p.moved)
	p.moved = make(chan struct{})
}

func (p *fakeProcess) say(text string) { p.change(func() { p.said = append(p.said, text...) }) }
func (p *fakeProcess) end(code int)    { p.change(func() { p.exit = &code }) }

// fakeAttach is one client at it.
type fakeAttach struct {
	p    *fakeProcess
	at   int
	once sync.Once
	left chan struct{}
}

func (p *fakeProcess) attach(since *int64) *fakeAttach {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := &fakeAttach{p: p, at: len(p.said), left: make(chan struct{})}
	if since != nil {
		a.at = int(*since)
	}
	return a
}

func (a *fakeAttach) Recv() (core.AttachEvent, error) {
	for {
		a.p.mu.Lock()
		data, at, exit, moved := a.p.said[a.at:], a.at, a.p.exit, a.p.moved
		a.at = len(a.p.said)
		a.p.mu.Unlock()
		select {
		case <-a.left:
			return core.AttachEvent{}, io.EOF
		default:
		}
		if len(data) > 0 {
			return core.AttachEvent{Data: data, Position: int64(at), Stream: api.Stdout}, nil
		}
		if exit != nil {
			return core.AttachEvent{Exit: &api.Result{ExitCode: exit}}, nil
		}
		select {
		case <-moved:
		case <-a.left:
			return core.AttachEvent{}, io.EOF
		}
	}
}

func (a *fakeAttach) Write(b []byte) error {
	a.p.change(func() { a.p.stdin, a.p.said = append(a.p.stdin, b...), append(a.p.said, b...) })
	return nil
}

func (a *fakeAttach) Close() error {
	a.once.Do(func() { close(a.left) })
	return nil
}

// relayed is an API server with a session "s" and a process "p" in it.
func relayed(t *testing.T) (*server, *placement, *fakeProcess) {
	t.Helper()
	d := newServer(t, nil)
	place := &placement{"inst-1", "ws-1", 1}
	d.must("box_create_session", place, obj{"session_id": "s"})
	d.must("box_start_managed_process", place, obj{"session_id": "s", "spec": obj{"process_id": "p", "command": "x"}})
	return d, place, d.core.processes()[0]
}

// relay is one client of the relay at a path, with the headers of a placement.
func (d *server) relay(place *placement, path string, more ...string) (*websocket.Conn, *http.Response, error) {
	h := d.header(append([]string{headerWorkspace, place.Workspace, headerGeneration, fmt.Sprint(place.Generation)}, more...)...)
	conn, r, err := websocket.Dial(d.t.Context(), d.url+path, &websocket.DialOptions{HTTPHeader: h, Subprotocols: []string{"mcp"}}) //nolint:bodyclose // read and closed where it is used
	if err == nil {
		conn.SetReadLimit(maxFrame + 1)
		d.t.Cleanup(func() { _ = conn.CloseNow() })
	}
	return conn, r, err
}

func (p placement) relayPath(session, process string) string {
	return "/v1/sessions/" + p.runtime() + "-" + session + "/managed-process/" + process + "/ws"
}

// attached is a client that the process has.
func (d *server) attached(place *placement) *websocket.Conn {
	d.t.Helper()
	conn, _, err := d.relay(place, place.relayPath("s", "p")) //nolint:bodyclose // the library's own
	if err != nil {
		d.t.Fatal(err)
	}
	for d.must("box_get_managed_process", place, obj{"session_id": "s", "process_id": "p"})["attached"] != true { //nolint:revive // until it is
	}
	return conn
}

// line is the next message, within a minute.
func line(t *testing.T, conn *websocket.Conn) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, data, err := conn.Read(ctx)
	if err != nil {
		t.Fatalf("waiting for a line: %v", err)
	}
	return string(data)
}

// closing is how a connection was closed, within a minute.
func closing(t *testing.T, conn *websocket.Conn) websocket.CloseError {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		_, _, err := conn.Read(ctx)
		if err == nil {
			continue
		}
		e, ok := errors.AsType[websocket.CloseError](err)
		if !ok {
			t.Fatalf("it was not closed with a reason: %v", err)
		}
		return e
	}
}

// Each thing that is wrong with a relay is answered by its own status, in one order,
// before the connection becomes a WebSocket.
func TestWhatARelayIsRefusedFor(t *testing.T) {
	d, place, p := relayed(t)
	d.must("box_start_managed_process", place, obj{"session_id": "s", "spec": obj{"process_id": "ended", "command": "x"}})
	other := &placement{"inst-1", "ws-2", 1}
	d.must("box_status", other, obj{})
	d.must("box_create_session", other, obj{"session_id": "s"})
	d.core.processes()[1].end(3)
	for _, c := range []struct {
		name, path string
		place      *placement
		more       []string
		status     int
		class      string
	}{
		{"another instance", place.relayPath("s", "p"), place, []string{headerInstance, "inst-2"}, 401, ""},
		{"no workspace", place.relayPath("s", "p"), place, []string{headerWorkspace, ""}, 401, ""},
		{"a workspace that is too long", place.relayPath("s", "p"), place, []string{headerWorkspace, strings.Repeat("w", 257)}, 401, ""},
		{"a generation with a zero before it", place.relayPath("s", "p"), place, []string{headerGeneration, "01"}, 401, ""},
		{"generation 0", place.relayPath("s", "p"), place, []string{headerGeneration, "0"}, 401, ""},
		{"an older generation", place.relayPath("s", "p"), place, []string{headerGeneration, "2"}, 401, ""},
		{"another workspace's session", place.relayPath("s", "p"), other, nil, 401, ""},
		{"a session that is no one's", "/v1/sessions/s/managed-process/p/ws", place, nil, 401, ""},
		{"no such session", place.relayPath("none", "p"), place, nil, 400, "BoxSessionNotFoundError"},
		{"no such process", place.relayPath("s", "none"), place, nil, 400, "BoxManagedProcessNotFoundError"},
		{"the usual process, which there is not", "/v1/sessions/" + place.runtime() + "-s/managed-process/ws", place, nil, 400, "BoxManagedProcessNotFoundError"},
		{"a process that ended", place.relayPath("s", "ended"), place, nil, 400, "BoxManagedProcessConflictError"},
	} {
		_, r, err := d.relay(c.place, c.path, c.more...)
		if err == nil || r == nil {
			t.Errorf("%s: it is served: %v", c.name, err)
			continue
		}
		body, _ := io.ReadAll(r.Body)
		var answer struct {
			Error struct{ Code, Message string }
		}
		_ = json.Unmarshal(body, &answer)
		if r.StatusCode != c.status || answer.Error.Code != c.class || c.status == 401 && string(body) != "Unauthorized" || c.status == 400 && answer.Error.Message == "" {
			t.Errorf("%s: %d %s, want %d %s", c.name, r.StatusCode, body, c.status, c.class)
		}
	}
	if r := d.must("box_get_managed_process", place, obj{"session_id": "s", "process_id": "ended"}); r["status"] != "exited" || r["exit_code"] != 3.0 || r["exited_at"] == nil {
		t.Errorf("%v", r)
	}
	p.change(func() { p.exit = new(-9) }) // what a signal is told as
	if r := d.must("box_get_managed_process", place, obj{"session_id": "s", "process_id": "p"}); r["exit_code"] != -9.0 {
		t.Errorf("%v", r)
	}
}

func TestARelayCarriesLines(t *testing.T) {
	d, place, p := relayed(t)
	conn := d.attached(place)
	if conn.Subprotocol() != "mcp" {
		t.Errorf("the subprotocol is %q", conn.Subprotocol())
	}
	if err := conn.Write(t.Context(), websocket.MessageBinary, []byte("binary")); err != nil {
		t.Fatal(err)
	}
	if err := conn.Write(t.Context(), websocket.MessageText, []byte("ü")); err != nil {
		t.Fatal(err)
	}
	if got := line(t, conn); got != "ü" {
		t.Errorf("the first line is %q: a binary message is no input", got)
	}
	if r := d.must("box_get_managed_process", place, obj{"session_id": "s", "process_id": "p"}); r["attached"] != true || r["status"] != "running" {
		t.Errorf("%v", r)
	}
	// A character in two parts, two lines at once, and one larger than any read.
	large := strings.Repeat("x", 1<<20)
	for _, part := range []string{"\xc3", "\xa9\na\nb\n", large, "\n"} {
		p.say(part)
	}
	for _, want := range []string{"é", "a", "b", large} {
		if got := line(t, conn); got != want {
			t.Errorf("a line of %d bytes, want %d", len(got), len(want))
		}
	}
	// Half a line is not sent, and a message without a reader waits.
	p.say("ha")
	if err := conn.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Log(err)
	}
	p.say("lf\nmeanwhile\n")
	conn = d.attached(place)
	for _, want := range []string{"half", "meanwhile"} {
		if got := line(t, conn); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	p.say("the rest")
	p.end(0)
	if got := line(t, conn); got != "the rest" {
		t.Errorf("%q", got)
	}
	if e := closing(t, conn); e.Code != websocket.StatusNormalClosure {
		t.Errorf("at the end of the process: %v", e)
	}
}

// The newest client has the process. A half-dead one does not keep it.
func TestARelayIsTakenOver(t *testing.T) {
	d, place, p := relayed(t)
	first := d.attached(place)
	second := d.attached(place)
	if e := closing(t, first); e.Code != websocket.StatusPolicyViolation || !strings.Contains(e.Reason, "took over") {
		t.Errorf("%v", e)
	}
	p.say("now\n")
	if got := line(t, second); got != "now" {
		t.Errorf("%q", got)
	}
}

// A relay ends with what it is at, and says nothing of the process's end to it.
func TestWhatEndsARelay(t *testing.T) {
	for name, end := range map[string]func(*server, *placement){
		"the session is deleted": func(d *server, p *placement) { d.must("box_delete_session", p, obj{"session_id": "s"}) },
		"the process is stopped": func(d *server, p *placement) {
			d.must("box_stop_managed_process", p, obj{"session_id": "s", "process_id": "p"})
		},
		"a newer generation": func(d *server, p *placement) { d.must("box_status", &placement{p.Instance, p.Workspace, 2}, obj{}) },
		"another takes its place": func(d *server, p *placement) {
			d.must("box_start_managed_process", p, obj{"session_id": "s", "spec": obj{"process_id": "p", "command": "y"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, place, _ := relayed(t)
			conn := d.attached(place)
			end(d, place)
			if e := closing(t, conn); e.Code != websocket.StatusNormalClosure {
				t.Errorf("%v", e)
			}
		})
	}
	t.Run("a line over 16 MiB", func(t *testing.T) {
		d, place, p := relayed(t)
		conn := d.attached(place)
		p.say(strings.Repeat("x", maxFrame+1))
		if e := closing(t, conn); e.Code != websocket.StatusMessageTooBig {
			t.Errorf("%v", e)
		}
	})
	t.Run("a message of 17 MiB", func(t *testing.T) {
		d, place, p := relayed(t)
		conn := d.attached(place)
		_ = conn.Write(t.Context(), websocket.MessageText, []byte(strings.Repeat("x", 17<<20)))
		if e := closing(t, conn); e.Code != websocket.StatusMessageTooBig {
			t.Errorf("%v", e)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.stdin) != 0 {
			t.Errorf("%d bytes of it reached the process", len(p.stdin))
		}
	})
}

// A client that answers no ping is missed within relayPing and relayPong.
func TestAClientThatIsGoneIsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		served := make(chan *websocket.Conn, 1)
		over := make(chan struct{})
		h := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if conn, err := websocket.Accept(w, r, nil); err == nil {
				served <- conn
				<-over
			}
		})}
		ln := &oneConn{conn: server, end: make(chan struct{})}
		go func() { _ = h.Serve(ln) }()
		dial := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return client, nil }}}
		theirs, _, err := websocket.Dial(t.Context(), "http://box/", &websocket.DialOptions{HTTPClient: dial}) //nolint:bodyclose // the library's own
		if err != nil {
			t.Fatal(err)
		}
		conn := <-served
		reading, stop := context.WithCancel(t.Context())
		go func() { _, _, _ = conn.Read(reading) }() // as the relay does
		answering, still := context.WithCancel(t.Context())
		go func() { _, _, _ = theirs.Read(answering) }()
		ended := make(chan time.Duration, 1)
		began := time.Now()
		go func() { heartbeat(t.Context(), conn); ended <- time.Since(began) }()
		time.Sleep(10 * relayPing)
		synctest.Wait()
		if len(ended) != 0 {
			t.Fatal("a client that answers is taken for one that is gone")
		}
		still()
		_ = theirs.CloseNow()
		if took := <-ended; took > 11*relayPing+relayPong {
			t.Errorf("it took %v", took)
		}
		stop()
		close(over)
		_ = conn.CloseNow()
		_ = h.Close()
	})
}

// oneConn is a listener with one connection.
type oneConn struct {
	conn net.Conn
	once sync.Once
	end  chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.end
	return nil, net.ErrClosed
}
func (l *oneConn) Close() error   { l.once.Do(func() { close(l.end) }); return nil }
func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "box"} }
