//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/test/longtest"
)

// calls are how often the engine was asked to pause and resume a sandbox.
func (w *fixture) calls(id string) fake.Calls {
	w.t.Helper()
	c, err := w.machine.Calls(sandbox.EngineStateForTest(w.t, filepath.Join(w.dir, "owner", "sandboxes", id)))
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func TestPauseAndResume(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "x", Limits: api.Limits{IdleMS: 3_600_000}}), nil)
	if err != nil {
		t.Fatal(err)
	}
	if sb.ExpiresAt == nil {
		t.Error("a leased sandbox expires at no time")
	}
	if got, err := m.Resume(t.Context(), operator, "x"); err != nil || got.State != api.StateRunning {
		t.Errorf("resume of what runs: %s, %v", got.State, err)
	}
	for range 2 { // the second finds it done
		got, err := m.Pause(t.Context(), operator, "x")
		if err != nil || got.State != api.StatePaused || got.ExpiresAt != nil {
			t.Fatalf("pause: %s, expires at %v, %v", got.State, got.ExpiresAt, err)
		}
	}
	_, err = m.Exec(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: "true"}))
	if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeState || e.Message != "sandbox x is paused" || e.Hint != "cloche resume x" {
		t.Errorf("exec in a paused sandbox: %v", err)
	}
	if _, err := m.StatFile(t.Context(), operator, "x", api.FilePlace{Path: "/"}, false); api.CodeOf(err) != api.CodeState {
		t.Errorf("stat in a paused sandbox: %v", err)
	}
	if _, err := m.Pause(t.Context(), policy.TCPCaller(), "x"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("another tenant's pause: %v", err)
	}
	got, err := m.Resume(t.Context(), operator, "x")
	if err != nil || got.State != api.StateRunning || got.ExpiresAt == nil {
		t.Fatalf("resume: %s, expires at %v, %v", got.State, got.ExpiresAt, err)
	}
	if res, err := m.Exec(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: "exit 4"})); err != nil || *res.ExitCode != 4 {
		t.Errorf("exec after the resume: %+v, %v", res, err)
	}
	if c := w.calls(sb.ID); c != (fake.Calls{Pauses: 1, Resumes: 1}) {
		t.Errorf("the engine was asked %+v", c)
	}
	if err := m.Remove(t.Context(), operator, "x"); err != nil {
		t.Error(err)
	}
	if _, err := m.Pause(t.Context(), operator, "x"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("pause of what is gone: %v", err)
	}
	if got := w.kinds(); !slices.Equal(got, []string{"created", "paused", "resumed", "stopping", "stopped", "removed"}) {
		t.Errorf("events %v", got)
	}
	w.nothingLeft(m)
}

// The timeout of an exec that is under way is paused with its sandbox.
func TestPauseHoldsTimeouts(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "x")
	// pausedFor is how an exec ends that is paused for longer than its timeout, and
	// ends as soon as it goes on.
	pausedFor := func(timeout time.Duration) *api.Result {
		goOn := filepath.Join(t.TempDir(), "go-on")
		script := "echo up; while ! [ -e " + goOn + " ]; do sleep 0.01; done; exit 6"
		st, err := m.ExecStream(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: script, TimeoutMS: new(timeout.Milliseconds())}))
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		if ev, err := st.Recv(); err != nil || ev.Exit != nil {
			return ev.Exit
		}
		if _, err := m.Pause(t.Context(), operator, "x"); err != nil {
			t.Fatal(err)
		}
		<-time.After(timeout + timeout/4)
		if err := os.WriteFile(goOn, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Resume(t.Context(), operator, "x"); err != nil {
			t.Fatal(err)
		}
		for {
			ev, err := st.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if ev.Exit != nil {
				return ev.Exit
			}
		}
	}
	// What a busy machine takes before the pause and after it counts: longer where that
	// was all of it.
	for timeout := time.Second; ; timeout *= 2 {
		end := pausedFor(timeout)
		if end != nil && !end.TimedOut && end.ExitCode != nil && *end.ExitCode == 6 {
			return
		}
		if timeout > 10*time.Second {
			t.Fatalf("with a timeout of %s it ended with %+v", timeout, end)
		}
	}
}

