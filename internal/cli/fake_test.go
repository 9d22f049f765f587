package cli

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

// fakeDaemon answers as a daemon would, from a script.
type fakeDaemon struct {
	t *testing.T
	// program plays the command of a run or exec: it gets what the client sends
	// and says what the command writes and how it ends.
	program func(p *fakeProgram) api.Result
	// attach plays an attached process.
	attach func(p *fakeProgram, r api.AttachRequest) api.Result
	// processes are those of the sandbox, logs what each has written, events what
	// has happened.
	processes []api.Process
	logs      map[string][]api.LogEntry
	events    []api.Event
	// audit is the lines of the audit log, report what its verification finds.
	audit  []string
	report api.AuditReport
	// waited is the answer of a wait, dial what is at the port.
	waited api.Process
	dial   func(net.Conn)
	// refuse, by "METHOD path", answers with an error.
	refuse map[string]*api.Error
	// answers, by "METHOD path", are what is answered before anything else.
	answers map[string]any
	// sandbox is the one that exists, and its name "box".
	sandbox api.Sandbox
	status  api.Status
	files   map[string]string
	tarOut  []byte
	// pulls are told before a create, and by a pull.
	pulls []api.PullProgress

	mu       sync.Mutex
	requests []string          // guarded by mu: METHOD path?query
	bodies   map[string]string // guarded by mu: by "METHOD path", of what answers has
	run      api.RunRequest    // guarded by mu: the last
	exec     api.ExecRequest
	spec     api.SandboxSpec
	tarIn    []byte
	started  api.ProcessSpec
	attached api.AttachRequest
	signal   api.SignalRequest
	stdin    string
	held     int // connections that hold
}

// fakeProgram is the command's side of a stream.
type fakeProgram struct {
	conn *websocket.Conn
	ctx  context.Context
	seq  uint64
	// attached: seq counts bytes.
	attached bool
	// resizes are all that came.
	resizes chan api.Size
	// Stdin is closed when the client ends the input.
	stdin   *io.PipeReader
	signals chan string
}

func (p *fakeProgram) write(stream byte, s string) {
	frame := append([]byte{stream}, binary.BigEndian.AppendUint64(nil, p.seq)...)
	if p.attached {
		p.seq += uint64(len(s))
	} else {
		p.seq++
	}
	_ = p.conn.Write(p.ctx, websocket.MessageBinary, append(frame, s...))
}

func newFake(t *testing.T) *fakeDaemon {
	return &fakeDaemon{
		t:       t,
		program: func(*fakeProgram) api.Result { return exited(0) },
		refuse:  map[string]*api.Error{},
		answers: map[string]any{},
		bodies:  map[string]string{},
		sandbox: api.Sandbox{ID: "sb-1", Name: "box", State: api.StateRunning, Image: "host", Engine: "gvisor", Cwd: "/workspace", CreatedAt: time.Now()},
		status:  api.Status{Enabled: true, Available: true},
		files:   map[string]string{},
	}
}

func exited(code int) api.Result { return api.Result{ExitCode: &code} }

// listen serves on the default socket of a new home, which it returns.
func (f *fakeDaemon) listen() (home string) {
	f.t.Helper()
	home, err := os.MkdirTemp("", "cl") // short: a socket's path is
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = os.RemoveAll(home) })
	ln, err := net.Listen("unix", filepath.Join(home, client.SocketName))
	if err != nil {
		f.t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(f)
	srv.Listener.Close()
	srv.Listener = ln
	srv.Start()
	f.t.Cleanup(srv.Close)
	return home
}

func (f *fakeDaemon) asked(what string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		if strings.HasPrefix(r, what) {
			return true
		}
	}
	return false
}

