//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox"
)

// sleeper is a sandbox that is suspended after an idle time and resumed by its use.
func (w *fixture) sleeper(m *sandbox.Manager, idle time.Duration) api.Sandbox {
	w.t.Helper()
	sb, err := m.Create(w.t.Context(), w.permit(api.SandboxSpec{
		Name: "box", OnExpiry: api.ExpirySuspend, AutoResume: true, Limits: api.Limits{IdleMS: 1000},
	}), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	sandbox.SetIdle(m, sb.ID, idle)
	return sb
}

func (w *fixture) stateOf(m *sandbox.Manager) api.State {
	w.t.Helper()
	sb, err := m.Get(operator, "box")
	if err != nil {
		w.t.Fatal(err)
	}
	return sb.State
}

// TestSleep: a sandbox is suspended when its idle time is over, and each kind of use resumes it, as its creator.
func TestSleep(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.sleeper(m, 300*time.Millisecond)
	if _, err := m.StartProcess(t.Context(), operator, sb.ID, permitProcess(t, sb, shell("p", "sleep 1000"))); err != nil {
		t.Fatal(err)
	}
	for name, use := range map[string]func(context.Context) error{
		"exec": func(ctx context.Context) error {
			_, err := m.Exec(ctx, operator, "box", permitExec(t, sb, api.ExecRequest{Shell: "true"}))
			return err
		},
		"read": func(ctx context.Context) error {
			r, _, err := m.ReadFile(ctx, operator, "box", api.FilePlace{Path: "/etc/passwd"}, 0, -1)
			if err == nil {
				_, err = io.Copy(io.Discard, r)
				r.Close()
			}
			return err
		},
		"signal": func(ctx context.Context) error {
			return m.SignalProcess(ctx, operator, "box", "p", api.SignalRequest{Signal: "CONT"})
		},
		"stat at the next daemon": func(ctx context.Context) error {
			m = w.restart(m)
			_, err := m.StatFile(ctx, operator, "box", api.FilePlace{Path: "/"}, false)
			return err
		},
	} {
		eventually(t, "suspend", func() bool { return w.stateOf(m) == api.StateSuspended })
		if got, err := m.Processes(t.Context(), operator, "box"); err != nil || len(got) != 1 || w.stateOf(m) != api.StateSuspended {
			t.Errorf("%s: its processes: %v, %v, %s", name, got, err, w.stateOf(m))
		}
		if got, err := m.Get(operator, "box"); err != nil || got.ExpiresAt != nil {
			t.Errorf("%s: a suspended sandbox expires: %v, %v", name, got.ExpiresAt, err)
		}
		ctx, end := context.WithCancel(t.Context()) // as of a request
		if err := use(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		end()
	}
	if p, err := m.Process(t.Context(), operator, "box", "p"); err != nil || p.State != api.ProcessRunning {
		t.Errorf("its process: %+v, %v", p, err)
	}
	want := policy.Caller{Tenant: operator.Tenant, Operator: true, UID: operator.UID, Via: policy.ViaUse}
	if len(w.resumedBy) != 4 || slices.ContainsFunc(w.resumedBy, func(c policy.Caller) bool { return c != want }) {
		t.Errorf("resumed as %+v", w.resumedBy)
	}
	if kinds := strings.Join(w.kinds(), " "); !strings.HasPrefix(kinds, "created expiring suspended resumed expiring suspended resumed") {
		t.Errorf("events %s", kinds)
	}
	w.mu.Lock()
	for _, e := range w.events {
		if e.Kind == api.EventSuspended && !strings.HasPrefix(e.Reason, "its idle time of ") {
			t.Errorf("suspended: %q", e.Reason)
		}
	}
	w.mu.Unlock()
}

// What uses a sandbox at any moment of its suspends is answered: nothing is refused and nothing is lost.
func TestSleepUnderUse(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.sleeper(m, 5*time.Millisecond)
	var wg sync.WaitGroup
	for worker := range 3 {
		wg.Go(func() {
			for n := range 25 {
				time.Sleep(time.Duration(10+(17*worker+29*n)%90) * time.Millisecond)
				text := strconv.Itoa(100*worker + n)
				ctx, end := context.WithCancel(t.Context()) // as of a request
				res, err := m.Exec(ctx, operator, "box", permitExec(t, sb, api.ExecRequest{Shell: "echo " + text}))
				end()
				if err != nil || res.Output() != text+"\n" {
					t.Errorf("exec %s: %v, %q", text, err, res.Output())
				}
			}
		})
	}
	wg.Wait()
	if n := len(w.resumedBy); n == 0 {
		t.Error("it was never suspended")
	} else {
		t.Logf("it was resumed %d times", n)
	}
}

// A sandbox that cannot be suspended goes on, and is stopped when its lifetime is over.
func TestSleepFails(t *testing.T) {
	w := newFixture(t)
	var failures atomic.Int64
	w.trap = func(_ context.Context, point string) error {
		if point == "after suspend" {
			failures.Add(1)
			return errWanted
		}
		return nil
	}
	m := w.manager(false)
	sb, err := m.Create(t.Context(), w.permit(api.SandboxSpec{
		Name: "box", OnExpiry: api.ExpirySuspend, AutoResume: true, Limits: api.Limits{IdleMS: 1000, LifetimeMS: 3000},
	}), nil)
	if err != nil {
		t.Fatal(err)
	}
	sandbox.SetIdle(m, sb.ID, 100*time.Millisecond)
	eventually(t, "two failures", func() bool { return failures.Load() >= 2 })
	if res, err := m.Exec(t.Context(), operator, "box", permitExec(t, sb, api.ExecRequest{Shell: "echo goes on"})); err != nil || res.Output() != "goes on\n" {
		t.Errorf("exec: %v, %q", err, res.Output())
	}
	eventually(t, "its end", func() bool { return w.stateOf(m) == api.StateStopped })
	if got, _ := m.Get(operator, "box"); got.TerminalReason != api.EndedTTL {
		t.Errorf("it ended by %q", got.TerminalReason)
	}
}

// The lifetime of a suspended sandbox does not end it, and begins anew with a resume.
func TestSleepLifetime(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb, err := m.Create(t.Context(), w.permit(api.SandboxSpec{
		Name: "box", OnExpiry: api.ExpirySuspend, AutoResume: true, Limits: api.Limits{LifetimeMS: 1000},
	}), nil)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "suspend", func() bool { return w.stateOf(m) == api.StateSuspended })
	slept, err := m.Get(operator, "box")
	if err != nil || slept.SuspendedAt.Sub(sb.CreatedAt) < time.Second {
		t.Errorf("suspended after %s, %v", slept.SuspendedAt.Sub(sb.CreatedAt), err)
	}
	if _, err := m.Exec(t.Context(), operator, "box", permitExec(t, sb, api.ExecRequest{Shell: "true"})); err != nil {
		t.Error(err)
	}
	if got, err := m.Get(operator, "box"); err != nil || got.ExpiresAt == nil || got.ExpiresAt.Sub(*slept.SuspendedAt) < time.Second {
		t.Errorf("it expires at %v, %v", got.ExpiresAt, err)
	}
}

// Without auto_resume a use is refused, and a deletion needs no resume.
func TestSleepWithoutAutoResume(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "box", OnExpiry: api.ExpirySuspend, Limits: api.Limits{IdleMS: 1000}}), nil)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "suspend", func() bool { return w.stateOf(m) == api.StateSuspended })
	_, err = m.Exec(t.Context(), operator, "box", permitExec(t, sb, api.ExecRequest{Shell: "true"}))
	if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeState || e.Hint != "cloche resume box" {
		t.Errorf("exec: %v", err)
	}
	if err := m.Remove(t.Context(), operator, "box"); err != nil || len(w.resumedBy) != 0 {
		t.Errorf("remove: %v, resumed as %v", err, w.resumedBy)
	}
	w.nothingLeft(m)
}

