//go:build linux

package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/test/longtest"
)

// stuck is a program that waits for a file, stops its agent, which the imaginary machine
// lets it, and goes on by a process that has left its session.
func stuck(marker, gate string) string {
	return fmt.Sprintf("echo up; until test -e %s; do sleep 0.02; done; setsid bash -c 'exec -a %s sleep 1000' & kill -STOP $PPID; exec sleep 1000", gate, marker)
}

// open opens the gate of a stuck program.
func open(t *testing.T, gate string) {
	t.Helper()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// shortGrace is for an agent that never answers.
const shortGrace = 300 * time.Millisecond

// impatient is a daemon's Manager that waits little for a late agent.
func (w *fixture) impatient(grace time.Duration) *sandbox.Manager {
	w.t.Helper()
	m := w.newManager(false)
	sandbox.SetDeadlineGrace(m, grace, time.Second)
	w.t.Cleanup(func() { _ = m.Close(context.WithoutCancel(w.t.Context())) })
	if err := m.Recover(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return m
}

// runs reports whether a process of that name is there.
func runs(t *testing.T, name string) bool {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(b), name+"\x00") {
			return true
		}
	}
	return false
}

func shellWithin(script string, timeout int64) api.ExecRequest {
	return api.ExecRequest{Argv: []string{"/bin/bash", "-c", script}, TimeoutMS: &timeout}
}

// TestDeadlineBehindTheAgent: a program whose agent does not answer any more is over when
// its timeout is, with all that it has started.
func TestDeadlineBehindTheAgent(t *testing.T) {
	longtest.Skip(t, "it waits for deadlines")
	for name, exec := range map[string]func(*testing.T, *sandbox.Manager, api.Sandbox, string, string) api.Result{
		"exec": func(t *testing.T, m *sandbox.Manager, sb api.Sandbox, script, gate string) api.Result {
			open(t, gate)
			res, err := m.Exec(t.Context(), operator, sb.ID, permitExec(t, sb, shellWithin(script, 2000)))
			if err != nil {
				t.Fatal(err)
			}
			return res
		},
		"stream": func(t *testing.T, m *sandbox.Manager, sb api.Sandbox, script, gate string) api.Result {
			st, err := m.ExecStream(t.Context(), operator, sb.ID, permitExec(t, sb, shellWithin(script, 2000)))
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			open(t, gate)
			for {
				ev, err := st.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if ev.Exit != nil {
					return *ev.Exit
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			m := w.impatient(shortGrace)
			sb := w.create(m, "box")
			marker, gate := api.NewID("stuck-"), filepath.Join(t.TempDir(), "go")
			res := exec(t, m, sb, stuck(marker, gate), gate)
			if !res.SandboxLost || !strings.Contains(res.Reason, "its agent did not end") {
				t.Errorf("%+v", res)
			}
			eventually(t, "its processes are gone", func() bool { return !runs(t, marker) })
			eventually(t, "it is lost", func() bool {
				got, err := m.Get(operator, sb.ID)
				return err == nil && got.State == api.StateLost && strings.Contains(got.Reason, "its agent did not end")
			})
		})
	}
}

// TestDeadlineOfNextDaemon: a daemon knows the deadlines of the one before.
func TestDeadlineOfNextDaemon(t *testing.T) {
	longtest.Skip(t, "it waits for deadlines of seconds")
	w := newFixture(t)
	first := w.impatient(shortGrace)
	sb := w.create(first, "box")
	marker, gate := api.NewID("stuck-"), filepath.Join(t.TempDir(), "go")
	open(t, gate)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = first.Exec(ctx, operator, sb.ID, permitExec(t, sb, shellWithin(stuck(marker, gate), 2000)))
	}()
	eventually(t, "it runs", func() bool { return runs(t, marker) })
	sandbox.Crash(first)
	cancel()
	<-over
	m := w.impatient(shortGrace)
	eventually(t, "its processes are gone", func() bool { return !runs(t, marker) })
	// The reason is known only by the deadline that the first daemon wrote down.
	eventually(t, "it is lost", func() bool {
		got, err := m.Get(operator, sb.ID)
		return err == nil && got.State == api.StateLost && strings.Contains(got.Reason, "its agent did not end")
	})
}

