//go:build linux

package attack_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/test/fixture"
)

// The log has how many calls were later than stoppedPromise, and how late the latest was.
const (
	stoppedPromise = time.Second
	// redial is how long the daemon tries to reach an agent that was given up.
	redial = 10 * time.Second
)

// goferPart is how the process begins that reads host files for a gVisor sandbox.
const goferPart = "cloche-gofer "

// holderPart is how the process begins that keeps links for the next daemon.
const holderPart = "cloche-holder"

// TestAttackStopped asks for every operation of the API while a part of the daemon or of a
// sandbox is stopped from outside: no call hangs, and no list has what does not exist. In
// the first run nothing is stopped: so every call is a good one.
func TestAttackStopped(t *testing.T) {
	for _, name := range []string{"CALL", "CHANGE", "WORK", "TRANSFER", "AGENT"} {
		t.Setenv("CLOCHE__DEADLINES__"+name, fixture.StoppedDeadline.String())
	}
	for _, tc := range []struct {
		engine, part string
		// named is how errors name the part, and many how many of them do at least.
		named string
		many  int
	}{
		{"gvisor", "nothing", "", 0}, {"native", "agent", "agent (stopped: its agent)", 20}, {"gvisor", "cloche-sentry ", "(stopped: its sentry", 20}, {"gvisor", goferPart, "(stopped: its gofer)", 5},
		{"gvisor", holderPart, "holder of", 1}, {"gvisor", "daemon", "the daemon at", 100},
	} {
		t.Run(tc.engine+"/"+strings.TrimSpace(tc.part), func(t *testing.T) {
			h, c := attacked(t, client.Options{Silence: fixture.StoppedDeadline, NoReconnect: true})
			s := &stoppedPart{T: t, h: h, c: c, engine: tc.engine, part: tc.part, answers: slices.Contains([]string{"nothing", goferPart, holderPart}, tc.part), boxes: map[string]*stuckAgent{}}
			s.setUp()
			s.stop()
			s.all(tc.named, tc.many)
		})
	}
}

// stoppedPart is a part that does not answer.
type stoppedPart struct {
	*testing.T
	h *fixture.Fixture
	c *client.Client
	// engine is the engine of the sandboxes.
	engine, part string
	// answers says that the agents do, whatever is stopped.
	answers bool
	// boxes are the sandboxes that run, by their names.
	boxes map[string]*stuckAgent
	// job waits for its handler, and key is good.
	job, key string

	mu sync.Mutex
	// latest is how late the latest call was, and late counts those later than promised.
	latest time.Duration
	late   int
	// named counts the errors that name the part, and gone are the sandboxes that a call
	// has removed.
	named int
	gone  []string
}

