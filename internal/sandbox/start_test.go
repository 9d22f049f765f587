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

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
)

// start starts a sandbox again as core does.
func (w *fixture) start(m *sandbox.Manager, ref string) (api.Sandbox, error) {
	w.t.Helper()
	_, spec, err := m.SpecOf(operator, ref)
	if err != nil {
		return api.Sandbox{}, err
	}
	if spec == nil {
		return m.Get(operator, ref)
	}
	sb, _, err := m.Start(w.t.Context(), operator, ref, sandbox.StartOptions{Permit: w.permit(*spec)}, nil)
	return sb, err
}

// stopped makes a sandbox that was stopped.
func (w *fixture) stopped(m *sandbox.Manager, spec api.SandboxSpec) api.Sandbox {
	w.t.Helper()
	sb, err := m.Create(w.t.Context(), w.permit(spec), nil)
	if err == nil {
		sb, err = m.Stop(w.t.Context(), operator, sb.ID, nil)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return sb
}

// TestStart starts a stopped sandbox, in the daemon that stopped it and in the next one.
func TestStart(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.stopped(m, api.SandboxSpec{Name: "box", Labels: map[string]string{"a": "b"}})
	file := filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "workspace", "file")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 3; n++ {
		got, err := w.start(m, "box")
		if err != nil {
			t.Fatal(err)
		}
		if got.ID != sb.ID || got.Name != "box" || got.State != api.StateRunning || got.Starts != n || got.StartedAt == nil || got.Labels["a"] != "b" ||
			got.StoppedAt != nil || got.TerminalReason != "" || !got.CreatedAt.Equal(sb.CreatedAt) || len(got.Lost) != 0 {
			t.Fatalf("started as %+v", got)
		}
		if again, err := w.start(m, sb.ID); err != nil || again.Starts != n {
			t.Errorf("a start of a running sandbox: %+v, %v", again, err)
		}
		res, err := m.Exec(t.Context(), operator, "box", permitExec(t, got, api.ExecRequest{Argv: []string{"true"}}))
		if err != nil || res.ExitCode == nil || *res.ExitCode != 0 {
			t.Errorf("an exec: %+v, %v", res, err)
		}
		if _, err := m.Stop(t.Context(), operator, "box", nil); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(file); err != nil || string(data) != "kept" {
			t.Errorf("the workspace has %q, %v", data, err)
		}
		if err := m.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		m = w.manager(false)
	}
	kinds := strings.Join(w.kinds(), " ")
	if want := "created stopping stopped started stopping stopped started"; !strings.HasPrefix(kinds, want) {
		t.Errorf("events: %s", kinds)
	}
	if err := m.Remove(t.Context(), operator, "box"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft(m)
}

// TestUsedOfStarts: the time in which a sandbox was stopped is not counted as use.
func TestUsedOfStarts(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	w.stopped(m, api.SandboxSpec{Name: "box"})
	sb, err := w.start(m, "box")
	if err == nil {
		_, err = m.Stop(t.Context(), operator, "box", nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.used) != 2 {
		t.Fatalf("told %d times", len(w.used))
	}
	last := w.used[1]
	if most := last.sandbox.StoppedAt; most != nil && last.used.Seconds > most.Sub(*sb.StartedAt).Seconds()+0.01 {
		t.Errorf("%f s of use in a life of %s", last.used.Seconds, most.Sub(*sb.StartedAt))
	}
}

// TestStartFails has a start fail, or its daemon die, at each of its steps: the sandbox stays stopped, nothing of the
// attempt is left, and the next start succeeds.
func TestStartFails(t *testing.T) {
	w := newFixture(t)
	var points []string
	w.trap = func(_ context.Context, point string) error { points = append(points, point); return nil }
	m := w.manager(false)
	w.stopped(m, api.SandboxSpec{Name: "box"})
	points = nil
	if _, err := w.start(m, "box"); err != nil {
		t.Fatal(err)
	}
	steps := slices.Clone(points)
	if len(steps) < 20 || !slices.Contains(steps, "after root") {
		t.Fatalf("the points of a start are %q", steps)
	}
	for _, crash := range []bool{false, true} {
		for _, at := range steps {
			w.trap = nil
			if _, err := m.Stop(t.Context(), operator, "box", nil); err != nil {
				t.Fatal(err)
			}
			once := sync.OnceValue(func() error { return errors.New("it was to fail") })
			failed := false
			sandbox.SetTrap(m, func(_ context.Context, point string) error {
				if point != at || failed {
					return nil
				}
				failed = true
				if crash {
					sandbox.Crash(m)
				}
				return once()
			})
			_, err := w.start(m, "box")
			if err == nil {
				t.Errorf("%s: the start succeeded", at)
			}
			if crash {
				m = w.manager(false)
			} else {
				sandbox.SetTrap(m, nil)
			}
			got, err := m.Get(operator, "box")
			if done := at == "after record"; err != nil || (got.State != api.StateStopped) && !done {
				t.Errorf("%s (crash %t): it is %s, %v", at, crash, got.State, err)
			}
			if left := w.machine.Left(); len(left) != 0 && at != "after record" {
				t.Errorf("%s (crash %t): instances are left: %v", at, crash, left)
			}
			if got, err := w.start(m, "box"); err != nil || got.State != api.StateRunning {
				t.Fatalf("%s (crash %t): the next start: %+v, %v", at, crash, got, err)
			}
		}
	}
	if err := m.Remove(t.Context(), operator, "box"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft(m)
}

// TestStartDuringEnds has a stop, a kill and a removal come during a start, which they end.
func TestStartDuringEnds(t *testing.T) {
	for name, end := range map[string]func(m *sandbox.Manager, ctx context.Context) error{
		"stop": func(m *sandbox.Manager, ctx context.Context) error {
			_, err := m.Stop(ctx, operator, "box", nil)
			return err
		},
		"kill": func(m *sandbox.Manager, ctx context.Context) error {
			_, err := m.Kill(ctx, operator, "box")
			return err
		},
		"remove": func(m *sandbox.Manager, ctx context.Context) error { return m.Remove(ctx, operator, "box") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			m := w.manager(false)
			w.stopped(m, api.SandboxSpec{Name: "box"})
			ended := make(chan error, 1)
			sandbox.SetTrap(m, func(ctx context.Context, point string) error {
				if point != "before connect" {
					return nil
				}
				go func() { ended <- end(m, t.Context()) }()
				<-ctx.Done()
				return ctx.Err()
			})
			if _, err := w.start(m, "box"); api.CodeOf(err) != api.CodeCanceled {
				t.Errorf("the start: %v", err)
			}
			if err := <-ended; err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if left := w.machine.Left(); len(left) != 0 {
				t.Errorf("instances are left: %v", left)
			}
			if name == "remove" {
				w.nothingLeft(m)
			} else if got, err := m.Get(operator, "box"); err != nil || got.State != api.StateStopped {
				t.Errorf("it is %s, %v", got.State, err)
			}
		})
	}
}

// TestStartsAtOnce has ten callers start one sandbox.
func TestStartsAtOnce(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	w.stopped(m, api.SandboxSpec{Name: "box"})
	_, spec, err := m.SpecOf(operator, "box")
	if err != nil {
		t.Fatal(err)
	}
	permit := w.permit(*spec)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			sb, _, err := m.Start(t.Context(), operator, "box", sandbox.StartOptions{Permit: permit}, nil)
			if err != nil || sb.State != api.StateRunning || sb.Starts != 1 {
				t.Errorf("%+v, %v", sb, err)
			}
		})
	}
	wg.Wait()
	if left := w.machine.Left(); len(left) != 1 {
		t.Errorf("there are %d instances", len(left))
	}
}