// A paused sandbox can be stopped gracefully, killed and removed, and one
// that dies is seen to be lost.
func TestEndsOfAPausedSandbox(t *testing.T) {
	for _, how := range []string{"stop", "kill", "rm", "die", "close"} {
		t.Run(how, func(t *testing.T) {
			w := newFixture(t)
			m := w.manager(false)
			sb, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "x", Persistent: new(false)}), nil)
			if err != nil {
				t.Fatal(err)
			}
			st, err := m.ExecStream(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: `trap "echo flushed; exit 0" TERM; echo up; while :; do sleep 0.05; done`}))
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			if _, err := st.Recv(); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Pause(t.Context(), operator, "x"); err != nil {
				t.Fatal(err)
			}
			want := api.StateStopped
			switch how {
			case "stop":
				_, err = m.Stop(t.Context(), operator, "x", nil)
			case "kill":
				_, err = m.Kill(t.Context(), operator, "x")
			case "rm":
				err = m.Remove(t.Context(), operator, "x")
			case "die":
				killByRecord(t, w, sb.ID)
				<-w.lost
				want = api.StateLost
			case "close":
				err = m.Close(t.Context())
				m = w.manager(false)
			}
			if err != nil {
				t.Fatal(err)
			}
			if how != "rm" {
				if got, err := m.Get(operator, "x"); err != nil || got.State != want {
					t.Errorf("it is %s, %v", got.State, err)
				}
				if got := logsOf(t, m); strings.Contains(got, "flushed") != (how == "stop" || how == "close") {
					t.Errorf("logs after %s: %q", how, got)
				}
				if err := m.Remove(t.Context(), operator, "x"); err != nil {
					t.Error(err)
				}
			}
			w.nothingLeft(m)
		})
	}
}

