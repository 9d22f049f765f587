//go:build linux

package langbot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/await"
	"github.com/cloche-dev/cloche/internal/core"
)

// fakeCore is a core without isolation.
type fakeCore struct {
	// weak are the engines below the operator's tier; floors are what that was asked against.
	weak   map[string]bool
	floors []string
	// states are of the sandboxes that do not run, and resumeFails and startFails what a resume and a start of them answer.
	states                  map[string]api.State
	resumeFails, startFails error
	// The verbs on skills are not there.
	SkillVerbs
	SkillFileVerbs
	mu   sync.Mutex
	made int
	// all and byID are the processes; the key is the sandbox and the process.
	all     []*fakeProcess
	byID    map[string]*fakeProcess
	live    map[string]api.SandboxSpec
	tenants map[string]string
	engines []api.EngineReport
	down    bool
	// disabled: the operator's rules say so.
	disabled bool
	// holdCreate and holdRemove, where they are set, are waited for by every create and
	// every remove; slow is told of each that waits.
	holdCreate, holdRemove chan struct{}
	slow                   chan string
	// holdProcess is the same for the verbs on processes, whose context is not heeded.
	holdProcess chan struct{}
	// part is what everything that waits says that it waits for.
	part string
	// refuse, where it is set, says what is wrong with a spec.
	refuse func(api.SandboxSpec) error
	// forced: a template of the operator's names every sandbox.
	forced bool
	// adjusted is what was changed of every sandbox.
	adjusted []api.Adjustment
	// execs are the requests that came.
	execs []api.ExecRequest
	// turnedAway are why connections were refused.
	turnedAway []string
	// hold, where it is set, is waited for by every exec.
	hold chan struct{}
	// entered gets each exec that waits, if a test receives.
	entered chan struct{}
}

func newFakeCore() *fakeCore {
	return &fakeCore{byID: map[string]*fakeProcess{}, live: map[string]api.SandboxSpec{}, tenants: map[string]string{}, entered: make(chan struct{}, 1), slow: make(chan string, 16)}
}

func (f *fakeCore) Create(ctx context.Context, c core.Caller, spec api.SandboxSpec, _ func(string)) (api.Sandbox, error) {
	f.wait(ctx, "create", &f.holdCreate)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		if err := f.refuse(spec); err != nil {
			return api.Sandbox{}, err
		}
	}
	f.made++
	id := "sb-" + strconv.Itoa(f.made)
	f.live[id], f.tenants[id] = spec, c.Tenant
	return api.Sandbox{ID: id, Engine: "fake", State: api.StateRunning, Adjusted: f.adjusted}, nil
}

func (f *fakeCore) Get(_ context.Context, c core.Caller, ref string) (api.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.live[ref]; !ok || f.tenants[ref] != c.Tenant {
		return api.Sandbox{}, api.Errorf(api.CodeNotFound, "there is no sandbox %s", ref)
	}
	return api.Sandbox{ID: ref, State: cmp.Or(f.states[ref], api.StateRunning)}, nil
}

// becomes has a sandbox be in a state; empty is running.
func (f *fakeCore) becomes(ref string, state api.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.states == nil {
		f.states = map[string]api.State{}
	}
	f.states[ref] = state
}

func (f *fakeCore) Stop(ctx context.Context, c core.Caller, ref string, _ *time.Duration) (api.Sandbox, error) {
	f.becomes(ref, api.StateStopped)
	return f.Get(ctx, c, ref)
}

func (f *fakeCore) StartSandbox(ctx context.Context, c core.Caller, ref string, _ func(string)) (api.Sandbox, error) {
	if f.startFails != nil {
		return api.Sandbox{}, f.startFails
	}
	f.becomes(ref, "")
	return f.Get(ctx, c, ref)
}

func (f *fakeCore) Resume(ctx context.Context, c core.Caller, ref string) (api.Sandbox, error) {
	if f.resumeFails != nil {
		return api.Sandbox{}, f.resumeFails
	}
	f.becomes(ref, "")
	return f.Get(ctx, c, ref)
}

// wait waits where that is asked for.
func (f *fakeCore) wait(ctx context.Context, what string, hold *chan struct{}) {
	f.mu.Lock()
	until, part := *hold, f.part
	f.mu.Unlock()
	if until != nil {
		if part != "" {
			defer await.For(ctx, part)()
		}
		f.slow <- what
		<-until
	}
}

// holds has the next ones of a kind wait until go is called.
func (f *fakeCore) holds(hold *chan struct{}) (goOn func()) {
	until := make(chan struct{})
	set := func(c chan struct{}) {
		f.mu.Lock()
		defer f.mu.Unlock()
		*hold = c
	}
	set(until)
	return func() { set(nil); close(until) }
}

func (f *fakeCore) Remove(ctx context.Context, _ core.Caller, ref string) error {
	f.wait(ctx, "remove", &f.holdRemove)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.live, ref)
	return nil
}