// A suspended sandbox has no goroutine, in the daemon that suspended it and in the next one.
func TestSuspendedHasNoGoroutine(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	const sandboxes = 5
	count := func() int {
		stacks := make([]byte, 8<<20)
		n := 0
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "internal/sandbox") && !strings.Contains(stack, "testing.tRunner") {
				n++
			}
		}
		return n
	}
	idle := 0 // of the manager itself: its reaper and its watch of quotas, which may not have begun yet
	eventually(t, "the goroutines of a manager", func() bool { idle = count(); return idle >= 2 })
	for n := range sandboxes {
		sb := w.create(m, "box"+strconv.Itoa(n))
		for _, id := range []string{"a", "b"} {
			if _, err := m.StartProcess(t.Context(), operator, sb.ID, permitProcess(t, sb, shell(id, "echo begun; exec sleep 1000"))); err != nil {
				t.Fatal(err)
			}
			eventually(t, "output", func() bool { return output(t, m, sb, api.LogOptions{ExecID: id}) == "begun\n" })
		}
	}
	if n := count(); n < idle+sandboxes {
		t.Fatalf("%d goroutines for %d running sandboxes, %d for none: the count is wrong", n, sandboxes, idle)
	}
	for n := range sandboxes {
		if _, err := m.Suspend(t.Context(), operator, "box"+strconv.Itoa(n)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "no goroutine of a suspended sandbox", func() bool { return count() <= idle })
	m = w.restart(m)
	eventually(t, "no goroutine of a suspended sandbox after a restart", func() bool { return count() <= idle })
	for n := range sandboxes {
		name := "box" + strconv.Itoa(n)
		if _, err := w.resume(m, name); err != nil {
			t.Fatal(err)
		}
		if err := m.SignalProcess(t.Context(), operator, name, "a", api.SignalRequest{Signal: "TERM"}); err != nil {
			t.Error(err)
		}
		if p, err := m.WaitProcess(t.Context(), operator, name, "a", api.WaitRequest{TimeoutMS: 60_000}); err != nil || p.Signal != "TERM" {
			t.Errorf("%+v, %v", p, err)
		}
	}
}

// TestSuspendedTooLong: the memory of a sandbox that stays suspended for longer than the rule says is discarded, by the daemon
// that suspended it or the next one, and the sandbox is stopped without a resume.
func TestSuspendedTooLong(t *testing.T) {
	for name, restart := range map[string]bool{"the same daemon": false, "the next daemon": true} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			if !restart {
				w.suspended.KeepFor = 200 * time.Millisecond
			}
			m := w.manager(false)
			sb := w.create(m, "box")
			if _, err := m.Suspend(t.Context(), operator, "box"); err != nil {
				t.Fatal(err)
			}
			if restart {
				w.suspended.KeepFor = time.Millisecond
				m = w.restart(m)
			}
			eventually(t, "stop", func() bool { return w.stateOf(m) == api.StateStopped })
			got, err := m.Get(operator, sb.ID)
			if err != nil || got.TerminalReason != api.EndedIdle || !strings.Contains(got.Reason, "retention.suspended") || got.MemoryBytes != 0 {
				t.Errorf("%+v, %v", got, err)
			}
			if names := w.memory(sb.ID); names != nil {
				t.Errorf("there is %v", names)
			}
			if kinds := w.kinds(); slices.Contains(kinds, "resumed") {
				t.Errorf("it was resumed: %v", kinds)
			}
		})
	}
}