func (f *fakeDaemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := strings.TrimPrefix(r.URL.Path, "/v1")
	f.mu.Lock()
	f.requests = append(f.requests, r.Method+" "+r.URL.RequestURI())
	f.mu.Unlock()
	if e := f.refuse[r.Method+" "+p]; e != nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]*api.Error{"error": e})
		return
	}
	if v, ok := f.answers[r.Method+" "+p]; ok {
		body, _ := io.ReadAll(r.Body)
		f.mu.Lock()
		f.bodies[r.Method+" "+p] = string(body)
		f.mu.Unlock()
		answer(w, v)
		return
	}
	box := strings.HasPrefix(p, "/sandboxes/box") || strings.HasPrefix(p, "/sandboxes/sb-1")
	switch rest := strings.TrimPrefix(strings.TrimPrefix(p, "/sandboxes/box"), "/sandboxes/sb-1"); {
	case p == "/run/stream" || box && rest == "/exec/stream":
		f.stream(w, r)
	case p == "/run":
		f.decode(r, &f.run)
		answer(w, api.RunResult{Sandbox: f.sandbox, Result: exited(3)})
	case p == "/sandboxes" && r.Method == http.MethodPost:
		f.decode(r, &f.spec)
		w.Header().Set("Content-Type", "application/x-ndjson")
		for _, m := range f.pulls {
			answer(w, api.ServerMessage{Pull: &m})
		}
		answer(w, api.ServerMessage{Step: "engine"})
		answer(w, api.ServerMessage{Sandbox: &f.sandbox})
	case p == "/sandboxes" && r.Method == http.MethodDelete:
		answer(w, api.Sandbox{State: api.StateDeleted, IdempotencyKey: r.URL.Query().Get("idempotency_key")})
	case p == "/sandboxes":
		answer(w, api.SandboxList{Sandboxes: []api.Sandbox{f.sandbox}})
	case strings.HasPrefix(p, "/keys"), strings.HasPrefix(p, "/policy"):
		f.keys(w, r, p)
	case strings.HasPrefix(p, "/approvals"), box && strings.HasPrefix(rest, "/egress"):
		f.serveEgress(w, r, p)
	case strings.HasPrefix(p, "/images"):
		f.image(w, r, p)
	case p == "/status":
		answer(w, f.status)
	case p == "/version":
		answer(w, client.Version{Version: "v9", API: "v1"})
	case p == "/doctor":
		answer(w, api.Doctor{Version: "v9", Engines: []api.EngineReport{{Name: "gvisor", Usable: f.status.Available, Problems: []api.Problem{{What: "no user namespaces", Mend: "enable them"}}}}})
	case box && f.process(w, r, rest):
	case strings.HasPrefix(p, "/audit"):
		f.serveAudit(w, p)
	case p == "/events":
		f.serveEvents(w, r)
	case p == "/hold":
		f.hold(w, r)
	case p == "/batch/remove" || p == "/batch/status" || p == "/batch/create":
		f.batch(w, r, p)
	case box && (rest == "" || rest == "/stop" || rest == "/kill" || rest == "/pause" || rest == "/suspend" || rest == "/resume" || rest == "/heartbeat" || rest == "/extend"):
		answer(w, f.sandbox)
	case box && rest == "/exec":
		f.decode(r, &f.exec)
		answer(w, exited(4))
	case box && rest == "/logs" && r.URL.Query().Has("exec_id"):
		w.Header().Set("Content-Type", "application/x-ndjson")
		for _, e := range f.logs[r.URL.Query().Get("exec_id")] {
			answer(w, e)
		}
	case box && rest == "/logs":
		w.Header().Set("Content-Type", "application/x-ndjson")
		answer(w, api.LogEntry{ExecID: "ex-1", Stream: api.Stdout, Data: api.Bytes("out\n")})
		answer(w, api.LogEntry{ExecID: "ex-1", Stream: api.Stderr, Gap: 7, Data: api.Bytes("err\n")})
	case box && strings.HasPrefix(rest, "/files") || box && rest == "/tar":
		f.file(w, r, rest)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(map[string]*api.Error{"error": api.Errorf(api.CodeNotFound, "no %s", p)})
	}
}

func answer(w io.Writer, v any) { _ = json.NewEncoder(w).Encode(v) }

func (f *fakeDaemon) decode(r *http.Request, into any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		f.t.Errorf("request body: %v", err)
	}
}

func (f *fakeDaemon) file(w http.ResponseWriter, r *http.Request, rest string) {
	p := r.URL.Query().Get("path")
	f.mu.Lock()
	defer f.mu.Unlock()
	content, ok := f.files[p]
	info := api.FileInfo{Name: filepath.Base(p), Type: api.TypeFile, Size: int64(len(content)), Mode: 0o640}
	if content == "<dir>" {
		info.Type = api.TypeDir
	}
	if target, link := strings.CutPrefix(content, "-> "); link {
		info.Type, info.LinkTarget = api.TypeSymlink, target
	}
	switch {
	case rest == "/tar" && r.Method == http.MethodPut:
		f.tarIn, _ = io.ReadAll(r.Body)
		f.files[p] = "<dir>"
		answer(w, api.TarReport{Entries: 1})
	case rest == "/tar":
		w.Header().Set("Trailer", "Cloche-Tar-Report")
		_, _ = w.Write(f.tarOut)
		w.Header().Set("Cloche-Tar-Report", `{"entries":1}`)
	case r.Method == http.MethodPut:
		b, _ := io.ReadAll(r.Body)
		f.files[p] = string(b)
		answer(w, api.FileInfo{Size: int64(len(b))})
	case !ok:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		answer(w, map[string]*api.Error{"error": api.Errorf(api.CodeNotFound, "no file %s", p)})
	case rest == "/files/stat":
		answer(w, info)
	default:
		j, _ := json.Marshal(info)
		w.Header().Set("Cloche-File-Info", string(j))
		_, _ = io.WriteString(w, content)
	}
}

