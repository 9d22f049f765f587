package endpoint_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
)

// TestWebSocket: messages of every size come back as they were sent, and so does the
// end.
func TestWebSocket(t *testing.T) {
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer ws.CloseNow()
		ws.SetReadLimit(-1)
		for {
			kind, data, err := ws.Read(r.Context())
			if err != nil || ws.Write(r.Context(), kind, data) != nil {
				return
			}
		}
	})
	in := open(t, api.Endpoint{Target: srv.URL}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, in.base, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	ws.SetReadLimit(-1)
	for _, size := range []int{0, 1, 125, 126, 65535, 65536, 1 << 20, 5 << 20} {
		sent := bytes.Repeat([]byte("\x00\xffa\n"), size/4+1)[:size]
		if err := ws.Write(ctx, websocket.MessageBinary, sent); err != nil {
			t.Fatal(err)
		}
		if kind, got, err := ws.Read(ctx); err != nil || kind != websocket.MessageBinary || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes came back as %d: %v", size, len(got), err)
		}
	}
	if err := ws.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	until(t, func() bool { return in.Status().Counters.Active == 0 })
}

// TestOnlyWebSocketsUpgrade: no other change of protocol reaches a target that takes any,
// and what belongs to one hop ends at the endpoint.
func TestOnlyWebSocketsUpgrade(t *testing.T) {
	var mu sync.Mutex
	var got http.Header
	srv := target(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = r.Header
		if up := r.Header.Get("Upgrade"); up != "" {
			c, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", up)
			rw.Flush()
		}
	})
	in := open(t, api.Endpoint{Target: srv.URL}, nil)
	const websocketHead = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
	for _, c := range []struct {
		name, line, head string
		status           int
		code             string
	}{
		{"a WebSocket", "GET / HTTP/1.1", websocketHead, 101, ""},
		{"a WebSocket in other letters", "GET / HTTP/1.1", "Connection: keep-alive, upgrade\r\nUpgrade: WebSocket\r\nContent-Length: 0\r\n", 101, ""},
		{"h2c", "GET / HTTP/1.1", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n", 200, ""},
		{"h2c that Connection does not name", "GET / HTTP/1.1", "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n", 200, ""},
		{"h2c after a WebSocket", "GET / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n", 200, ""},
		{"h2c beside a WebSocket", "GET / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n", 200, ""},
		{"TLS", "OPTIONS / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: TLS/1.2\r\n", 200, ""},
		{"a protocol of the target's own", "POST / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 1\r\n", 200, ""},
		{"HTTP/1.0", "GET / HTTP/1.0", websocketHead, 200, ""},
		{"a WebSocket by POST", "POST / HTTP/1.1", websocketHead, 400, "malformed_request"},
		{"a WebSocket with a length", "GET / HTTP/1.1", websocketHead + "Content-Length: 1\r\n", 400, "malformed_request"},
		{"a WebSocket with chunks", "GET / HTTP/1.1", websocketHead + "Transfer-Encoding: chunked\r\n", 400, "malformed_request"},
		{"fields of one hop", "GET / HTTP/1.1", "Connection: X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nProxy-Else: 1\r\nTE: gzip, trailers\r\n", 200, ""},
	} {
		mu.Lock()
		got = nil
		mu.Unlock()
		// The byte after the head is the body of some and nothing to the others.
		answer := in.say(t, c.line+"\r\nHost: "+in.addr+"\r\n"+c.head+"Connection: close\r\n\r\n0\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(answer)), nil)
		if err != nil {
			t.Errorf("%s: %q, %v", c.name, answer, err)
			continue
		}
		if resp.StatusCode != c.status || resp.Header.Get("X-Bridge-Error") != c.code {
			t.Errorf("%s: %q, want %d %s", c.name, answer, c.status, c.code)
		}
		mu.Lock()
		if reached := got != nil; reached != (c.code == "") {
			t.Errorf("%s: it reached the target: %v", c.name, reached)
		}
		for _, name := range []string{"Http2-Settings", "X-Mine", "Keep-Alive", "Proxy-Else"} {
			if got.Get(name) != "" {
				t.Errorf("%s: the target got %s", c.name, name)
			}
		}
		if up := got["Upgrade"]; c.status == 101 && !slices.Equal(up, []string{"websocket"}) || c.status != 101 && up != nil {
			t.Errorf("%s: the target got Upgrade %q", c.name, up)
		}
		if te := got.Get("Te"); te != "" && te != "trailers" {
			t.Errorf("%s: the target got TE %q", c.name, te)
		}
		mu.Unlock()
		until(t, func() bool { return in.Status().Counters.Active == 0 })
		if x := in.last(t); x.Status != c.status && c.status != 101 || x.Code != c.code {
			t.Errorf("%s: on record %+v", c.name, x)
		}
	}
}

// TestFilterReadsWhatTheTargetGets: Connection cannot take the type away by which a body
// was looked into.
func TestFilterReadsWhatTheTargetGets(t *testing.T) {
	types := make(chan []string, 1)
	srv := target(t, func(_ http.ResponseWriter, r *http.Request) { types <- r.Header["Content-Type"] })
	in := open(t, api.Endpoint{Target: srv.URL, HTTP: &api.EndpointHTTP{BodyFilter: api.BodyFilterStrip}}, nil)
	answer := in.say(t, "POST /v1/chat/completions HTTP/1.1\r\nHost: "+in.addr+"\r\nContent-Type: text/plain\r\nConnection: close, Content-Type\r\nContent-Length: 2\r\n\r\n{}")
	if !strings.HasPrefix(answer, "HTTP/1.1 200 ") {
		t.Fatalf("%q", answer)
	}
	if got := <-types; !slices.Equal(got, []string{"application/json"}) {
		t.Errorf("the target got the type %q", got)
	}
}

// TestSwitchUnasked: a target that changes the protocol where nothing asked for that is not
// connected to the sandbox.
func TestSwitchUnasked(t *testing.T) {
	for _, c := range []struct{ name, asks, says string }{
		{"nothing was asked", "", "Connection: Upgrade\r\nUpgrade: websocket\r\n"},
		{"nothing is named", "", ""},
		{"h2c was asked", "Connection: Upgrade\r\nUpgrade: h2c\r\n", "Connection: Upgrade\r\nUpgrade: h2c\r\n"},
		{"another one", "Connection: Upgrade\r\nUpgrade: websocket\r\n", "Connection: Upgrade\r\nUpgrade: h2c\r\n"},
		{"one beside it", "Connection: Upgrade\r\nUpgrade: websocket\r\n", "Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n"},
	} {
		srv := target(t, func(w http.ResponseWriter, _ *http.Request) {
			conn, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\n%s\r\ntunnel", c.says)
			rw.Flush()
		})
		in := open(t, api.Endpoint{Target: srv.URL}, nil)
		answer := in.say(t, "GET / HTTP/1.1\r\nHost: "+in.addr+"\r\n"+c.asks+"Connection: close\r\n\r\n")
		if !strings.HasPrefix(answer, "HTTP/1.1 502 ") || !strings.Contains(answer, "X-Bridge-Error: target_protocol\r\n") || strings.Contains(answer, "tunnel") {
			t.Errorf("%s: %q", c.name, answer)
		}
		until(t, func() bool { return in.Status().Counters.Active == 0 })
		if x := in.last(t); x.Code != "target_protocol" || x.Outcome != "upstream_error" || x.Upstream != 101 || x.Status != 502 {
			t.Errorf("%s: on record %+v", c.name, x)
		}
		if st := in.State(); st == api.EndpointDegraded {
			t.Errorf("%s: the endpoint is %s", c.name, st)
		}
	}
}

// hypercorn starts that server, unmodified, with an application that tells at /seen what
// it was asked for, and returns its address.
func hypercorn(t *testing.T) string {
	t.Helper()
	packages := os.Getenv("CLOCHE_TEST_PYPI")
	if _, err := os.Stat(filepath.Join(packages, "hypercorn", "__init__.py")); packages == "" || err != nil {
		t.Skip("needs the hypercorn package of PyPI, in the directory that CLOCHE_TEST_PYPI names")
	}
	const app = `
seen = []

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        return await send({"type": "lifespan.shutdown.complete"})
    if scope["path"] != "/seen":
        who = [v.decode() for k, v in scope["headers"] if k == b"x-sandbox-id"]
        seen.append(" ".join([scope.get("method", "WS"), scope["path"], scope["http_version"], *who]))
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (m := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": m["text"]})
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": "\n".join(seen).encode()})
`
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "seen.py"), []byte(app), 0o600); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("/usr/bin/python3", "-m", "hypercorn", "--workers", "0", "--bind", "fd://3", "seen:app") // no process but itself
	cmd.WaitDelay = time.Minute
	cmd.Dir, cmd.Env, cmd.ExtraFiles = dir, append(os.Environ(), "PYTHONPATH="+packages+":"+dir), []*os.File{f}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("hypercorn said %s", said.String())
		}
	})
	return ln.Addr().String()
}