// setUp makes all that the calls ask about.
func (s *stoppedPart) setUp() {
	s.Helper()
	ctx := s.Context()
	first := true
	for _, name := range []string{"box", "box-stop", "box-kill", "box-remove", "box-key", "box-batch", "box-pause", "box-suspend", "box-fork", "box-resume", "box-exec", "box-job", "box-wait", "box-snapshot"} {
		spec := api.SandboxSpec{Name: name, Engine: s.engine}
		if name == "box" || name == "box-stop" || name == "box-remove" {
			spec.Network, spec.Egress = api.NetworkOn, &api.Egress{Allow: []string{"example.org"}}
		}
		if name == "box-key" {
			spec.IdempotencyKey = name
		}
		sb, err := s.c.Create(ctx, spec)
		if err != nil && first && (s.engine != "gvisor" || os.Geteuid() != 0) {
			s.Skipf("needs an engine %s with a network that works for this user: %v", s.engine, err)
		}
		s.must(err)
		first = false
		a := newStuckAgent(s.T, s.c, sb)
		s.boxes[name] = a
		s.must(did(sb.StartProcess(ctx, api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: "web", Argv: []string{"sleep", a.marker}}, OpenStdin: true})))
	}
	for name, box := range map[string]string{"gone": "box", "tty": "box"} {
		s.must(did(s.c.StartProcess(ctx, box, api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: name, Argv: []string{"sleep", "1000"}, TTY: name == "tty"}})))
	}
	for i, name := range []string{"data", "gone", "served"} {
		e := api.Endpoint{Name: name, Target: "http://127.0.0.1:9", Listen: fmt.Sprint("127.0.0.1:", 7100+i)}
		if name == "served" {
			e.Target = "client"
		}
		s.must(did(s.c.AddEndpoint(ctx, "box", e)))
	}
	for _, name := range []string{"kept", "gone", "moved", "edited"} {
		s.must(did(s.c.WriteFile(ctx, "box", "/workspace/"+name, []byte("text"), 0)))
	}
	s.must(s.c.MakeDir(ctx, "box", "/workspace/unpacked", 0))
	for _, name := range []string{"kept", "gone"} {
		s.must(did(s.c.CreateWorkspace(ctx, api.WorkspaceSpec{Name: name})))
		s.must(did(s.c.CreateSkill(ctx, api.SkillSpec{Name: name, Description: "d"})))
		s.must(did(s.c.CreateSnapshot(ctx, "box", api.SnapshotRequest{Name: name, Scope: api.SnapshotWorkspace})))
		s.must(did(s.c.ImportImage(ctx, bytes.NewReader(rootTar(name)), api.ImportOptions{Name: name})))
	}
	s.must(s.c.WriteSkillFile(ctx, "kept", "gone.md", strings.NewReader("text")))
	for _, name := range []string{"box-layer", "box-diff"} {
		_, err := s.c.Create(ctx, api.SandboxSpec{Name: name, Engine: s.engine, Workspace: &api.Workspace{Name: name, Layered: true}})
		if errors.Is(err, api.ErrUnsupported) && (s.part != "nothing" || os.Geteuid() != 0) {
			s.Logf("without a layered workspace: %v", err)
			continue
		}
		s.must(err)
		s.must(did(s.c.Kill(ctx, name)))
	}
	if _, err := s.c.Pause(ctx, "box-resume"); !errors.Is(err, api.ErrUnsupported) || os.Geteuid() == 0 {
		s.must(err)
		s.boxes["box-resume"].frozen = !s.boxes["box-resume"].gvisor
	}
	k, err := s.c.CreateKey(ctx, api.KeySpec{Tenant: "other"})
	s.must(err)
	run := api.JobPhase{Commands: []api.JobCommand{{Argv: []string{"true"}}}}
	p, err := s.c.StartJob(ctx, api.JobSpec{Sandbox: "box-wait", Handlers: []api.JobHandler{{Name: "hold", Wait: true}}, Run: run})
	s.must(err)
	s.key, s.job = k.Key.ID, p.ID
	if !fixture.Poll(func() bool {
		p, err := s.c.Job(ctx, s.job)
		return err == nil && p.Handler != ""
	}) {
		s.Fatal("the job does not wait for its handler")
	}
}

func (s *stoppedPart) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// stop stops the part, and lets it go on at the end of the test.
func (s *stoppedPart) stop() {
	s.Helper()
	switch s.part {
	case "nothing":
		return
	case "daemon":
		s.must(fixture.StopProcess(s.h.Daemon.Process.Pid))
		s.goOn(s.h.Daemon.Process.Pid)
	case "agent":
		for _, a := range s.boxes {
			if !fixture.Poll(func() bool { a.agent = a.find(); return a.agent > 1 }) {
				s.Fatalf("the agent is not found among %v", a.processes())
			}
			s.must(a.stopAgent())
			s.goOn(a.agent)
		}
	default:
		found := false
		for _, p := range s.h.Processes() {
			if strings.HasPrefix(p.Argv, s.part) {
				found = true
				s.must(fixture.StopProcess(p.PID))
				s.goOn(p.PID)
			}
		}
		if !found {
			s.Skipf("needs a process %s of its own for a sandbox, and here is none", s.part)
		}
	}
}

