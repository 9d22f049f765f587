//go:build linux

package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
)

// fork forks a sandbox as core does.
func (w *fixture) fork(m *sandbox.Manager, ref string, names ...string) (forks []api.Sandbox, err error) {
	w.t.Helper()
	_, spec, err := m.ForkSpec(w.t.Context(), operator, ref)
	if err != nil {
		return nil, err
	}
	tmpl, err := m.Capture(w.t.Context(), operator, ref)
	if err != nil {
		return nil, err
	}
	defer tmpl.Release()
	for _, name := range names {
		spec.Name = name
		sb, err := m.CreateFork(w.t.Context(), tmpl, sandbox.StartOptions{Permit: w.permit(spec)}, nil)
		if err != nil {
			return forks, err
		}
		forks = append(forks, sb)
	}
	return forks, nil
}

// failAt has each step fail that point names at the time.
func (w *fixture) failAt(point *string) {
	w.trap = func(_ context.Context, at string) error {
		if at == *point {
			return errWanted
		}
		return nil
	}
}

// templates lists what is left of captures.
func (w *fixture) templates() []string {
	w.t.Helper()
	left, err := filepath.Glob(filepath.Join(w.dir, "owner", "templates", "*"))
	if err != nil {
		w.t.Fatal(err)
	}
	return left
}

// runs checks that a sandbox runs and that programs can be started in it.
func (w *fixture) runs(t *testing.T, m *sandbox.Manager, ref string) {
	t.Helper()
	sb, err := m.Get(operator, ref)
	if err != nil || sb.State != api.StateRunning {
		t.Fatalf("%s is %s, %v", ref, sb.State, err)
	}
	if _, err := m.Exec(t.Context(), operator, ref, permitExec(t, sb, api.ExecRequest{Shell: "true"})); err != nil {
		t.Errorf("exec in %s: %v", ref, err)
	}
}

// TestFork: forks have the files, the processes' records and the rules of their parent, and an identity of their own. The parent
// goes on, running or suspended.
func TestFork(t *testing.T) {
	for _, suspended := range []bool{false, true} {
		w := newFixture(t)
		m := w.manager(false)
		sb := w.create(m, "box")
		w.write(w.inWorkspace(sb, "file"), "kept")
		if _, err := m.StartProcess(t.Context(), operator, sb.ID, permitProcess(t, sb, shell("count", "n=0; while true; do n=$((n+1)); echo line $n; sleep 0.02; done"))); err != nil {
			t.Fatal(err)
		}
		lines := func() int { return strings.Count(output(t, m, sb, api.LogOptions{ExecID: "count"}), "\n") }
		eventually(t, "output", func() bool { return lines() > 3 })
		if suspended {
			if _, err := m.Suspend(t.Context(), operator, "box"); err != nil {
				t.Fatal(err)
			}
		}
		forks, err := w.fork(m, "box", "one", "two")
		if err != nil {
			t.Fatal(err)
		}
		tokens := map[string]bool{string(w.saved(sb.ID).AgentToken): true}
		for n, fork := range forks {
			w.runs(t, m, fork.ID)
			if fork.ID == sb.ID || fork.Name != []string{"one", "two"}[n] || fork.ForkedFrom != sb.ID || fork.ImageDigest != sb.ImageDigest {
				t.Errorf("the fork is %+v", fork)
			}
			if got := w.read(w.inWorkspace(fork, "file")); got != "kept" {
				t.Errorf("its workspace has %q", got)
			}
			w.write(w.inWorkspace(fork, "file"), fork.Name)
			if got := output(t, m, fork, api.LogOptions{ExecID: "count"}); !strings.HasPrefix(got, "line 1\nline 2\n") {
				t.Errorf("the log of its process has %.40q", got)
			}
			token := string(w.saved(fork.ID).AgentToken)
			if tokens[token] || token == "" {
				t.Error("it has the token of another")
			}
			tokens[token] = true
		}
		if got := w.read(w.inWorkspace(sb, "file")); got != "kept" {
			t.Errorf("the parent's workspace has %q", got)
		}
		if left := w.templates(); left != nil {
			t.Errorf("left are %v", left)
		}
		if suspended {
			if got := w.stateOf(m); got != api.StateSuspended {
				t.Errorf("the parent is %s", got)
			}
			if _, err := w.resume(m, "box"); err != nil {
				t.Fatal(err)
			}
		}
		w.runs(t, m, "box")
		before := lines()
		eventually(t, "the parent's program goes on", func() bool { return lines() > before })
		next := w.restart(m)
		for _, ref := range []string{"box", "one", "two"} {
			w.runs(t, next, ref)
			if _, err := next.Delete(t.Context(), operator, ref); err != nil {
				t.Error(err)
			}
		}
		w.nothingLeft(next)
	}
}

