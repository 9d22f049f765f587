//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
)

func TestLife(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "dev")
	if sb.State != api.StateRunning || sb.Name != "dev" || sb.Engine != fake.Name || sb.Workspace.Path != "/workspace" {
		t.Errorf("created %+v", sb)
	}
	res, err := m.Exec(t.Context(), operator, "dev", permitExec(t, sb, api.ExecRequest{Shell: "echo out; echo err >&2; exit 7"}))
	if err != nil || res.ExitCode == nil || *res.ExitCode != 7 || string(res.Stdout) != "out\n" || string(res.Stderr) != "err\n" {
		t.Errorf("exec: %+v, %v", res, err)
	}
	if _, err := m.Get(policy.TCPCaller(), "dev"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("another tenant's get: %v, want not found", err)
	}
	if _, err := m.Get(policy.TCPCaller(), sb.ID); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("another tenant's get by id: %v, want not found", err)
	}

	stopped, err := m.Stop(t.Context(), operator, "dev", new(time.Second))
	if err != nil || stopped.State != api.StateStopped || stopped.StoppedAt == nil {
		t.Fatalf("stop: %+v, %v", stopped, err)
	}
	if again, err := m.Stop(t.Context(), operator, "dev", nil); err != nil || again.State != api.StateStopped {
		t.Errorf("second stop: %+v, %v", again, err)
	}
	var logs strings.Builder
	err = m.Logs(t.Context(), operator, "dev", api.LogOptions{}, func(e api.LogEntry) error {
		logs.Write(e.Data)
		return nil
	})
	if err != nil || !strings.Contains(logs.String(), "out\n") || !strings.Contains(logs.String(), "err\n") {
		t.Errorf("logs after the stop: %q, %v", logs.String(), err)
	}
	if ps, err := m.Processes(t.Context(), operator, "dev"); err != nil || len(ps) != 1 || ps[0].ExitCode == nil || *ps[0].ExitCode != 7 {
		t.Errorf("processes after the stop: %+v, %v", ps, err)
	}
	if _, err := m.Exec(t.Context(), operator, "dev", permitExec(t, sb, api.ExecRequest{Shell: "true"})); api.CodeOf(err) != api.CodeState {
		t.Errorf("exec after the stop: %v, want wrong_state", err)
	}
	if err := m.Remove(t.Context(), operator, "dev"); err != nil {
		t.Fatal(err)
	}
	if err := m.Remove(t.Context(), operator, "dev"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("second remove: %v, want not found", err)
	}
	w.nothingLeft(m)
}

func TestZeroPermitsStartNothing(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	if _, err := m.Create(t.Context(), policy.Permit{}, nil); !errors.Is(err, api.ErrDenied) {
		t.Errorf("create with no permit: %v", err)
	}
	sb := w.create(m, "dev")
	if _, err := m.Exec(t.Context(), operator, sb.ID, policy.ExecPermit{}); !errors.Is(err, api.ErrDenied) {
		t.Errorf("exec with no permit: %v", err)
	}
}

// Whatever step of a create fails, and however, nothing is left of it, and the
// name is free again.
func TestFailedCreateLeavesNothing(t *testing.T) {
	wanted := errors.New("wanted")
	for name, f := range map[string]fake.Faults{
		"record": {Create: map[fake.Step]error{fake.StepRecord: wanted}},
		"start":  {Create: map[fake.Step]error{fake.StepStart: wanted}},
		"ready":  {Create: map[fake.Step]error{fake.StepReady: wanted}},
		"dial":   {Dial: wanted},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			m := w.manager(false)
			w.machine.SetFaults(f)
			_, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "x"}), nil)
			if _, ok := errors.AsType[*api.Error](err); !ok || strings.Contains(err.Error(), w.dir) {
				t.Errorf("create: %v, want a typed error without a path of the host", err)
			}
			w.nothingLeft(m)
			w.machine.SetFaults(fake.Faults{})
			w.create(m, "x")
		})
	}
	for name, spec := range map[string]api.SandboxSpec{
		"unknown image":     {Image: "no-such-image"},
		"file below a file": {Files: []api.File{{Path: "/etc/passwd/x"}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			m := w.manager(false)
			if _, err := m.Create(t.Context(), w.permit(spec), nil); err == nil {
				t.Error("create succeeded")
			}
			w.nothingLeft(m)
		})
	}
}