func logsOf(t *testing.T, m *sandbox.Manager) string {
	t.Helper()
	var out strings.Builder
	err := m.Logs(t.Context(), operator, "x", api.LogOptions{}, func(e api.LogEntry) error {
		out.Write(e.Data)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return out.String()
}

// A pause or resume that fails leaves the sandbox as it was.
func TestFaultsOfPauseAndResume(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "x")
	works := func() {
		t.Helper()
		if res, err := m.Exec(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: "exit 4"})); err != nil || *res.ExitCode != 4 {
			t.Errorf("exec: %+v, %v", res, err)
		}
	}
	w.machine.SetFaults(fake.Faults{Fail: map[fake.Step]error{fake.StepPause: errWanted}})
	if _, err := m.Pause(t.Context(), operator, "x"); api.CodeOf(err) != api.CodeInternal || strings.Contains(err.Error(), "wanted") {
		t.Errorf("a pause that fails: %v", err)
	}
	works()
	w.machine.SetFaults(fake.Faults{})
	if _, err := m.Pause(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	w.machine.SetFaults(fake.Faults{Fail: map[fake.Step]error{fake.StepResume: errWanted}})
	if got, err := m.Resume(t.Context(), operator, "x"); api.CodeOf(err) != api.CodeInternal {
		t.Errorf("a resume that fails: %s, %v", got.State, err)
	}
	if got, _ := m.Get(operator, "x"); got.State != api.StatePaused {
		t.Errorf("after a resume that failed it is %s", got.State)
	}
	w.machine.SetFaults(fake.Faults{})
	if _, err := m.Resume(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	works()
	w.machine.SetFaults(fake.Faults{Die: fake.StepPause})
	// Its death may be seen only when the pause is done.
	if _, err := m.Pause(t.Context(), operator, "x"); err != nil && !errors.Is(err, api.ErrSandboxLost) {
		t.Errorf("a pause that kills: %v", err)
	}
	if lost := <-w.lost; lost.ID != sb.ID || lost.State != api.StateLost {
		t.Errorf("lost %+v", lost)
	}
	if got, _ := m.Get(operator, "x"); got.State != api.StateLost {
		t.Errorf("after a pause that killed it is %s", got.State)
	}
}

// A paused sandbox is as paused for the next daemon; one in whose pause or
// resume the daemon was killed runs.
func TestPauseAndTheNextDaemon(t *testing.T) {
	pausing := points(t, func(w *fixture, m *sandbox.Manager, begin func()) {
		w.create(m, "x")
		begin()
		if _, err := m.Pause(t.Context(), operator, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Resume(t.Context(), operator, "x"); err != nil {
			t.Fatal(err)
		}
	})
	if len(pausing) != 5 {
		t.Fatalf("points of a pause and a resume: %v", pausing)
	}
	for _, point := range append(pausing, "") {
		t.Run("killed "+point, func(t *testing.T) {
			w := newFixture(t)
			reached, free := w.trapAt(point)
			first := w.manager(false)
			sb := w.create(first, "x")
			var wg sync.WaitGroup
			ctx := context.WithoutCancel(t.Context())
			wg.Go(func() {
				_, err := first.Pause(ctx, operator, "x")
				if err == nil && point != "" {
					_, _ = first.Resume(ctx, operator, "x")
				}
			})
			if point == "" {
				wg.Wait()
				if err := first.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				<-reached
				sandbox.Crash(first)
			}
			w.trap = nil
			second := w.manager(false)
			if point == "" {
				if got, err := second.Get(operator, "x"); err != nil || got.State != api.StatePaused {
					t.Errorf("for the next daemon it is %s, %v", got.State, err)
				}
				if _, err := second.Resume(t.Context(), operator, "x"); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "it runs", func() bool { got, _ := second.Get(operator, "x"); return got.State == api.StateRunning })
			if res, err := second.Exec(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: "exit 4", TimeoutMS: new(int64(5000))})); err != nil || res.ExitCode == nil || *res.ExitCode != 4 {
				t.Errorf("exec: %+v, %v", res, err)
			}
			if res, err := second.Exec(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: "sleep 60", TimeoutMS: new(int64(100))})); err != nil || !res.TimedOut {
				t.Errorf("the timers of its agent stand still: %+v, %v", res, err)
			}
			free()
			wg.Wait()
			if err := second.Remove(t.Context(), operator, "x"); err != nil {
				t.Error(err)
			}
			w.nothingLeft(second)
		})
	}
}

// A sandbox that is not persistent is stopped with its grace when the daemon is
// shut down, and a named workspace outlives it and its record.
func TestShutdownFlushes(t *testing.T) {
	w := newFixture(t)
	first := w.manager(false)
	spec := api.SandboxSpec{Name: "x", Persistent: new(false), Workspace: &api.Workspace{Name: "kept"}}
	sb, err := first.Create(t.Context(), w.permit(spec), nil)
	if err != nil {
		t.Fatal(err)
	}
	if sb.Persistent {
		t.Error("it says that it is persistent")
	}
	st, err := first.ExecStream(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: `trap "echo flushed; exit 0" TERM; echo up; while :; do sleep 0.05; done`}))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if _, err := st.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := w.manager(false)
	if got, err := second.Get(operator, "x"); err != nil || got.State != api.StateStopped || got.Reason != "the daemon was shut down" {
		t.Errorf("it is %s (%s), %v", got.State, got.Reason, err)
	}
	if got := logsOf(t, second); !strings.Contains(got, "flushed") {
		t.Errorf("logs %q", got)
	}
	if err := second.Remove(t.Context(), operator, "x"); err != nil {
		t.Error(err)
	}
	if found, err := filepath.Glob(filepath.Join(w.dir, "workspaces", "*", "kept*")); err != nil || len(found) == 0 {
		t.Errorf("the named workspace is gone: %v, %v", found, err)
	}

	// The end of the context cuts a grace short.
	stubborn, err := second.Create(t.Context(), w.permit(api.SandboxSpec{Name: "y", Persistent: new(false)}), nil)
	if err != nil {
		t.Fatal(err)
	}
	st, err = second.ExecStream(t.Context(), operator, "y", permitExec(t, stubborn, api.ExecRequest{Shell: `trap "" TERM; echo up; while :; do sleep 0.05; done`}))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if _, err := st.Recv(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if err := second.Close(ctx); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > defaultGrace-time.Second {
		t.Errorf("a shutdown with 300ms took %s", took)
	}
	if left := w.machine.Left(); len(left) != 0 {
		t.Errorf("instances are left: %v", left)
	}
}