// goOn lets a stopped process go on at the end of the test.
func (s *stoppedPart) goOn(pid int) {
	s.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
}

// all makes every call at the same time, and looks at what the lists say afterwards.
func (s *stoppedPart) all(named string, many int) {
	ops := operations(s.T)
	var wg sync.WaitGroup
	for id, call := range s.calls() {
		if s.part == "daemon" && call.by == nil {
			continue
		}
		wg.Go(func() {
			err := s.call(id, ops[id], call)
			s.mu.Lock()
			defer s.mu.Unlock()
			if named != "" && strings.Contains(fmt.Sprint(err), named) {
				s.named++
			}
		})
	}
	wg.Wait()
	if s.part != "daemon" {
		s.lists()
	}
	if s.named < many {
		s.Errorf("%d errors name the part that is stopped as %q, want %d", s.named, named, many)
	}
	s.Logf("of %d calls %d were more than %s behind their deadline, the latest %s; %d errors name the part", len(ops), s.late, stoppedPromise, s.latest, s.named)
}

// lists looks for what does not exist, and for what was not observed.
func (s *stoppedPart) lists() {
	list, err := s.c.List(s.Context(), api.ListOptions{})
	if err != nil {
		s.Error(err)
	}
	for _, sb := range list.Sandboxes {
		a, ours := s.boxes[sb.Name]
		switch {
		case slices.Contains(s.gone, sb.Name):
			s.Errorf("%s was removed, and is listed as %s", sb.Name, sb.State)
		case sb.ObservedAt.IsZero():
			s.Errorf("%s is listed, and not when that was observed", sb.Name)
		case ours && sb.State == api.StateRunning && len(a.processes()) == 0:
			s.Errorf("%s is listed as running, and no process of it is there", sb.Name)
		case !ours && !strings.HasPrefix(sb.Name, "made") && sb.Name != "box-layer" && sb.Name != "box-diff":
			s.Errorf("%s is listed, which nobody made", sb.Name)
		}
	}
	processes, err := s.c.Processes(s.Context(), "box")
	if err != nil {
		s.Error(err)
	}
	for _, p := range processes {
		if p.ObservedAt.IsZero() || slices.Contains(s.gone, p.ExecID) {
			s.Errorf("the list of processes has %+v", p)
		}
	}
}

// call makes one call.
func (s *stoppedPart) call(id string, op operation, call stoppedCall) error {
	most := fixture.StoppedDeadline + call.own
	if op.deadline == "wait" {
		most += redial
	}
	make := func(ctx context.Context) error { return s.byHTTP(ctx, op, call) }
	if s.part == "daemon" {
		most = fixture.StoppedDeadline
		make = func(ctx context.Context) error { return s.byClient(ctx, op, call) }
	} else if call.path == "" {
		make = func(ctx context.Context) error { return call.by(ctx, s.c) }
	}
	err := s.within(id, most, make)
	switch code := api.CodeOf(err); {
	case s.part == "daemon":
		if !errors.Is(err, api.ErrUnavailable) {
			s.Errorf("%s of a daemon that is stopped: %v", id, err)
		}
	case err != nil && code == api.CodeInternal:
		s.Errorf("%s: %v", id, err)
	case s.part == "nothing" && err != nil && !slices.Contains(call.may, code) && (os.Geteuid() == 0 || code != api.CodeUnsupported && code != api.CodeNotFound):
		s.Errorf("%s where nothing is stopped: %v", id, err)
	case err == nil && strings.HasPrefix(id, "remove"):
		s.mu.Lock()
		s.gone = append(s.gone, map[string]string{"removeSandbox": "box-remove", "removeSandboxByKey": "box-key", "removeProcess": "gone"}[id])
		s.mu.Unlock()
	}
	return err
}

// filled is a path or a body with what the set-up made.
func (s *stoppedPart) filled(text string) string {
	return strings.NewReplacer("{key}", s.key, "{job}", s.job, "{engine}", s.engine, "{follow}", fmt.Sprint(!s.answers)).Replace(text)
}