func (f *fakeCore) Exec(ctx context.Context, _ core.Caller, ref string, req api.ExecRequest) (api.Result, error) {
	f.mu.Lock()
	f.execs = append(f.execs, req)
	f.mu.Unlock()
	if f.hold != nil {
		select {
		case f.entered <- struct{}{}:
		default:
		}
		select {
		case <-f.hold:
		case <-ctx.Done():
			return api.Result{}, ctx.Err()
		}
	}
	text := req.Argv[len(req.Argv)-1]
	if len(req.Stdin) > 0 {
		text = string(req.Stdin)
	}
	_, cmd, _ := strings.Cut(text, "\n") // behind the line that goes to its directory
	switch cmd {
	case "time out":
		return api.Result{TimedOut: true, Signal: "KILL", Stdout: []byte(" some\n")}, nil
	case "fail":
		return api.Result{ExitCode: new(3), Stderr: []byte("\xff why\n\n")}, nil
	case "flood":
		return api.Result{ExitCode: new(0), Stdout: []byte("head tail"), StdoutInfo: api.StreamCounts{Kept: 9, Dropped: 1234}}, nil
	case "huge":
		return api.Result{ExitCode: new(0), Stdout: make([]byte, maxFrame/6+1)}, nil // six characters each
	case "refused":
		return api.Result{ExitCode: new(1), Stderr: []byte("curl: (7) no\n"), Refusals: []api.EgressRefusal{
			{Name: "a.example"}, {Name: "b.example", Port: 22, Reason: "no rule\nallows it", Hint: "allow b.example:22"},
		}}, nil
	case "export":
		return api.Result{ExitCode: new(73), Stderr: []byte("x\nLANGBOT_OUTBOX_LIMIT:{}\n"), Refusals: []api.EgressRefusal{{Name: "a.example"}}}, nil
	case "killed":
		return api.Result{Signal: "KILL"}, nil
	}
	return api.Result{ExitCode: new(0), Stdout: []byte(ref + " " + cmd + "\n")}, nil
}

func (f *fakeCore) Engines(context.Context, core.Caller) ([]api.EngineReport, error) {
	return f.engines, nil
}

func (f *fakeCore) EngineAtLeast(_ context.Context, engine, own string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.floors = append(f.floors, own)
	if f.weak[engine] {
		return api.Errorf(api.CodeDenied, "engine %s is too weak", engine)
	}
	return nil
}

func (f *fakeCore) Status(context.Context, core.Caller) api.Status {
	return api.Status{Enabled: !f.disabled, Engine: api.EngineStatus{Name: "fake", Available: !f.down, Reason: "it is down"}}
}

func (f *fakeCore) ExplainPolicy(_ context.Context, _ core.Caller, q api.PolicyQuestion) (api.PolicyAnswer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if q.Spec.Workspace == nil {
		q.Spec.Workspace = &api.Workspace{}
	}
	if f.refuse != nil {
		if e, ok := errors.AsType[*api.Error](f.refuse(q.Spec)); ok {
			return api.PolicyAnswer{Refusal: e}, nil
		}
	}
	return api.PolicyAnswer{Allowed: true}, nil
}

func (f *fakeCore) Info(context.Context, core.Caller) api.Info {
	return api.Info{ScopeForced: f.forced}
}

func (f *fakeCore) RefusedConnection(_, reason string, _ int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turnedAway = append(f.turnedAway, reason)
}

func (f *fakeCore) KeepSkills(core.Caller, string) {}

func gone() error { return api.Errorf(api.CodeNotFound, "there is no such process") }

func (f *fakeCore) StartProcess(ctx context.Context, _ core.Caller, ref string, spec api.ProcessSpec) (api.Process, error) {
	f.wait(ctx, "start", &f.holdProcess)
	f.mu.Lock()
	defer f.mu.Unlock()
	p := newFakeProcess()
	f.all, f.byID[ref+" "+spec.ExecID] = append(f.all, p), p
	return api.Process{ExecID: spec.ExecID, State: api.ProcessRunning, Running: true}, nil
}

// processes are all that were started, in their order.
func (f *fakeCore) processes() []*fakeProcess {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.all)
}

func (f *fakeCore) process(ref, id string) (*fakeProcess, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.byID[ref+" "+id]; p != nil {
		return p, nil
	}
	return nil, gone()
}