// defaultGrace is the default of package sandbox.
const defaultGrace = 10 * time.Second

// A transient sandbox goes, with all that it holds, when its holder does.
func TestTransientGoesWithItsHolder(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "x", Transient: true}), nil)
	if err != nil {
		t.Fatal(err)
	}
	release, err := m.Hold(operator, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	release()
	eventually(t, "it is gone", func() bool { return len(states(m)) == 0 })
	w.nothingLeft(m)
	if _, err := os.Stat(filepath.Join(w.dir, "owner", "sandboxes", sb.ID)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
}

// unwritable keeps the record of a sandbox from being replaced until the returned
// function is called.
func (w *fixture) unwritable(id string) (undo func()) {
	w.t.Helper()
	path := filepath.Join(w.dir, "owner", "sandboxes", id, "sandbox.json")
	kept := path + ".kept"
	if err := errors.Join(os.Rename(path, kept), os.MkdirAll(filepath.Join(path, "in the way"), 0o700)); err != nil {
		w.t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		if err := errors.Join(os.RemoveAll(path), os.Rename(kept, path)); err != nil {
			w.t.Error(err)
		}
	})
}

// A pause that the daemon takes for a snapshot or a look at the root ends by itself,
// also when the record cannot be written from any point on, and the record is right
// when it can be.
func TestQuiesceEndsWithoutARecord(t *testing.T) {
	longtest.Skip(t, "it waits for retries of a record")
	takes := map[string]func(m *sandbox.Manager) error{
		"diff": func(m *sandbox.Manager) error {
			_, err := m.Diff(t.Context(), operator, "x", api.DiffOptions{Scope: api.DiffRoot})
			return err
		},
	}
	for _, scope := range []api.SnapshotScope{api.SnapshotFiles, api.SnapshotRoot, api.SnapshotWorkspace} {
		takes[string(scope)] = func(m *sandbox.Manager) error {
			_, err := m.Snapshot(t.Context(), operator, "x", permitSnapshot(t, api.SnapshotRequest{Scope: scope}))
			return err
		}
	}
	for what, take := range takes {
		for _, point := range []string{"before hold", "before pause", "after pause", "copying", "before resume", "after resume"} {
			t.Run(what+" "+point, func(t *testing.T) {
				w := newFixture(t)
				var mu sync.Mutex
				var sb api.Sandbox
				var undo func()
				w.trap = func(_ context.Context, p string) error {
					mu.Lock()
					defer mu.Unlock()
					if p == point && undo == nil && sb.ID != "" {
						undo = w.unwritable(sb.ID)
					}
					return nil
				}
				m := w.manager(false)
				made := w.create(m, "x")
				mu.Lock()
				sb = made
				mu.Unlock()
				w.write(w.inWorkspace(sb, "f"), "content")
				_ = take(m) // it may fail
				if got := states(m)[0]; got != api.StateRunning {
					t.Fatalf("it is left %s", got)
				}
				if res, err := m.Exec(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: "exit 4", TimeoutMS: new(int64(20_000))})); err != nil || res.ExitCode == nil || *res.ExitCode != 4 {
					t.Errorf("exec: %+v, %v", res, err)
				}
				mu.Lock()
				if undo != nil {
					undo()
				}
				mu.Unlock()
				if c := w.calls(sb.ID); c.Resumes < c.Pauses {
					t.Errorf("the engine was asked %+v", c)
				}
				eventually(t, "the record says that it runs", func() bool {
					data, err := os.ReadFile(filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "sandbox.json"))
					return err == nil && strings.Contains(string(data), `"state":"running"`) && !strings.Contains(string(data), `"Unsettled":true`)
				})
			})
		}
	}
}

