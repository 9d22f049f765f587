//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
)

func permitProcess(t *testing.T, sb api.Sandbox, spec api.ProcessSpec) policy.ProcessPermit {
	t.Helper()
	if spec.Cwd == "" {
		spec.Cwd = "/" // the imaginary machine has no workspace at its path
	}
	p, err := policy.DecideProcess(spec, policy.SettingsOf(sb), operator, testRules)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// shell is a managed process that runs a script.
func shell(id, script string) api.ProcessSpec {
	return api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: id, Argv: []string{"/bin/sh", "-c", script}}}
}

func start(t *testing.T, m *sandbox.Manager, sb api.Sandbox, spec api.ProcessSpec) api.Process {
	t.Helper()
	p, err := m.StartProcess(t.Context(), operator, sb.ID, permitProcess(t, sb, spec))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ended waits for the end of a process.
func ended(t *testing.T, m *sandbox.Manager, sb api.Sandbox, id string) api.Process {
	t.Helper()
	p, err := m.WaitProcess(t.Context(), operator, sb.ID, id, api.WaitRequest{TimeoutMS: 20_000})
	if err != nil {
		t.Fatal(err)
	}
	if !p.State.Ended() {
		t.Fatalf("%s did not end: %+v", id, p)
	}
	return p
}

// output is what the log of a process holds now, with "<n>" for a gap of n bytes.
func output(t *testing.T, m *sandbox.Manager, sb api.Sandbox, o api.LogOptions) string {
	t.Helper()
	var out strings.Builder
	err := m.Logs(t.Context(), operator, sb.ID, o, func(e api.LogEntry) error {
		switch {
		case e.End != "":
			fmt.Fprintf(&out, "[%s]", e.End)
		case e.Gap > 0:
			fmt.Fprintf(&out, "<%d>", e.Gap)
		}
		out.Write(e.Data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// processEvents are the kinds of the events of one process, in their order.
func (w *fixture) processEvents(id string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var kinds []string
	for _, e := range w.events {
		if k, ok := strings.CutPrefix(string(e.Kind), "process."); ok && e.Process != nil && e.Process.ExecID == id {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

func code(err error) api.Code { return api.CodeOf(err) }

func TestProcessLife(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	spec := shell("web", "echo out; echo err >&2; exec sleep 600")
	spec.Name = "the web"
	p := start(t, m, sb, spec)
	if p.ExecID != "web" || p.Name != "the web" || !p.Managed || p.State != api.ProcessRunning || p.PID == 0 || p.EndedAt != nil || p.ExitCode != nil {
		t.Errorf("started: %+v", p)
	}
	if again := start(t, m, sb, spec); again.PID != p.PID || !again.StartedAt.Equal(p.StartedAt) {
		t.Errorf("a start that was repeated: %+v, want the process that has the id", again)
	}
	_, err := m.StartProcess(t.Context(), operator, "dev", permitProcess(t, sb, shell("web", "exit 3")))
	if code(err) != api.CodeExists {
		t.Errorf("another start with the id: %v, want already_exists", err)
	}
	ours := start(t, m, sb, shell("", "exec sleep 600"))
	if !strings.HasPrefix(ours.ExecID, "p-") {
		t.Errorf("an id of ours is %q", ours.ExecID)
	}
	eventually(t, "the last line is in the list", func() bool {
		ps, err := m.Processes(t.Context(), operator, "dev")
		return err == nil && len(ps) == 2 && ps[0].ExecID == "web" && ps[0].LastStderr == "err" && ps[0].Position == 8
	})
	if got := output(t, m, sb, api.LogOptions{ExecID: "web"}); got != "out\nerr\n" && got != "err\nout\n" {
		t.Errorf("log %q", got)
	}
	if rec, err := m.WaitProcess(t.Context(), operator, "dev", "web", api.WaitRequest{TimeoutMS: 20}); err != nil || rec.State != api.ProcessRunning {
		t.Errorf("a wait whose time is up: %+v, %v", rec, err)
	}
	if err := m.SignalProcess(t.Context(), operator, "dev", "web", api.SignalRequest{Signal: "TERM"}); err != nil {
		t.Fatal(err)
	}
	if rec := ended(t, m, sb, "web"); rec.State != api.ProcessExited || rec.Signal != "TERM" || rec.ExitCode != nil || rec.EndedAt == nil || rec.Running {
		t.Errorf("ended: %+v", rec)
	}
	if err := m.SignalProcess(t.Context(), operator, "dev", "web", api.SignalRequest{Signal: "TERM"}); code(err) != api.CodeState {
		t.Errorf("signal to a dead process: %v, want wrong_state", err)
	}
	eventually(t, "its events are told", func() bool {
		return slices.Equal(w.processEvents("web"), []string{"started", "exited"})
	})
	for _, id := range []string{"web", ours.ExecID} {
		if err := m.RemoveProcess(t.Context(), operator, "dev", id); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Process(t.Context(), operator, "dev", id); code(err) != api.CodeNotFound {
			t.Errorf("after the removal: %v", err)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "processes")); len(left) != 0 {
		t.Errorf("left on disk: %v", left)
	}
	if _, err := m.Process(t.Context(), policy.TCPCaller(), sb.ID, "web"); code(err) != api.CodeNotFound {
		t.Errorf("another tenant's get: %v", err)
	}
}

func TestZeroProcessPermit(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	if _, err := m.StartProcess(t.Context(), operator, sb.ID, policy.ProcessPermit{}); !errors.Is(err, api.ErrDenied) {
		t.Errorf("start with no permit: %v", err)
	}
}

// A program that cannot be executed is an error of its start, leaves nothing and
// disturbs no other process.
func TestFailedStartsDisturbNobody(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	pids := map[string]int{}
	for i := range 3 {
		spec := shell("live"+strconv.Itoa(i), "while read -r x; do echo \"$x\"; done")
		spec.OpenStdin = true
		pids[spec.ExecID] = start(t, m, sb, spec).PID
	}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			spec := api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: "bad" + strconv.Itoa(i), Argv: []string{"/no/such/program"}}}
			if i%2 == 0 {
				spec = shell(spec.ExecID, "exit 9")
			}
			_, err := m.StartProcess(t.Context(), operator, sb.ID, permitProcess(t, sb, spec))
			switch {
			case i%2 == 0 && err != nil:
				t.Error(err)
			case i%2 == 1 && code(err) != api.CodeCommandNotFound:
				t.Errorf("a program that does not exist: %v", err)
			case i%2 == 0:
				rec, err := m.WaitProcess(t.Context(), operator, sb.ID, spec.ExecID, api.WaitRequest{})
				if err != nil || rec.ExitCode == nil || *rec.ExitCode != 9 {
					t.Errorf("one that ended at once: %+v, %v", rec, err)
				}
			}
		})
	}
	for id := range pids {
		for range 20 {
			if _, err := m.WriteStdin(t.Context(), operator, sb.ID, id, nil, strings.NewReader("x\n"), false); err != nil {
				t.Error(err)
			}
		}
	}
	wg.Wait()
	ps, err := m.Processes(t.Context(), operator, sb.ID)
	if err != nil || len(ps) != 53 {
		t.Errorf("%d processes, %v; want the 3 that live and the 50 that were executed", len(ps), err)
	}
	for id, pid := range pids {
		rec, err := m.Process(t.Context(), operator, sb.ID, id)
		if err != nil || rec.State != api.ProcessRunning || rec.PID != pid || rec.Restarts != 0 {
			t.Errorf("%s: %+v, %v", id, rec, err)
		}
		eventually(t, "it answered", func() bool { return output(t, m, sb, api.LogOptions{ExecID: id}) == strings.Repeat("x\n", 20) })
	}
	dirs, err := os.ReadDir(filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "processes"))
	if err != nil || len(dirs) != 53 {
		t.Errorf("%d directories, %v", len(dirs), err)
	}
}

func TestReadyAndRestart(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	spec := shell("server", "read -r _; echo serving; exec sleep 600")
	spec.OpenStdin, spec.Ready = true, &api.Readiness{Log: "^serving$"}
	if p := start(t, m, sb, spec); p.State != api.ProcessRunning || p.ReadyAt != nil {
		t.Errorf("before it is ready: %+v", p)
	}
	waited := make(chan api.Process)
	go func() {
		p, _ := m.WaitProcess(t.Context(), operator, sb.ID, "server", api.WaitRequest{Ready: true})
		waited <- p
	}()
	if _, err := m.WriteStdin(t.Context(), operator, sb.ID, "server", nil, strings.NewReader("go\n"), false); err != nil {
		t.Fatal(err)
	}
	if p := <-waited; p.State != api.ProcessReady || p.ReadyAt == nil {
		t.Errorf("ready: %+v", p)
	}

	spec = shell("slow", "exec sleep 600")
	spec.Ready = &api.Readiness{Log: "never", TimeoutMS: 50}
	start(t, m, sb, spec)
	eventually(t, "it is said not to be ready", func() bool { return slices.Contains(w.processEvents("slow"), "not_ready") })
	if p, err := m.Process(t.Context(), operator, sb.ID, "slow"); err != nil || p.State != api.ProcessRunning || p.Reason == "" {
		t.Errorf("not ready in time: %+v, %v; want one that goes on", p, err)
	}

	spec = shell("crashing", "echo run; exit 1")
	spec.Restart = &api.Restart{Policy: api.RestartOnFailure, MaxRestarts: 2, BackoffMS: 20, MaxBackoffMS: 20}
	start(t, m, sb, spec)
	if p := ended(t, m, sb, "crashing"); p.State != api.ProcessFailed || p.Restarts != 2 || p.Reason == "" {
		t.Errorf("restarted as often as it may: %+v", p)
	}
	if got := output(t, m, sb, api.LogOptions{ExecID: "crashing"}); got != "run\nrun\nrun\n" {
		t.Errorf("log over the restarts: %q", got)
	}
	eventually(t, "its events are told", func() bool {
		got := w.processEvents("crashing")
		return len(got) >= 3 && got[0] == "started" && got[len(got)-1] == "failed" && slices.Contains(got, "restarted")
	})
	if got := w.processEvents("server"); !slices.Equal(got, []string{"started", "ready"}) {
		t.Errorf("events %v", got)
	}
}

func TestStdinHasOffsets(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	spec := shell("cat", "exec cat")
	spec.OpenStdin = true
	start(t, m, sb, spec)
	write := func(offset *int64, text string, end bool) (int64, error) {
		ack, err := m.WriteStdin(t.Context(), operator, sb.ID, "cat", offset, strings.NewReader(text), end)
		return ack.Offset, err
	}
	for _, step := range []struct {
		offset *int64
		text   string
		want   int64
	}{{nil, "abc", 3}, {new(int64(0)), "abc", 3}, {new(int64(2)), "cde", 5}, {nil, "", 5}, {nil, strings.Repeat("x", 200_000), 200_005}} {
		if got, err := write(step.offset, step.text, false); err != nil || got != step.want {
			t.Errorf("after %.10q: offset %d, %v; want %d", step.text, got, err, step.want)
		}
	}
	for _, c := range []struct {
		offset int64
		text   string
	}{{200_003, "other"}, {200_003, "xy"}, {0, "abc"}} {
		if _, err := write(&c.offset, c.text, false); code(err) != api.CodeConflict {
			t.Errorf("%q at %d, which is another's or long ago: %v, want conflict", c.text, c.offset, err)
		}
	}
	if got, err := write(new(int64(5)), strings.Repeat("x", 200_000), false); err != nil || got != 200_005 {
		t.Errorf("a long write that is repeated as a whole: %d, %v", got, err)
	}
	if _, err := write(new(int64(300_000)), "hole", false); code(err) != api.CodeInvalid {
		t.Errorf("a hole: %v, want invalid", err)
	}
	if got, err := write(nil, "\n", true); err != nil || got != 200_006 {
		t.Errorf("the last: %d, %v", got, err)
	}
	if p := ended(t, m, sb, "cat"); p.ExitCode == nil || *p.ExitCode != 0 || p.StdinOffset != 200_006 {
		t.Errorf("cat ended %+v", p)
	}
	if _, err := write(nil, "more", false); code(err) != api.CodeState {
		t.Errorf("input for what has ended: %v, want wrong_state", err)
	}
	if got := output(t, m, sb, api.LogOptions{ExecID: "cat"}); got != "abcde"+strings.Repeat("x", 200_000)+"\n" {
		t.Errorf("cat wrote %d bytes, %.20q", len(got), got)
	}
	start(t, m, sb, shell("deaf", "exec sleep 600"))
	if _, err := m.WriteStdin(t.Context(), operator, sb.ID, "deaf", nil, strings.NewReader("x"), false); code(err) != api.CodeState {
		t.Errorf("input for a closed stdin: %v, want wrong_state", err)
	}
	if err := m.ResizeProcess(t.Context(), operator, sb.ID, "deaf", api.Size{}); code(err) != api.CodeInvalid {
		t.Errorf("resize to 0×0: %v", err)
	}
	if err := m.ResizeProcess(t.Context(), operator, sb.ID, "deaf", api.Size{Rows: 1, Cols: 1}); code(err) != api.CodeState {
		t.Errorf("resize of what has no terminal: %v", err)
	}
	if _, err := m.WriteStdin(t.Context(), operator, sb.ID, "nobody", nil, strings.NewReader("x"), false); code(err) != api.CodeNotFound {
		t.Errorf("input for nobody: %v", err)
	}
}

// A program that does not read blocks only its writers.
func TestStdinThatNobodyReads(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	for _, id := range []string{"deaf", "cat"} {
		spec := shell(id, map[string]string{"deaf": "exec sleep 600", "cat": "exec cat"}[id])
		spec.OpenStdin = true
		start(t, m, sb, spec)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	held := make(chan error)
	go func() {
		_, err := m.WriteStdin(ctx, operator, sb.ID, "deaf", nil, strings.NewReader(strings.Repeat("x", 4<<20)), false)
		held <- err
	}()
	if _, err := m.WriteStdin(t.Context(), operator, sb.ID, "cat", nil, strings.NewReader("x"), true); err != nil {
		t.Error(err)
	}
	ended(t, m, sb, "cat")
	if err := <-held; err == nil {
		t.Error("4 MiB were written to a process that does not read")
	}
	// What came through is known.
	rec, err := m.WriteStdin(t.Context(), operator, sb.ID, "deaf", nil, strings.NewReader(""), false)
	if err != nil || rec.Offset <= 0 || rec.Offset >= 4<<20 {
		t.Errorf("offset after it was given up: %+v, %v", rec, err)
	}
}

func TestProcessesOfAnEndedSandbox(t *testing.T) {
	for _, how := range []string{"stop", "kill", "die"} {
		t.Run(how, func(t *testing.T) {
			w := newFixture(t)
			m := w.manager(false)
			sb := w.create(m, "dev")
			start(t, m, sb, shell("done", "echo done; exit 4"))
			ended(t, m, sb, "done")
			start(t, m, sb, shell("kind", "exec 2>/dev/null; trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.02; done"))
			eventually(t, "it is up", func() bool { return output(t, m, sb, api.LogOptions{ExecID: "kind"}) == "up\n" })
			followed := make(chan string, 2)
			for _, id := range []string{"kind", ""} {
				go func() {
					var got string
					err := m.Logs(t.Context(), operator, sb.ID, api.LogOptions{ExecID: id, Follow: true}, func(e api.LogEntry) error {
						if got += string(e.Data); e.End != "" {
							got += "[" + e.End + "]"
						}
						return nil
					})
					if err != nil {
						t.Error(err)
					}
					followed <- got
				}()
			}
			var err error
			switch how {
			case "stop":
				_, err = m.Stop(t.Context(), operator, "dev", new(5*time.Second))
			case "kill":
				_, err = m.Kill(t.Context(), operator, "dev")
			case "die":
				killByRecord(t, w, sb.ID)
				<-w.lost
			}
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if got := <-followed; !strings.HasSuffix(got, "]") {
					t.Errorf("a follower got %q, want the reason at the end", got)
				}
			}
			rec := ended(t, m, sb, "kind")
			switch {
			case how == "stop" && (rec.State != api.ProcessExited || rec.ExitCode == nil || *rec.ExitCode != 5):
				t.Errorf("after a stop: %+v", rec)
			case how != "stop" && (rec.State != api.ProcessUnknown || rec.ExitCode != nil || rec.Signal != "" || rec.Reason == ""):
				t.Errorf("an end that nobody saw: %+v", rec)
			}
			want := "up\n"
			if how == "stop" {
				want = "up\nbye\n"
			}
			if got := output(t, m, sb, api.LogOptions{ExecID: "kind"}); got != want {
				t.Errorf("log %q, want %q", got, want)
			}
			if rec := ended(t, m, sb, "done"); rec.State != api.ProcessExited || *rec.ExitCode != 4 {
				t.Errorf("one that had ended before: %+v", rec)
			}
			if ps, err := m.Processes(t.Context(), operator, "dev"); err != nil || len(ps) != 2 || ps[0].ExecID != "done" {
				t.Errorf("processes: %+v, %v", ps, err)
			}
			// The same is on disk.
			if err := m.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			m = w.manager(false)
			if again, err := m.Process(t.Context(), operator, "dev", "kind"); err != nil || again.State != rec.State || again.Reason != rec.Reason || again.Position != int64(len(want)) {
				t.Errorf("after a restart of the daemon: %+v, %v", again, err)
			}
			if got := output(t, m, sb, api.LogOptions{ExecID: "kind", Follow: true}); !strings.HasPrefix(got, want+"[") {
				t.Errorf("its log after a restart: %q", got)
			}
			if err := m.Remove(t.Context(), operator, "dev"); err != nil {
				t.Fatal(err)
			}
			w.nothingLeft(m)
		})
	}
}

func TestExecWithAnIDOfTheCallers(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	file := filepath.Join(t.TempDir(), "runs")
	req := api.ExecRequest{ExecID: "mine", Shell: "echo run | tee -a " + file}
	for range 3 {
		res, err := m.Exec(t.Context(), operator, "dev", permitExec(t, sb, req))
		if err != nil || string(res.Stdout) != "run\n" || res.ExecID != "mine" || !res.OK() {
			t.Errorf("exec: %+v, %v", res, err)
		}
	}
	if runs, err := os.ReadFile(file); err != nil || string(runs) != "run\n" {
		t.Errorf("it ran: %q, %v; want once", runs, err)
	}
	req.Shell = "true"
	if _, err := m.Exec(t.Context(), operator, "dev", permitExec(t, sb, req)); code(err) != api.CodeExists {
		t.Errorf("another request with the id: %v", err)
	}
	start(t, m, sb, shell("managed", "exit 0"))
	req.ExecID = "managed"
	if _, err := m.Exec(t.Context(), operator, "dev", permitExec(t, sb, req)); code(err) != api.CodeExists {
		t.Errorf("the id of a managed process: %v", err)
	}
	if rec, err := m.WaitProcess(t.Context(), operator, "dev", "mine", api.WaitRequest{}); err != nil || rec.Managed || rec.State != api.ProcessExited {
		t.Errorf("wait for an exec: %+v, %v", rec, err)
	}
	if err := m.RemoveProcess(t.Context(), operator, "dev", "mine"); code(err) != api.CodeState {
		t.Errorf("remove of an exec: %v", err)
	}
}

func TestDialPort(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	w.create(m, "dev")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, conn)
	}()
	conn, err := m.DialPort(t.Context(), operator, "dev", ln.Addr().(*net.TCPAddr).Port)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
		t.Errorf("echoed %q, %v", got, err)
	}
	conn.Close()
	port := ln.Addr().(*net.TCPAddr).Port
	ln.Close()
	if _, err := m.DialPort(t.Context(), operator, "dev", port); code(err) != api.CodeUnavailable {
		t.Errorf("a port that nothing listens on: %v", err)
	}
}
