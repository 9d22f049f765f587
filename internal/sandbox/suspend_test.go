//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
)

// resume resumes a suspended sandbox as core does.
func (w *fixture) resume(m *sandbox.Manager, ref string) (api.Sandbox, error) {
	w.t.Helper()
	_, spec, err := m.SuspendedSpec(w.t.Context(), operator, ref)
	if err != nil {
		return api.Sandbox{}, err
	}
	if spec == nil {
		return m.Resume(w.t.Context(), operator, ref)
	}
	return m.ResumeSuspended(w.t.Context(), operator, ref, sandbox.StartOptions{Permit: w.permit(*spec)})
}

// memory lists the saved memory of a sandbox.
func (w *fixture) memory(id string) []string {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.sandboxes(), id, "memory"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestSuspend: a program goes on in the daemon that suspended its sandbox, and in the next one.
func TestSuspend(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "box")
	if _, err := m.StartProcess(t.Context(), operator, sb.ID, permitProcess(t, sb, shell("count", "n=0; while true; do n=$((n+1)); echo line $n; sleep 0.02; done"))); err != nil {
		t.Fatal(err)
	}
	lines := func() int { return strings.Count(output(t, m, sb, api.LogOptions{ExecID: "count"}), "\n") }
	for n := range 3 {
		eventually(t, "output", func() bool { return lines() > 10*(n+1) })
		for range 2 { // the second finds it done
			got, err := m.Suspend(t.Context(), operator, "box")
			if err != nil || got.State != api.StateSuspended || got.SuspendedAt == nil || got.MemoryBytes == 0 {
				t.Fatalf("suspend: %+v, %v", got, err)
			}
		}
		if len(w.memory(sb.ID)) == 0 {
			t.Fatal("no memory was saved")
		}
		_, err := m.Exec(t.Context(), operator, "box", permitExec(t, sb, api.ExecRequest{Shell: "true"}))
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeState || e.Message != "sandbox box is suspended" || e.Hint != "cloche resume box" {
			t.Errorf("exec in a suspended sandbox: %v", err)
		}
		if procs, err := m.Processes(t.Context(), operator, "box"); err != nil || len(procs) != 1 || procs[0].State != api.ProcessRunning {
			t.Errorf("processes of a suspended sandbox: %+v, %v", procs, err)
		}
		before := lines()
		if n == 1 {
			m = w.restart(m)
		}
		got, err := w.resume(m, "box")
		if err != nil || got.State != api.StateRunning || got.SuspendedAt != nil || got.MemoryBytes != 0 || got.ResumedAt == nil {
			t.Fatalf("resume: %+v, %v", got, err)
		}
		if names := w.memory(sb.ID); names != nil {
			t.Errorf("after the resume there is %v", names)
		}
		eventually(t, "more output", func() bool { return lines() > before+5 })
	}
	log := output(t, m, sb, api.LogOptions{ExecID: "count"})
	for n, line := range strings.Split(strings.TrimSpace(log), "\n") {
		if want := "line " + strconv.Itoa(n+1); line != want {
			t.Fatalf("line %d is %q, want %q", n, line, want)
		}
	}
	if got := w.kinds(); !slices.Equal(got, []string{"created", "suspended", "resumed", "suspended", "resumed", "suspended", "resumed"}) {
		t.Errorf("events %v", got)
	}
	if err := m.Remove(t.Context(), operator, "box"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft(m)
}

// A wait and a follower go on over a suspend.
func TestSuspendUnderWaiters(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "box")
	proceed := filepath.Join(w.dir, "go")
	if _, err := m.StartProcess(t.Context(), operator, sb.ID, permitProcess(t, sb, shell("p", "echo begun; while [ ! -e "+proceed+" ]; do sleep 0.02; done; echo over; exit 3"))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "output", func() bool { return output(t, m, sb, api.LogOptions{ExecID: "p"}) == "begun\n" })
	type result struct {
		p   api.Process
		err error
	}
	waited := make(chan result, 1)
	go func() {
		p, err := m.WaitProcess(t.Context(), operator, sb.ID, "p", api.WaitRequest{TimeoutMS: 60_000})
		waited <- result{p, err}
	}()
	followed := make(chan string, 1)
	go func() {
		var out strings.Builder
		err := m.Logs(t.Context(), operator, sb.ID, api.LogOptions{ExecID: "p", Follow: true}, func(e api.LogEntry) error { out.Write(e.Data); return nil })
		if err != nil {
			t.Error(err)
		}
		followed <- out.String()
	}()
	if _, err := m.Suspend(t.Context(), operator, "box"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.resume(m, "box"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(proceed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := <-waited; r.err != nil || r.p.ExitCode == nil || *r.p.ExitCode != 3 {
		t.Errorf("wait: %+v, %v", r.p, r.err)
	}
	if got := <-followed; got != "begun\nover\n" {
		t.Errorf("followed %q", got)
	}
}

// A suspend that fails at any step leaves a sandbox that runs, and a resume that fails one that is suspended.
func TestSuspendFails(t *testing.T) {
	for name, faults := range map[string]fake.Faults{
		"pause":   {Fail: map[fake.Step]error{fake.StepPause: errWanted}},
		"suspend": {Fail: map[fake.Step]error{fake.StepSuspend: errWanted}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			m := w.manager(false)
			sb := w.create(m, "box")
			w.machine.SetFaults(faults)
			if _, err := m.Suspend(t.Context(), operator, "box"); err == nil {
				t.Fatal("it was suspended")
			}
			w.machine.SetFaults(fake.Faults{})
			if got, err := m.Get(operator, "box"); err != nil || got.State != api.StateRunning || got.MemoryBytes != 0 {
				t.Fatalf("%+v, %v", got, err)
			}
			if names := w.memory(sb.ID); names != nil {
				t.Errorf("it left %v", names)
			}
			if _, err := m.Exec(t.Context(), operator, "box", permitExec(t, sb, api.ExecRequest{Shell: "true"})); err != nil {
				t.Error(err)
			}
			if _, err := m.Suspend(t.Context(), operator, "box"); err != nil {
				t.Fatal(err)
			}
			w.machine.SetFaults(fake.Faults{Create: map[fake.Step]error{fake.StepStart: errWanted}})
			if _, err := w.resume(m, "box"); err == nil {
				t.Fatal("it was resumed")
			}
			w.machine.SetFaults(fake.Faults{})
			if got, err := m.Get(operator, "box"); err != nil || got.State != api.StateSuspended || got.MemoryBytes == 0 {
				t.Fatalf("%+v, %v", got, err)
			}
			if _, err := w.resume(m, "box"); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Exec(t.Context(), operator, "box", permitExec(t, sb, api.ExecRequest{Shell: "true"})); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSuspendKilled: a daemon that dies in a suspend has a successor that makes the sandbox run, unless it is on record
// as suspended.
func TestSuspendKilled(t *testing.T) {
	for _, point := range []string{"before hold", "before suspend", "after suspend"} {
		t.Run(point, func(t *testing.T) {
			w := newFixture(t)
			reached, free := w.trapAt(point)
			m := w.manager(false)
			sb := w.create(m, "box")
			over := make(chan struct{})
			go func() {
				defer close(over)
				_, _ = m.Suspend(context.WithoutCancel(t.Context()), operator, "box")
			}()
			<-reached
			sandbox.Crash(m)
			w.trap = nil
			next := w.manager(false)
			free()
			<-over
			eventually(t, "a sandbox that runs", func() bool {
				got, err := next.Get(operator, "box")
				return err == nil && got.State == api.StateRunning
			})
			if point != "after suspend" { // the memory of the process of the first daemon is gone with it
				if _, err := next.Exec(t.Context(), operator, "box", permitExec(t, sb, api.ExecRequest{Shell: "true"})); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestSuspendEnds: a suspended sandbox can be stopped, killed and removed, and its lease ends it.
func TestSuspendEnds(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	for name, end := range map[string]func(ref string) (api.Sandbox, error){
		"stop": func(ref string) (api.Sandbox, error) { return m.Stop(t.Context(), operator, ref, nil) },
		"stop without a resume": func(ref string) (api.Sandbox, error) {
			w.machine.SetFaults(fake.Faults{Create: map[fake.Step]error{fake.StepStart: errWanted}})
			defer w.machine.SetFaults(fake.Faults{})
			return m.Stop(t.Context(), operator, ref, nil)
		},
		"kill": func(ref string) (api.Sandbox, error) { return m.Kill(t.Context(), operator, ref) },
	} {
		ref := strings.ReplaceAll(name, " ", "-")
		sb := w.create(m, ref)
		if _, err := m.StartProcess(t.Context(), operator, sb.ID, permitProcess(t, sb, shell("p", "sleep 1000"))); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Suspend(t.Context(), operator, ref); err != nil {
			t.Fatal(err)
		}
		got, err := end(ref)
		lost := len(got.Lost) == 1 && got.Lost[0].Kind == api.LossRoot
		if err != nil || got.State != api.StateStopped || got.MemoryBytes != 0 || lost != (name != "stop") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if names := w.memory(sb.ID); names != nil {
			t.Errorf("%s left %v", name, names)
		}
		if procs, err := m.Processes(t.Context(), operator, ref); err != nil || len(procs) != 1 || !procs[0].State.Ended() {
			t.Errorf("%s: %+v, %v", name, procs, err)
		}
		if _, err := w.start(m, ref); err != nil {
			t.Errorf("start after %s: %v", name, err)
		}
	}
	sb, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "leased", Limits: api.Limits{LifetimeMS: 1500}}), nil)
	if err == nil {
		_, err = m.Suspend(t.Context(), operator, sb.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the lifetime", func() bool {
		got, err := m.Get(operator, "leased")
		return err == nil && got.State == api.StateStopped && got.TerminalReason == api.EndedTTL
	})
}

// TestSuspendRefused names who and what cannot be suspended.
func TestSuspendRefused(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "box")
	if _, err := m.Suspend(t.Context(), policy.TCPCaller(), "box"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("another tenant's: %v", err)
	}
	if _, err := m.ResumeSuspended(t.Context(), operator, "box", sandbox.StartOptions{}); !errors.Is(err, api.ErrDenied) {
		t.Errorf("a resume without a permit: %v", err)
	}
	if _, err := m.Pause(t.Context(), operator, "box"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Suspend(t.Context(), operator, "box"); code(err) != api.CodeState {
		t.Errorf("a paused one: %v", err)
	}
	if _, err := m.Resume(t.Context(), operator, "box"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Stop(t.Context(), operator, sb.ID, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Suspend(t.Context(), operator, "box"); code(err) != api.CodeState {
		t.Errorf("a stopped one: %v", err)
	}
	held, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "held", Transient: true}), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Suspend(t.Context(), operator, held.ID); code(err) != api.CodeState || !strings.Contains(err.Error(), "transient") {
		t.Errorf("a transient one: %v", err)
	}
}

// A resume that comes during a suspend follows it.
func TestResumeDuringSuspend(t *testing.T) {
	w := newFixture(t)
	saving, resuming := w.holdAt("before suspend")
	m := w.manager(false)
	sb := w.create(m, "box")
	suspended := make(chan error, 1)
	go func() {
		_, err := m.Suspend(t.Context(), operator, "box")
		suspended <- err
	}()
	<-saving
	resumed := make(chan error, 1)
	go func() {
		_, err := w.resume(m, "box")
		resumed <- err
	}()
	close(resuming)
	if err := errors.Join(<-suspended, <-resumed); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the sandbox is there", func() bool {
		got, err := m.Get(operator, "box")
		return err == nil && (got.State == api.StateRunning || got.State == api.StateSuspended)
	})
	if _, err := w.resume(m, "box"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Exec(t.Context(), operator, "box", permitExec(t, sb, api.ExecRequest{Shell: "true"})); err != nil {
		t.Error(err)
	}
}

// A suspend that comes during another waits for it, and is refused nothing.
func TestSuspendDuringSuspend(t *testing.T) {
	w := newFixture(t)
	saving, release := w.holdAt("before suspend")
	m := w.manager(false)
	w.create(m, "box")
	results := make(chan error, 2)
	suspend := func() {
		got, err := m.Suspend(t.Context(), operator, "box")
		if err == nil && got.State != api.StateSuspended {
			err = errors.New("the sandbox is " + string(got.State))
		}
		results <- err
	}
	go suspend()
	<-saving
	go suspend()
	select {
	case err := <-results:
		t.Errorf("a suspend returned while the memory was being saved: %v", err)
		results <- nil
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if err := errors.Join(<-results, <-results); err != nil {
		t.Error(err)
	}
}

// TestSuspendOverTheLimit: a suspend that the rules have no space for is refused before or after the save, and the sandbox runs on.
func TestSuspendOverTheLimit(t *testing.T) {
	w := newFixture(t)
	full := api.Errorf(api.CodeTooMany, "too much saved memory")
	var held []int64
	w.maySuspend = func(tenant string, bytes int64) error {
		held = append(held, bytes)
		if tenant != policy.LocalTenant || bytes > 30 {
			return full
		}
		return nil
	}
	m := w.manager(false)
	for _, name := range []string{"one", "two"} {
		w.create(m, name)
	}
	sb, err := m.Suspend(t.Context(), operator, "one")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Suspend(t.Context(), operator, "two"); !errors.Is(err, full) {
		t.Errorf("suspend: %v", err)
	}
	two, err := m.Get(operator, "two")
	if err != nil || two.State != api.StateRunning || len(w.memory(two.ID)) != 0 {
		t.Errorf("%+v, %v, %v", two, w.memory(two.ID), err)
	}
	if want := []int64{1, sb.MemoryBytes, sb.MemoryBytes + 1, 2 * sb.MemoryBytes}; !slices.Equal(held, want) {
		t.Errorf("it was asked for %d bytes, want %d", held, want)
	}
}