func TestCanceledCreateLeavesNothing(t *testing.T) {
	for _, step := range []fake.Step{fake.StepRecord, fake.StepStart, fake.StepReady} {
		t.Run(string(step), func(t *testing.T) {
			w := newFixture(t)
			m := w.manager(false)
			w.machine.SetFaults(fake.Faults{Block: step})
			ctx, cancel := context.WithCancel(t.Context())
			_, err := m.Create(ctx, w.permit(api.SandboxSpec{}), func(s string) {
				if s == "engine" {
					cancel()
				}
			})
			if api.CodeOf(err) != api.CodeCanceled {
				t.Errorf("create: %v, want canceled", err)
			}
			w.nothingLeft(m)
		})
	}
}

// A teardown that fails is retried, and does not hide the first error.
func TestFailedTeardownIsRetried(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	w.machine.SetFaults(fake.Faults{Dial: errors.New("no dial"), Close: errors.New("no close")})
	_, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "x"}), nil)
	if !errors.Is(err, api.ErrSandboxLost) {
		t.Errorf("create: %v, want the error of the dial", err)
	}
	if got := states(m); len(got) != 1 || got[0] != api.StateDeleting {
		t.Errorf("states %v, want one that is being deleted still", got)
	}
	w.machine.SetFaults(fake.Faults{})
	eventually(t, "the retry removes it", func() bool { return len(states(m)) == 0 })
	w.nothingLeft(m)

	sb := w.create(m, "y")
	w.machine.SetFaults(fake.Faults{Close: errors.New("no close")})
	if _, err := m.Kill(t.Context(), operator, sb.ID); err == nil {
		t.Error("kill reported success, and nothing was killed")
	}
	w.machine.SetFaults(fake.Faults{})
	eventually(t, "the retry stops it", func() bool { got, _ := m.Get(operator, "y"); return got.State == api.StateStopped })
}

func TestNamesAndQuota(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var ok, exists int
	for range 8 {
		wg.Go(func() {
			_, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "one"}), nil)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				ok++
			case errors.Is(err, api.ErrExists):
				exists++
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if ok != 1 || exists != 7 {
		t.Errorf("8 creates of one name: %d succeeded and %d found it taken", ok, exists)
	}
	limited := testRules
	limited.MaxSandboxes = 2
	reports := []api.EngineReport{w.machine.Engine().Probe(t.Context())}
	p, err := policy.Decide(policy.Request{Facts: policy.Facts{Engines: reports}}, operator, limited)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(t.Context(), p, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(t.Context(), p, nil); !errors.Is(err, api.ErrNoCapacity) {
		t.Errorf("create over the quota: %v", err)
	}
}

func TestDeathIsSeen(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "x")
	st, err := m.ExecStream(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: "echo up; exec sleep 600"}))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if _, err := st.Recv(); err != nil {
		t.Fatal(err)
	}
	killByRecord(t, w, sb.ID)
	ev, err := st.Recv()
	if err != nil || ev.Exit == nil {
		t.Fatalf("the end of an exec whose sandbox died: %+v, %v", ev, err)
	}
	res := ev.Exit
	if err != nil || !res.SandboxLost || res.ExitCode != nil || res.OK() || res.Reason == "" || res.TerminalReason != api.EndedLost {
		t.Errorf("an exec whose sandbox died: %+v, %v; want sandbox_lost and no exit code", res, err)
	}
	_, err = m.Exec(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: "true"}))
	if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeState || e.TerminalReason != api.EndedLost || e.Judge() != api.ClassInfra {
		t.Errorf("an exec in one that is dead: %+v", err)
	}
	if lost := <-w.lost; lost.ID != sb.ID || lost.TerminalReason != api.EndedLost || lost.State != api.StateLost || !strings.Contains(lost.Reason, "its agent ended: signal: killed") {
		t.Errorf("reported lost: %+v", lost)
	}
	if err := m.Remove(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft(m)
}