// TestStartRefused names why a sandbox cannot be started.
func TestStartRefused(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	w.create(m, "paused")
	if _, err := m.Pause(t.Context(), operator, "paused"); err != nil {
		t.Fatal(err)
	}
	w.stopped(m, api.SandboxSpec{Name: "held", Workspace: &api.Workspace{Name: "w"}})
	if _, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "other", Workspace: &api.Workspace{Name: "w"}}), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.start(m, "paused"); api.CodeOf(err) != api.CodeState {
		t.Errorf("of a paused one: %v", err)
	}
	if _, err := w.start(m, "none"); api.CodeOf(err) != api.CodeNotFound {
		t.Errorf("of none: %v", err)
	}
	_, err := w.start(m, "held")
	if err == nil || !strings.Contains(err.Error(), "other") && api.CodeOf(err) != api.CodeConflict && api.CodeOf(err) != api.CodeState {
		t.Errorf("with a workspace that another has: %v", err)
	}
	if err := m.Remove(t.Context(), operator, "other"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.start(m, "held"); err != nil {
		t.Errorf("when the workspace is free: %v", err)
	}
	if _, _, err := m.Start(t.Context(), operator, "held", sandbox.StartOptions{}, nil); api.CodeOf(err) != api.CodeDenied {
		t.Errorf("without a permit: %v", err)
	}
	stranger := policy.TCPCaller()
	if _, _, err := m.SpecOf(stranger, "held"); api.CodeOf(err) != api.CodeNotFound {
		t.Errorf("of another tenant: %v", err)
	}
}