func (f *fakeDaemon) stream(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		f.t.Errorf("accept: %v", err)
		return
	}
	defer conn.CloseNow()
	ctx := r.Context()
	_, first, err := conn.Read(ctx)
	if err != nil {
		return
	}
	var m api.ClientMessage
	if err := json.Unmarshal(first, &m); err != nil {
		f.t.Errorf("first message: %v", err)
	}
	send := func(m api.ServerMessage) {
		j, _ := json.Marshal(m)
		_ = conn.Write(ctx, websocket.MessageText, j)
	}
	f.mu.Lock()
	switch {
	case m.Exec != nil:
		f.exec = *m.Exec
	case m.Attach != nil:
		f.attached = *m.Attach
	default:
		f.run = *m.Run
	}
	f.mu.Unlock()
	if e := f.refuse["STREAM"]; e != nil {
		send(api.ServerMessage{Error: e})
		return
	}
	if m.Run != nil {
		send(api.ServerMessage{Sandbox: &f.sandbox})
	}
	pr, pw := io.Pipe()
	p := &fakeProgram{conn: conn, ctx: ctx, stdin: pr, signals: make(chan string, 8), resizes: make(chan api.Size, 64)}
	begun := api.Started{ExecID: "ex-1"}
	if p.attached = m.Attach != nil; p.attached {
		if m.Attach.Since != nil && *m.Attach.Since > 0 {
			begun.Position = *m.Attach.Since
			p.seq = uint64(begun.Position)
		}
		if m.Attach.Rows > 0 {
			p.resizes <- api.Size{Rows: m.Attach.Rows, Cols: m.Attach.Cols}
		}
	}
	send(api.ServerMessage{Started: &begun})
	go func() { // ends when the connection does
		offset := int64(0)
		for {
			kind, data, err := conn.Read(ctx)
			if err != nil {
				pw.CloseWithError(err)
				return
			}
			var m api.ClientMessage
			switch {
			case kind == websocket.MessageBinary:
				_, _ = pw.Write(data)
				if offset += int64(len(data)); p.attached {
					send(api.ServerMessage{Stdin: &api.StdinAck{Offset: offset}})
				}
			case json.Unmarshal(data, &m) == nil && m.CloseStdin:
				pw.Close()
			case m.Signal != "":
				p.signals <- m.Signal
			case m.Resize != nil:
				p.resizes <- *m.Resize
			}
		}
	}()
	var res api.Result
	if p.attached {
		res = f.attach(p, *m.Attach)
	} else {
		res = f.program(p)
	}
	pr.Close()
	send(api.ServerMessage{Exit: &res})
}

// result is what a command line left.
type result struct {
	status   int
	out, err string
}

// runCLI runs one command line with a home that is given by an environment.
func runCLI(t *testing.T, env map[string]string, stdin io.Reader, setup func(*command.Env), args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	e := command.Env{Version: "v0", Getenv: func(k string) (string, bool) { v, ok := env[k]; return v, ok }}
	if setup != nil {
		setup(&e)
	}
	status := Main(t.Context(), args, command.Streams{In: stdin, Out: &out, Err: &errOut}, e)
	return result{status, out.String(), errOut.String()}
}

// batch knows one sandbox, and nothing can be made beside it.
func (f *fakeDaemon) batch(w http.ResponseWriter, r *http.Request, p string) {
	out := api.BatchResult{Succeeded: []api.Sandbox{}, Failed: []api.BatchFailure{}}
	if p == "/batch/create" {
		out.Succeeded = append(out.Succeeded, f.sandbox)
		out.Failed = append(out.Failed, api.BatchFailure{Index: 1, Error: api.Errorf(api.CodeNoCapacity, "it is full")})
		answer(w, out)
		return
	}
	var sel api.BatchSelect
	f.decode(r, &sel)
	for i, id := range sel.IDs {
		if id == f.sandbox.ID || id == "box" {
			out.Succeeded = append(out.Succeeded, f.sandbox)
			continue
		}
		out.Failed = append(out.Failed, api.BatchFailure{ID: id, Index: i, Error: api.Errorf(api.CodeNotFound, "there is no sandbox %q", id)})
	}
	answer(w, out)
}