func TestStreamEndsWithItsSandbox(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "x")
	st, err := m.ExecStream(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: "echo up; exec sleep 60"}))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if ev, err := st.Recv(); err != nil || string(ev.Data) != "up\n" {
		t.Fatalf("first event %+v, %v", ev, err)
	}
	if _, err := m.Kill(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	ev, err := st.Recv()
	if err != nil || ev.Exit == nil || ev.Exit.OK() || !ev.Exit.SandboxLost || ev.Exit.TerminalReason != api.EndedKilled {
		t.Errorf("the end of the stream: %+v, %v; want an exit that says the sandbox is lost", ev, err)
	}
	if _, err := st.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v, want EOF", err)
	}
}

// A second daemon finds the fixture of the first.
func TestRecover(t *testing.T) {
	w := newFixture(t)
	first := w.manager(false)
	living, dying := w.create(first, "living"), w.create(first, "dying")
	stopped := w.create(first, "stopped")
	if _, err := first.Stop(t.Context(), operator, "stopped", new(time.Duration)); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Exec(t.Context(), operator, "living", permitExec(t, living, api.ExecRequest{Shell: "echo kept"})); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	killByRecord(t, w, dying.ID)
	half := filepath.Join(w.dir, "owner", "sandboxes", "sb-half", "staging")
	if err := os.MkdirAll(half, 0o700); err != nil {
		t.Fatal(err)
	}

	second := w.manager(false)
	// Its death may have been seen just after it was adopted.
	eventually(t, "the dead one is lost", func() bool { sb, _ := second.Get(operator, "dying"); return sb.State == api.StateLost })
	for name, want := range map[string]api.State{"living": api.StateRunning, "dying": api.StateLost, "stopped": api.StateStopped} {
		if sb, err := second.Get(operator, name); err != nil || sb.State != want {
			t.Errorf("%s is %s (%v), want %s", name, sb.State, err, want)
		}
	}
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a half-made sandbox is still there: %v", err)
	}
	if res, err := second.Exec(t.Context(), operator, "living", permitExec(t, living, api.ExecRequest{Shell: "exit 5"})); err != nil || *res.ExitCode != 5 {
		t.Errorf("exec after the restart: %+v, %v", res, err)
	}
	ps, err := second.Processes(t.Context(), operator, "living")
	if err != nil || len(ps) != 2 {
		t.Errorf("processes after the restart: %+v, %v; want both execs", ps, err)
	}
	for _, name := range []string{"living", "dying", stopped.Name} {
		if err := second.Remove(t.Context(), operator, name); err != nil {
			t.Error(err)
		}
	}
	w.nothingLeft(second)
}

func TestEphemeralManagerTakesItsSandboxesAlong(t *testing.T) {
	w := newFixture(t)
	m := w.manager(true)
	w.create(m, "x")
	if plans := w.machine.Plans(); len(plans) != 1 || !plans[0].DieWithParent {
		t.Errorf("plans %+v, want one that dies with its parent", plans)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft(m)
	if _, err := m.Create(t.Context(), w.permit(api.SandboxSpec{}), nil); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("create after the end: %v", err)
	}
}

func TestListPages(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	for i, l := range []string{"a", "b", "a"} {
		spec := api.SandboxSpec{Name: "n" + string(rune('0'+i)), Labels: map[string]string{"team": l}}
		if _, err := m.Create(t.Context(), w.permit(spec), nil); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	o := api.ListOptions{Limit: 1, Labels: map[string]string{"team": "a"}}
	for {
		page := m.List(operator, o)
		for _, sb := range page.Sandboxes {
			got = append(got, sb.Name)
		}
		if o.Cursor = page.Next; o.Cursor == "" {
			break
		}
	}
	if strings.Join(got, " ") != "n2 n0" {
		t.Errorf("listed %v, want n2 n0: newest first, of team a, in pages of one", got)
	}
	if l := m.List(operator, api.ListOptions{States: []api.State{api.StateStopped}}); len(l.Sandboxes) != 0 {
		t.Errorf("stopped: %v", l.Sandboxes)
	}
}

// killByRecord kills an instance behind the back of every Manager.
func killByRecord(t *testing.T, w *fixture, id string) {
	t.Helper()
	state := sandbox.EngineStateForTest(t, filepath.Join(w.dir, "owner", "sandboxes", id))
	if err := w.machine.Kill(state); err != nil {
		t.Fatal(err)
	}
}
