//go:build linux

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/longtest"
)

const (
	// flaskVar names a directory with the package flask, made by `pip3 install --target`.
	flaskVar = "CLOCHE_TEST_FLASK"
	// viteServer is a development server that listens on ::1 and reloads pages by WebSocket.
	viteServer = "vite@6.4.1"
	chromium   = "/usr/lib/chromium/chromium"
)

// browser is one page of a headless Chromium, driven by its DevTools protocol.
type browser struct {
	t    *testing.T
	conn *websocket.Conn
	last int
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	if _, err := os.Stat(chromium); err != nil {
		t.Skip("needs " + chromium)
	}
	profile, err := os.MkdirTemp("", "cl-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0", "--user-data-dir="+profile, "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+profile)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(profile) // Chromium's own processes can still write there
	})
	b := &browser{t: t}
	var pages []struct {
		Type string
		URL  string `json:"webSocketDebuggerUrl"`
	}
	b.until("Chromium listens", func() bool {
		data, err := os.ReadFile(filepath.Join(profile, "DevToolsActivePort"))
		if err != nil {
			return false
		}
		port, _, _ := strings.Cut(string(data), "\n")
		resp, err := http.Get("http://127.0.0.1:" + port + "/json/list")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		if json.NewDecoder(resp.Body).Decode(&pages) != nil {
			return false
		}
		pages = slices.DeleteFunc(pages, func(p struct {
			Type string
			URL  string `json:"webSocketDebuggerUrl"`
		}) bool {
			return p.Type != "page"
		})
		return len(pages) > 0
	})
	if b.conn, _, err = websocket.Dial(t.Context(), pages[0].URL, nil); err != nil {
		t.Fatal(err)
	}
	b.conn.SetReadLimit(-1)
	t.Cleanup(func() { b.conn.CloseNow() })
	return b
}

func (b *browser) until(what string, ok func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("waited for: %s", what)
		}
	}
}

// call calls a method of the protocol.
func (b *browser) call(method string, params map[string]any) (result json.RawMessage) {
	b.t.Helper()
	b.last++
	data, err := json.Marshal(map[string]any{"id": b.last, "method": method, "params": params})
	if err == nil {
		err = b.conn.Write(b.t.Context(), websocket.MessageText, data)
	}
	for err == nil {
		var answer struct {
			ID     int
			Result json.RawMessage
		}
		if _, data, err = b.conn.Read(b.t.Context()); err != nil || json.Unmarshal(data, &answer) != nil || answer.ID != b.last {
			continue
		}
		return answer.Result
	}
	b.t.Fatalf("%s: %v", method, err)
	return nil
}

// eval returns the value of an expression of JavaScript, as text.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var r struct {
		Result struct{ Value any }
	}
	_ = json.Unmarshal(b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}), &r)
	return fmt.Sprint(r.Result.Value)
}

func (b *browser) visit(url string) { b.call("Page.navigate", map[string]any{"url": url}) }

// shows waits until the page has a text.
func (b *browser) shows(text string) {
	b.t.Helper()
	var body string
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if body = b.eval("document.body ? document.body.innerText : ''"); strings.Contains(body, text) {
			return
		}
	}
	b.t.Fatalf("the page shows %q, want %q", body, text)
}

// servePort is a sandbox with a program that listens on a port, which is open.
func servePort(h *fixture.Fixture, t *testing.T, c *client.Client, dir string, port int, env map[string]string, argv ...string) (*client.Sandbox, api.OpenedPort) {
	t.Helper()
	sb, err := c.Create(t.Context(), api.SandboxSpec{Workspace: &api.Workspace{Dir: dir}, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Try("rm", "-f", sb.ID) })
	spec := api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: "server", Argv: argv}, Ready: &api.Readiness{Port: port}}
	if _, err := sb.StartProcess(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	opened, err := c.OpenPort(t.Context(), sb.ID, api.PortSpec{Port: port})
	if err != nil {
		t.Fatal(err)
	}
	p, err := sb.WaitProcess(t.Context(), "server", api.WaitRequest{Ready: true, TimeoutMS: 60_000})
	if err != nil {
		t.Fatalf("%+v %v", p, err)
	}
	return sb, opened
}

const flaskApp = `
import time
from flask import Flask, Response, redirect, request, session
app = Flask(__name__)
app.secret_key = "x"

@app.get("/")
def index():
    session["n"] = session.get("n", 0) + 1
    return f"<h1>Flask, visit {session['n']}</h1>"

@app.get("/go")
def go():
    return redirect(request.url_root)

@app.post("/post")
def post():
    return f"{request.host} {request.headers.get('Origin')} {len(request.data)} {'cloche' in str(request.headers).lower()}"

@app.get("/events")
def events():
    def stream():
        n = 0
        while True:
            yield f"data: {n}\n\n"
            n += 1
            time.sleep(0.5)
    return Response(stream(), mimetype="text/event-stream")

app.run(port=8000, threaded=True)
`