// TestDeadlineIsMet: an agent that keeps its timeouts keeps its sandbox, with or without a caller.
func TestDeadlineIsMet(t *testing.T) {
	longtest.Skip(t, "it waits for deadlines of seconds")
	w := newFixture(t)
	m := w.impatient(3 * time.Second)
	sb := w.create(m, "box")
	none := func(what string) {
		t.Helper()
		eventually(t, what, func() bool {
			n, _ := sandbox.Deadlines(m, sb.ID)
			return n == 0
		})
	}
	if res, err := m.Exec(t.Context(), operator, sb.ID, permitExec(t, sb, shellWithin("sleep 1000", 100))); err != nil || !res.TimedOut {
		t.Fatalf("%+v, %v", res, err)
	}
	if n, _ := sandbox.Deadlines(m, sb.ID); n != 0 {
		t.Errorf("%d deadlines are left of an exec", n)
	}
	if _, err := m.Exec(t.Context(), operator, sb.ID, permitExec(t, sb, api.ExecRequest{Argv: []string{"no-such-program"}})); err == nil {
		t.Fatal("a program that does not exist was executed")
	}
	none("a program that was not started has no deadline")
	st, err := m.ExecStream(t.Context(), operator, sb.ID, permitExec(t, sb, shellWithin("exec sleep 1000", 100)))
	if err != nil {
		t.Fatal(err)
	}
	st.Close()
	none("the agent is believed about a program to which nobody listens")
	if res, err := m.Exec(t.Context(), operator, sb.ID, permitExec(t, sb, shellWithin("echo here", 10000))); err != nil || string(res.Stdout) != "here\n" {
		t.Fatalf("%+v, %v", res, err)
	}
}

// TestDeadlineStandsStill: a pause costs a program nothing, and saves no agent.
func TestDeadlineStandsStill(t *testing.T) {
	longtest.Skip(t, "it waits for deadlines of seconds")
	w := newFixture(t)
	m := w.impatient(shortGrace)
	sb := w.create(m, "box")
	marker, gate := api.NewID("stuck-"), filepath.Join(t.TempDir(), "go")
	st, err := m.ExecStream(t.Context(), operator, sb.ID, permitExec(t, sb, shellWithin(stuck(marker, gate), 3000)))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if ev, err := st.Recv(); err != nil || string(ev.Data) != "up\n" {
		t.Fatalf("%q, %v", ev.Data, err)
	}
	if _, err := m.Pause(t.Context(), operator, sb.ID); err != nil {
		t.Fatal(err)
	}
	if n, held := sandbox.Deadlines(m, sb.ID); n != 1 || !held {
		t.Errorf("%d deadlines, standing still: %v", n, held)
	}
	// So do those that the next daemon finds.
	sandbox.Crash(m)
	m = w.impatient(shortGrace)
	if n, held := sandbox.Deadlines(m, sb.ID); n != 1 || !held {
		t.Errorf("the next daemon has %d deadlines, standing still: %v", n, held)
	}
	if _, err := m.Resume(t.Context(), operator, sb.ID); err != nil {
		t.Fatal(err)
	}
	open(t, gate)
	eventually(t, "it is lost", func() bool {
		got, err := m.Get(operator, sb.ID)
		return err == nil && got.State == api.StateLost
	})
	eventually(t, "its processes are gone", func() bool { return !runs(t, marker) })
}

// TestDeadlineOfProcess: a managed process has one too, for each of its runs.
func TestDeadlineOfProcess(t *testing.T) {
	longtest.Skip(t, "it waits for deadlines of seconds")
	w := newFixture(t)
	m := w.impatient(shortGrace)
	sb := w.create(m, "box")
	marker, gate := api.NewID("stuck-"), filepath.Join(t.TempDir(), "go")
	p := api.ProcessSpec{ExecRequest: shellWithin(stuck(marker, gate), 2000)}
	p.ExecID = "stuck"
	start(t, m, sb, p)
	open(t, gate)
	eventually(t, "it is lost", func() bool {
		got, err := m.Get(operator, sb.ID)
		return err == nil && got.State == api.StateLost && strings.Contains(got.Reason, "its agent did not end stuck")
	})
	eventually(t, "its processes are gone", func() bool { return !runs(t, marker) })
}
