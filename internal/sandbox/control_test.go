//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// maxExecs is how many execs of one sandbox may be under way.
const maxExecs = 192

// A sandbox that is full of programs, which hold everything that a program can, is
// looked at, changed and ended as any other: nothing is locked while they run, and
// only execs count as execs.
func TestControlOfAFullSandbox(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "x")
	st, err := m.ExecStream(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{ExecID: "long", Shell: "echo up; exec sleep 600"}))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if ev, err := st.Recv(); err != nil || string(ev.Data) != "up\n" {
		t.Fatalf("first event %+v, %v", ev, err)
	}
	// Another runs beside it.
	if res, err := m.Exec(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: "exit 3"})); err != nil || *res.ExitCode != 3 {
		t.Errorf("an exec beside another: %+v, %v", res, err)
	}
	for begun := 1; begun < maxExecs; begun++ {
		more, err := m.ExecStream(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: "exec sleep 600"}))
		if err != nil {
			t.Fatalf("after %d execs: %v", begun, err)
		}
		defer more.Close()
	}
	_, err = m.Exec(t.Context(), operator, "x", permitExec(t, sb, api.ExecRequest{Shell: "true"}))
	if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeNoCapacity || !e.Retryable || e.RetryAfterMS == 0 || e.Judge() != api.ClassLimit {
		t.Errorf("an exec over the limit: %+v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, do := range map[string]func() error{
		"get":       func() error { _, err := m.Get(operator, "x"); return err },
		"heartbeat": func() error { _, err := m.Touch(operator, "x"); return err },
		"processes": func() error { _, err := m.Processes(ctx, operator, "x"); return err },
		"logs": func() error {
			return m.Logs(ctx, operator, "x", api.LogOptions{ExecID: "long"}, func(api.LogEntry) error { return nil })
		},
		"stat":      func() error { _, err := m.StatFile(ctx, operator, "x", api.FilePlace{Path: "/"}, false); return err },
		"endpoints": func() error { _, err := m.Endpoints(operator, "x"); return err },
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(m.List(operator, api.ListOptions{}).Sandboxes) != 1 {
		t.Error("it is not listed")
	}
	if _, err := m.Pause(ctx, operator, "x"); err != nil {
		t.Errorf("pause: %v", err)
	}
	if _, err := m.Resume(ctx, operator, "x"); err != nil {
		t.Errorf("resume: %v", err)
	}
	if gone, err := m.Delete(ctx, operator, "x"); err != nil || gone.State != api.StateDeleted {
		t.Errorf("delete: %+v, %v", gone, err)
	}
	w.nothingLeft(m)
}