func (f *fakeCore) GetProcess(ctx context.Context, _ core.Caller, ref, id string) (api.Process, error) {
	f.wait(ctx, "get", &f.holdProcess)
	p, err := f.process(ref, id)
	if err != nil {
		return api.Process{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit != nil && *p.exit < 0 {
		return api.Process{ExecID: id, State: api.ProcessExited, Signal: "KILL", EndedAt: new(time.Now())}, nil
	}
	if p.exit != nil {
		return api.Process{ExecID: id, State: api.ProcessExited, ExitCode: p.exit, EndedAt: new(time.Now())}, nil
	}
	return api.Process{ExecID: id, State: api.ProcessRunning, Running: true}, nil
}

func (f *fakeCore) WaitProcess(_ context.Context, _ core.Caller, ref, id string, _ api.WaitRequest) (api.Process, error) {
	return f.GetProcess(context.Background(), core.Caller{}, ref, id)
}

// SignalProcess ends it, whatever the signal.
func (f *fakeCore) SignalProcess(_ context.Context, _ core.Caller, ref, id string, _ api.SignalRequest) error {
	p, err := f.process(ref, id)
	if err == nil {
		p.change(func() { p.exit = new(-9) })
	}
	return err
}

func (f *fakeCore) RemoveProcess(_ context.Context, _ core.Caller, ref, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.byID, ref+" "+id)
	return nil
}

func (f *fakeCore) Logs(_ context.Context, _ core.Caller, ref string, o api.LogOptions, fn func(api.LogEntry) error) error {
	p, err := f.process(ref, o.ExecID)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return fn(api.LogEntry{Stream: api.Stderr, Data: p.stderr[max(0, int64(len(p.stderr))+*o.Since):]})
}

func (f *fakeCore) Attach(_ context.Context, _ core.Caller, ref, id string, r api.AttachRequest) (Attachment, error) {
	p, err := f.process(ref, id)
	if err != nil {
		return nil, err
	}
	return p.attach(r.Since), nil
}

// server is a server with a client's connection.
type server struct {
	t    *testing.T
	s    *Server
	core *fakeCore
	url  string
	conn *websocket.Conn
	seq  int
	opts Options
}

func newServer(t *testing.T, change func(*Options)) *server {
	t.Helper()
	d := &server{t: t, core: newFakeCore()}
	d.opts = Options{Core: d.core, Dir: t.TempDir(), WorkDir: t.TempDir(), Peer: func(_, _ string) error { return nil }}
	if change != nil {
		change(&d.opts)
	}
	d.start()
	return d
}

func (d *server) start() {
	d.t.Helper()
	var err error
	if d.s, err = New(d.t.Context(), d.opts); err != nil {
		d.t.Fatal(err)
	}
	h := httptest.NewServer(d.s.Handler())
	d.url = h.URL
	d.t.Cleanup(func() {
		if err := d.s.Close(context.WithoutCancel(d.t.Context())); err != nil {
			d.t.Error(err)
		}
		h.Close()
	})
}

func (d *server) header(more ...string) http.Header {
	h := http.Header{}
	h.Set(headerInstance, "inst-1")
	for i := 0; i < len(more); i += 2 {
		h.Set(more[i], more[i+1])
	}
	return h
}

func (d *server) dial() *websocket.Conn {
	d.t.Helper()
	conn, _, err := websocket.Dial(d.t.Context(), d.url+"/rpc/ws", &websocket.DialOptions{HTTPHeader: d.header()}) //nolint:bodyclose // the library's own
	if err != nil {
		d.t.Fatal(err)
	}
	conn.SetReadLimit(maxFrame)
	d.t.Cleanup(func() { _ = conn.CloseNow() })
	return conn
}

// send asks for something without waiting for it.
func (d *server) send(action string, place *placement, data any) int {
	d.t.Helper()
	if d.conn == nil {
		d.conn = d.dial()
	}
	d.seq++
	frame := map[string]any{"seq_id": d.seq, "action": action, "data": data}
	if place != nil {
		frame["context"] = map[string]any{"instance_uuid": place.Instance, "workspace_uuid": place.Workspace, "placement_generation": place.Generation}
	}
	raw, err := json.Marshal(frame)
	if err == nil {
		err = d.conn.Write(d.t.Context(), websocket.MessageText, raw)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return d.seq
}

type reply struct {
	SeqID   int            `json:"seq_id"`
	Code    int            `json:"code"`
	Message string         `json:"message"`
	Data    map[string]any `json:"data"`
}

func (d *server) recv() reply {
	d.t.Helper()
	_, raw, err := d.conn.Read(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	var r reply
	if err := json.Unmarshal(raw, &r); err != nil || r.Data == nil {
		d.t.Fatalf("%s: %v", raw, err)
	}
	return r
}

func (d *server) ask(action string, place *placement, data any) reply {
	d.t.Helper()
	id := d.send(action, place, data)
	r := d.recv()
	if r.SeqID != id {
		d.t.Fatalf("the answer to %d is %+v", id, r)
	}
	return r
}

// must is ask for what succeeds.
func (d *server) must(action string, place *placement, data any) map[string]any {
	d.t.Helper()
	r := d.ask(action, place, data)
	if r.Code != 0 {
		d.t.Fatalf("%s: %s", action, r.Message)
	}
	return r.Data
}

// refused is ask for what fails in a way.
func (d *server) refused(want, action string, place *placement, data any) {
	d.t.Helper()
	if r := d.ask(action, place, data); r.Code == 0 || !strings.HasPrefix(r.Message, want) || len(r.Data) != 0 {
		d.t.Errorf("%s: %+v, want %s", action, r, want)
	}
}

type obj = map[string]any