// sayHTTP2 asks for h2c in a request of HTTP/1.1, sends a request of HTTP/2 behind it, and
// returns the first line of the answer. wait is called while the connection is open.
func sayHTTP2(t *testing.T, addr, method, path string, wait func(c net.Conn)) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	frame := func(kind, flags byte, stream uint32, payload []byte) []byte {
		out := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
		return append(binary.BigEndian.AppendUint32(append(out, flags), stream), payload...)
	}
	var fields []byte // literal, and in no table
	for _, f := range [][2]string{{":method", method}, {":path", path}, {":scheme", "http"}, {":authority", addr}, {"x-sandbox-id", "forged"}} {
		fields = append(append(append(fields, 0, byte(len(f[0]))), f[0]...), byte(len(f[1])))
		fields = append(fields, f[1]...)
	}
	fmt.Fprintf(c, "GET /asked HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n", addr)
	r := bufio.NewReader(c)
	first, err := r.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	c.Write(frame(4, 0, 0, nil))    // settings
	c.Write(frame(1, 5, 3, fields)) // a request and its end
	wait(c)
	return strings.TrimSpace(first)
}

// TestEndpointH2C: a server that takes h2c, as Hypercorn does without being told, gets no
// request that the endpoint has not judged.
func TestEndpointH2C(t *testing.T) {
	addr := hypercorn(t)
	seen := func() []string {
		resp, err := http.Get("http://" + addr + "/seen")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(string(b), "\n")
	}
	// Without an endpoint between, this is what becomes of it.
	first := sayHTTP2(t, addr, "DELETE", "/direct", func(net.Conn) {
		until(t, func() bool { return slices.Contains(seen(), "DELETE /direct 2 forged") })
	})
	if !strings.HasPrefix(first, "HTTP/1.1 101") {
		t.Fatalf("Hypercorn answers h2c with %q: it shows nothing", first)
	}
	in := open(t, api.Endpoint{Target: "http://" + addr + "/rollout/mine", HTTP: &api.EndpointHTTP{Methods: []string{"GET"}}}, nil)
	first = sayHTTP2(t, in.addr, "DELETE", "/rollout/other/admin", func(c net.Conn) { io.Copy(io.Discard, c) })
	if !strings.HasPrefix(first, "HTTP/1.1 200") {
		t.Errorf("h2c is answered with %q", first)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, in.base+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if err := ws.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, b, err := ws.Read(ctx); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	want := []string{"GET /asked 2", "DELETE /direct 2 forged", "GET /rollout/mine/asked 1.1 sb-1", "WS /rollout/mine/ws 1.1 sb-1"}
	if got := seen(); !slices.Equal(got, want) {
		t.Errorf("the target saw %q, want %q", got, want)
	}
}