// TestForkFails: nothing is left of a fork that fails at any step, and its parent runs.
func TestForkFails(t *testing.T) {
	w := newFixture(t)
	var point string
	w.failAt(&point)
	m := w.manager(false)
	w.create(m, "box")
	for name, faults := range map[string]fake.Faults{
		"suspend": {Fail: map[fake.Step]error{fake.StepSuspend: errWanted}},
		"pause":   {Fail: map[fake.Step]error{fake.StepPause: errWanted}},
		"start":   {Create: map[fake.Step]error{fake.StepStart: errWanted}},
	} {
		w.machine.SetFaults(faults)
		if _, err := w.fork(m, "box", "fork"); err == nil {
			t.Errorf("%s: it was forked", name)
		}
		w.machine.SetFaults(fake.Faults{})
		w.runs(t, m, "box")
	}
	if _, err := m.Suspend(t.Context(), operator, "box"); err != nil { // so that only the forks have steps
		t.Fatal(err)
	}
	for _, step := range []string{"directory", "state", "workspace", "engine", "renew", "endpoints", "record"} {
		for _, point = range []string{"before " + step, "after " + step} {
			if _, err := w.fork(m, "box", "fork"); err == nil {
				t.Errorf("%s: it was forked", point)
			}
			if left, err := filepath.Glob(filepath.Join(w.sandboxes(), "*")); err != nil || len(left) != 1 || w.templates() != nil {
				t.Errorf("%s: left are %v, %v, %v", point, left, w.templates(), err)
			}
		}
	}
	point = ""
	if _, err := w.resume(m, "box"); err != nil {
		t.Fatal(err)
	}
	w.runs(t, m, "box")
	if _, err := m.Delete(t.Context(), operator, "box"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft(m)
}

// TestForkKilled: a daemon that dies in a capture has a successor in which the parent runs and nothing is left of the template.
func TestForkKilled(t *testing.T) {
	for _, point := range []string{"before hold", "before suspend", "after suspend"} {
		w := newFixture(t)
		reached, free := w.trapAt(point)
		m := w.manager(false)
		w.create(m, "box")
		over := make(chan struct{})
		go func() {
			defer close(over)
			_, _ = m.Capture(context.WithoutCancel(t.Context()), operator, "box")
		}()
		<-reached
		sandbox.Crash(m)
		w.trap = nil
		next := w.manager(false)
		if left := w.templates(); left != nil {
			t.Errorf("%s: left are %v", point, left)
		}
		free()
		<-over
		eventually(t, "a sandbox that runs", func() bool {
			got, err := next.Get(operator, "box")
			return err == nil && got.State == api.StateRunning
		})
		if point != "after suspend" { // the memory of the process of the first daemon is gone with it
			w.runs(t, next, "box")
		}
	}
}

// TestForkUnderUse: calls that come while the parent is captured wait for that.
func TestForkUnderUse(t *testing.T) {
	w := newFixture(t)
	saving, released := w.holdAt("before suspend")
	m := w.manager(false)
	sb := w.create(m, "box")
	captured := make(chan error, 1)
	go func() {
		tmpl, err := m.Capture(context.WithoutCancel(t.Context()), operator, "box")
		if err == nil {
			tmpl.Release()
		}
		captured <- err
	}()
	<-saving
	ran := make(chan error, 1)
	go func() {
		_, err := m.Exec(t.Context(), operator, "box", permitExec(t, sb, api.ExecRequest{Shell: "true"}))
		ran <- err
	}()
	select {
	case err := <-ran:
		t.Errorf("an exec returned while the sandbox was captured: %v", err)
		ran <- nil
	case <-time.After(50 * time.Millisecond):
	}
	close(released)
	if err := <-captured; err != nil {
		t.Error(err)
	}
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

// TestForkKeepsExecs: commands that run while the parent is captured continue with their callers.
func TestForkKeepsExecs(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "box")
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	block, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer block.Close()
	collected := make(chan string, 1)
	go func() {
		res, err := m.Exec(t.Context(), operator, "box", permitExec(t, sb, api.ExecRequest{Shell: "read line < " + fifo + "; echo got $line; exit 4"}))
		collected <- fmt.Sprintf("%s, exit %d, %v", res.Stdout, res.ExitStatus(), err)
	}()
	st, err := m.ExecStream(t.Context(), operator, "box", permitExec(t, sb, api.ExecRequest{Shell: "cat; exit 3"}))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	for n := range 5 {
		tmpl, err := m.Capture(t.Context(), operator, "box")
		if err != nil {
			t.Fatal(err)
		}
		tmpl.Release()
		line := fmt.Sprintf("line %d\n", n)
		wrote := make(chan error, 1)
		go func() { // it waits until the stream is read
			_, err := st.Write([]byte(line))
			wrote <- err
		}()
		ev, err := st.Recv()
		if err != nil || string(ev.Data) != line || ev.Seq != uint64(n) {
			t.Fatalf("got %+v, %v", ev, err)
		}
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
	}
	if err := st.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if ev, err := st.Recv(); err != nil || ev.Exit == nil || ev.Exit.ExitStatus() != 3 {
		t.Errorf("got %+v, %v", ev, err)
	}
	if _, err := block.WriteString("it\n"); err != nil {
		t.Fatal(err)
	}
	if got := <-collected; got != "got it\n, exit 4, <nil>" {
		t.Errorf("got %s", got)
	}
}

// TestForkRefused: what only one sandbox can have is not given to forks.
func TestForkRefused(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	host := t.TempDir()
	if err := os.Mkdir(filepath.Join(host, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		spec api.SandboxSpec
		said string
	}{
		"transient": {api.SandboxSpec{Transient: true}, "is transient"},
		"named":     {api.SandboxSpec{Workspace: &api.Workspace{Name: "shared"}}, `the named workspace "shared"`},
	} {
		c.spec.Name = name
		sb, err := m.Create(t.Context(), w.permit(c.spec), nil)
		if err != nil {
			t.Fatal(name, err)
		}
		_, _, err = m.ForkSpec(t.Context(), operator, sb.ID)
		if err == nil || !strings.Contains(err.Error(), c.said) {
			t.Errorf("%s: %v", name, err)
		}
		if _, cerr := m.Capture(t.Context(), operator, sb.ID); cerr == nil || cerr.Error() != err.Error() {
			t.Errorf("%s: a capture: %v", name, cerr)
		}
		w.runs(t, m, name)
	}
	w.create(m, "ended")
	if _, err := m.Stop(t.Context(), operator, "ended", nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.ForkSpec(t.Context(), operator, "ended"); code(err) != api.CodeState {
		t.Errorf("one that has ended: %v", err)
	}
	other := policy.Caller{Tenant: "other"}
	if _, err := m.Capture(t.Context(), other, "named"); code(err) != api.CodeNotFound {
		t.Errorf("another tenant: %v", err)
	}
	if _, err := m.CreateFork(t.Context(), nil, sandbox.StartOptions{}, nil); code(err) != api.CodeDenied {
		t.Errorf("without a permit: %v", err)
	}
}

// TestForksAtOnce: captures at the same time, with execs beside, leave a parent that runs.
func TestForksAtOnce(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "box")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5 {
				tmpl, err := m.Capture(t.Context(), operator, "box")
				if err != nil {
					t.Error(err)
					continue
				}
				tmpl.Release()
			}
		})
		wg.Go(func() {
			for range 20 {
				_, err := m.Exec(t.Context(), operator, "box", permitExec(t, sb, api.ExecRequest{Shell: "true", ExecID: api.NewID("x-")}))
				if code(err) != "" && code(err) != api.CodeState && code(err) != api.CodeUnavailable && code(err) != api.CodeSandboxLost {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	w.runs(t, m, "box")
	if left := w.templates(); left != nil {
		t.Errorf("left are %v", left)
	}
}

// TestForkDuringExec: an exec with an ID goes on over a capture, and its caller gets its result.
func TestForkDuringExec(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "box")
	begun, proceed := filepath.Join(w.dir, "begun"), filepath.Join(w.dir, "go")
	type result struct {
		res api.Result
		err error
	}
	ran := make(chan result, 1)
	go func() {
		res, err := m.Exec(t.Context(), operator, "box", permitExec(t, sb, api.ExecRequest{
			ExecID: "x", Shell: "echo begun; touch " + begun + "; while [ ! -e " + proceed + " ]; do sleep 0.02; done; echo over",
		}))
		ran <- result{res, err}
	}()
	eventually(t, "the exec has begun", func() bool { _, err := os.Stat(begun); return err == nil })
	if _, err := w.fork(m, "box", "fork"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(proceed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := <-ran; r.err != nil || string(r.res.Stdout) != "begun\nover\n" {
		t.Errorf("the exec: %q, %v", r.res.Stdout, r.err)
	}
}