// A resume that a caller asks for needs no record, and a pause is not begun without.
func TestPauseAndResumeWithoutARecord(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "x")
	undo := w.unwritable(sb.ID)
	if _, err := m.Pause(t.Context(), operator, "x"); err == nil {
		t.Error("a pause without a record succeeded")
	}
	if got := states(m)[0]; got != api.StateRunning {
		t.Fatalf("it is %s", got)
	}
	undo()
	if _, err := m.Pause(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	undo = w.unwritable(sb.ID)
	if got, err := m.Resume(t.Context(), operator, "x"); err != nil || got.State != api.StateRunning {
		t.Errorf("a resume without a record: %s, %v", got.State, err)
	}
	undo()
}

// A quiesce whose end fails is ended in the background; a pause that a caller
// requests meanwhile is kept.
func TestQuiesceIsResumedLater(t *testing.T) {
	for _, kept := range []bool{false, true} {
		w := newFixture(t)
		m := w.manager(false)
		w.create(m, "x")
		w.machine.SetFaults(fake.Faults{Fail: map[fake.Step]error{fake.StepResume: errWanted}})
		if _, err := m.Snapshot(t.Context(), operator, "x", permitSnapshot(t, api.SnapshotRequest{Scope: api.SnapshotWorkspace})); err == nil {
			t.Error("a snapshot whose sandbox could not be resumed succeeded")
		}
		if kept {
			if _, err := m.Pause(t.Context(), operator, "x"); err != nil {
				t.Fatal(err)
			}
		}
		w.machine.SetFaults(fake.Faults{})
		if kept {
			if got := states(m)[0]; got != api.StatePaused || sandbox.OwesResume(m, "x") {
				t.Errorf("what was asked to be paused is %s, and may be resumed", got)
			}
			continue
		}
		eventually(t, "it runs", func() bool { return states(m)[0] == api.StateRunning })
	}
}

// A removal that the daemon did not survive ends as what it was: with the reason and
// the caller that were there first.
func TestRemovalKeepsItsReasonForTheNextDaemon(t *testing.T) {
	for _, persistent := range []bool{false, true} {
		w := newFixture(t)
		reached, free := w.trapAt("removing")
		first := w.manager(false)
		spec := api.SandboxSpec{Name: "x", Persistent: &persistent}
		sb, err := first.Create(t.Context(), w.permit(spec), nil)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		ctx := context.WithoutCancel(t.Context())
		wg.Go(func() { _, _ = first.Delete(ctx, operator, "x") })
		<-reached
		sandbox.Crash(first)
		w.trap = nil
		second := w.manager(false)
		var gone api.Sandbox
		eventually(t, "it is removed", func() (ok bool) {
			gone, ok = second.Removed(operator, sb.ID)
			return ok
		})
		if gone.TerminalReason != api.EndedDeleted || !strings.Contains(gone.Reason, operator.Origin()) {
			t.Errorf("persistent %v: it ended as %s, %q", persistent, gone.TerminalReason, gone.Reason)
		}
		free()
		wg.Wait()
		// What is known of it is there before the last of it has gone.
		eventually(t, "nothing is listed", func() bool { return len(second.List(operator, api.ListOptions{}).Sandboxes) == 0 })
		w.nothingLeft(second)
	}
}