// byHTTP makes a call over a connection of its own.
func (s *stoppedPart) byHTTP(ctx context.Context, op operation, call stoppedCall) error {
	body := []byte(s.filled(call.body))
	switch call.body {
	case "tar":
		body = rootTar()
	case "zip":
		body = skillZip()
	}
	req, err := http.NewRequestWithContext(ctx, op.method, "http://cloche"+s.filled(call.path), bytes.NewReader(body))
	if err != nil {
		return err
	}
	if len(body) > 0 {
		req.Header.Set("Content-Type", op.kind)
	}
	one := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.h.Socket())
	}}}
	resp, err := one.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	var e struct{ Error *api.Error }
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	if json.Unmarshal(lines[len(lines)-1], &e) == nil && e.Error != nil {
		return e.Error
	}
	if err == nil && resp.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s: %s", resp.Status, data)
	}
	return err
}

// byClient makes a call by a Go client of its own, and looks that what it asks for first is
// the operation.
func (s *stoppedPart) byClient(ctx context.Context, op operation, call stoppedCall) error {
	asked := &askedConns{asked: map[string]bool{}}
	c, err := client.New(client.Options{Host: "unix://" + s.h.Socket(), Silence: fixture.StoppedDeadline, NoReconnect: true, Dial: asked.dial})
	if err != nil {
		return err
	}
	defer c.Close()
	err = call.by(ctx, c)
	asked.mu.Lock()
	defer asked.mu.Unlock()
	for line := range maps.Keys(asked.asked) {
		method, rest, _ := strings.Cut(line, " ")
		path, _, _ := strings.Cut(rest, " ")
		if op.is(method, path) {
			return err
		}
	}
	return fmt.Errorf("the client asked for %v, and not for %s %s", slices.Collect(maps.Keys(asked.asked)), op.method, op.path)
}

// askedConns notes the first lines of what is written to connections.
type askedConns struct {
	mu    sync.Mutex
	asked map[string]bool
}

func (a *askedConns) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return &askedConn{Conn: conn, of: a}, err
}

type askedConn struct {
	net.Conn
	of *askedConns
}

// Write implements net.Conn.
func (c *askedConn) Write(p []byte) (int, error) {
	line, _, _ := bytes.Cut(p, []byte("\r\n"))
	c.of.mu.Lock()
	c.of.asked[string(line)] = true
	c.of.mu.Unlock()
	return c.Conn.Write(p)
}

// within makes a call that ends by itself.
func (s *stoppedPart) within(name string, most time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(s.Context(), most+fixture.StoppedSlack)
	defer cancel()
	begun := time.Now()
	err := f(ctx)
	took := time.Since(begun)
	if ctx.Err() != nil {
		s.Errorf("%s hangs: after %s %v", name, took, err)
	}
	s.mu.Lock()
	s.latest = max(s.latest, took-most)
	if took > most+stoppedPromise {
		s.late++
	}
	s.mu.Unlock()
	s.Logf("%-20s %8s of %4s %v", name, took.Round(time.Millisecond), most, err)
	return err
}

// streamed reads a stream to the end.
func (s *stoppedPart) streamed(st *client.Stream, err error) error {
	if err != nil {
		return err
	}
	defer st.Close()
	for {
		ev, err := st.Recv()
		if err != nil || ev.Exit != nil {
			return err
		}
	}
}

// hold makes a sandbox that ends with its caller.
func (s *stoppedPart) hold(ctx context.Context, c *client.Client) error {
	held, err := c.Hold(ctx, api.SandboxSpec{Name: "made-held", Engine: s.engine}, nil)
	if err != nil {
		return err
	}
	return held.Close()
}

// rootTar is the archive of a root filesystem with one file, whose content is text.
func rootTar(text ...string) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	content := strings.Join(text, "")
	if w.WriteHeader(&tar.Header{Name: "file", Mode: 0o644, Size: int64(len(content))}) == nil {
		_, _ = w.Write([]byte(content))
	}
	_ = w.Close()
	return out.Bytes()
}