// TestFlaskInABrowser opens a Flask application in Chromium by the URL of its port.
func TestFlaskInABrowser(t *testing.T) {
	longtest.Skip(t, "it starts a sandbox and a browser")
	packages := os.Getenv(flaskVar)
	if packages == "" {
		t.Skip("needs " + flaskVar)
	}
	b := newBrowser(t)
	h := fixture.New(t)
	c, err := client.New(client.Options{Host: "unix://" + h.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "packages"), os.DirFS(packages)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "app.py"), []byte(flaskApp), 0o600); err != nil {
		t.Fatal(err)
	}
	sb, opened := servePort(h, t, c, dir, 8000, map[string]string{"PYTHONPATH": "packages"}, "/usr/bin/python3", "app.py")
	b.visit(opened.AccessURL)
	b.shows("Flask, visit 1")
	if at := b.eval("location.href"); at != opened.URL {
		t.Errorf("the address is %s, want %s", at, opened.URL)
	}
	if seen := b.eval("document.cookie"); strings.Contains(seen, "cloche") {
		t.Errorf("scripts see the cookie: %s", seen)
	}
	b.visit(opened.URL + "go") // the program redirects to its own address
	b.shows("Flask, visit 2")
	if at := b.eval("location.href"); at != opened.URL {
		t.Errorf("after a redirect the address is %s, want %s", at, opened.URL)
	}
	if got := b.eval(`fetch("/post", {method: "POST", body: "x".repeat(1000000)}).then(r => r.text())`); got != "localhost:8000 http://localhost:8000 1000000 False" {
		t.Errorf("the program got %s", got)
	}
	if got := b.eval(`new Promise(done => { const e = new EventSource("/events"), got = []; e.onmessage = m => { got.push(m.data); if (got.length == 3) { e.close(); done(got.join()) } } })`); got != "0,1,2" {
		t.Errorf("events %s", got)
	}
	// The port of another sandbox is another site.
	other, err := c.Create(t.Context(), api.SandboxSpec{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Try("rm", "-f", other.ID)
	foreign, err := c.OpenPort(t.Context(), other.ID, api.PortSpec{Port: 9})
	if err != nil {
		t.Fatal(err)
	}
	b.visit(foreign.AccessURL)
	b.shows("No program listens on port 9")
	if got := b.eval(`fetch("` + opened.URL + `", {credentials: "include", mode: "no-cors"}).then(r => r.type, e => "failed")`); got != "opaque" && got != "failed" {
		t.Errorf("another site got %s", got)
	}
	if err := c.ClosePort(t.Context(), sb.ID, 8000); err != nil {
		t.Fatal(err)
	}
	b.visit(opened.URL)
	b.shows("No open port has this address")
	manySockets(t, c, sb, h)
}

// manySockets measures execs while 200 streams to an open port are open.
func manySockets(t *testing.T, c *client.Client, sb *client.Sandbox, h *fixture.Fixture) {
	opened, err := c.OpenPort(t.Context(), sb.ID, api.PortSpec{Port: 8000})
	if err != nil {
		t.Fatal(err)
	}
	median := func() time.Duration {
		var all []time.Duration
		for range 21 {
			begun := time.Now()
			if r, err := sb.Exec(t.Context(), "true"); err != nil || r.ExitCode == nil || *r.ExitCode != 0 {
				t.Fatalf("%+v %v", r, err)
			}
			all = append(all, time.Since(begun))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	before := median()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const sockets = 200
	for i := range sockets {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, opened.URL+"events", nil)
		if err != nil {
			t.Fatal(err)
		}
		// The name is not resolved here: not every machine has names below localhost.
		r.Host, r.URL.Host = r.URL.Host, "127.0.0.1:"+r.URL.Port()
		r.Header.Set(api.PortTokenHeader, opened.Token)
		resp, err := http.DefaultClient.Do(r)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("stream %d: %+v %v", i, resp, err)
		}
		defer resp.Body.Close()
		if _, err := io.ReadFull(resp.Body, make([]byte, 8)); err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
		go func() { _, _ = io.Copy(io.Discard, resp.Body) }() // ended by cancel
	}
	during := median()
	t.Logf("exec: median %v, and %v with %d open streams", before, during, sockets)
	if during > 10*before+200*time.Millisecond {
		t.Errorf("execs take %v with %d open streams, and %v without", during, sockets, before)
	}
}

// TestViteInABrowser edits a page in a sandbox while Chromium shows it: Vite listens on ::1, and
// replaces the module by its WebSocket.
func TestViteInABrowser(t *testing.T) {
	longtest.Skip(t, "it fetches a package and starts a sandbox and a browser")
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("needs node")
	}
	b := newBrowser(t)
	dir := t.TempDir()
	install := exec.CommandContext(t.Context(), "npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--ignore-scripts", viteServer)
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("needs the server's package: npm install %s: %v\n%s", viteServer, err, out)
	}
	module := `document.getElementById("app").textContent = "%s"; import.meta.hot.accept();`
	for name, text := range map[string]string{
		"index.html": `<!doctype html><div id="app"></div><script type="module" src="/main.js"></script>`, "main.js": fmt.Sprintf(module, "first text"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h := fixture.New(t)
	c, err := client.New(client.Options{Host: "unix://" + h.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sb, opened := servePort(h, t, c, dir, 5173, nil, node, "node_modules/vite/bin/vite.js", "--port", "5173", "--strictPort")
	b.visit(opened.AccessURL)
	b.shows("first text")
	b.eval("window.sameDocument = true")
	// The page connects its WebSocket after it shows the text, and misses what changes before.
	time.Sleep(2 * time.Second)
	if err := sb.WriteFile(t.Context(), "/workspace/main.js", []byte(fmt.Sprintf(module, "second text")), 0); err != nil {
		t.Fatal(err)
	}
	b.shows("second text")
	if got := b.eval("String(window.sameDocument)"); got != "true" {
		t.Error("the page was loaded again, and the module was not replaced in it")
	}
}
