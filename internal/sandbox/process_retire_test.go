//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/sandbox/retention"
)

// ids are the ids of the processes on record, in their order.
func ids(t *testing.T, m *sandbox.Manager, sb api.Sandbox) []string {
	t.Helper()
	ps, err := m.Processes(t.Context(), operator, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range ps {
		out = append(out, p.ExecID)
	}
	return out
}

// run starts a process that ends, as soon as the bounds allow, and waits until
// its record is final.
func run(t *testing.T, m *sandbox.Manager, sb api.Sandbox, id, script string) {
	t.Helper()
	eventually(t, "there is room", func() bool {
		_, err := m.StartProcess(t.Context(), operator, sb.ID, permitProcess(t, sb, shell(id, script)))
		if err != nil && code(err) != api.CodeNoCapacity {
			t.Fatal(err)
		}
		return err == nil
	})
	collected(t, m, sb, id)
}

func collected(t *testing.T, m *sandbox.Manager, sb api.Sandbox, id string) {
	t.Helper()
	eventually(t, "its record is final", func() bool { return sandbox.IsFinal(m, sb.ID, id) })
}

func TestEndedProcessesDoNotCount(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sandbox.SetProcessBounds(m, 2, 3)
	sb := w.create(m, "dev")
	start(t, m, sb, shell("lives", "exec sleep 600"))
	for i := range 12 {
		run(t, m, sb, fmt.Sprint("p", i), "echo out; exit 3")
	}
	eventually(t, "the newest are kept", func() bool {
		return slices.Equal(ids(t, m, sb), []string{"lives", "p9", "p10", "p11"})
	})
	if p, err := m.Process(t.Context(), operator, "dev", "p11"); err != nil || p.ExitCode == nil || *p.ExitCode != 3 {
		t.Errorf("a record that is kept: %+v, %v", p, err)
	}
	if got := output(t, m, sb, api.LogOptions{ExecID: "p9"}); got != "out\n" {
		t.Errorf("a log that is kept: %q", got)
	}
	if _, err := m.Process(t.Context(), operator, "dev", "p0"); code(err) != api.CodeNotFound {
		t.Errorf("a record that is not: %v", err)
	}
	dirs, err := os.ReadDir(filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "processes"))
	if err != nil || len(dirs) != 4 {
		t.Errorf("on disk: %v, %v", dirs, err)
	}
	// The id of one that is forgotten is free for another.
	start(t, m, sb, shell("p0", "exec sleep 600"))
	_, err = m.StartProcess(t.Context(), operator, "dev", permitProcess(t, sb, shell("one-more", "exit 0")))
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Code != api.CodeNoCapacity || !e.Retryable || e.RetryAfterMS == 0 || !strings.Contains(e.Message, "2 managed processes live") {
		t.Errorf("over the limit of those that live: %v", err)
	}
	if err := m.SignalProcess(t.Context(), operator, "dev", "p0", api.SignalRequest{Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
	collected(t, m, sb, "p0")
	start(t, m, sb, shell("one-more", "exit 0"))
}

// Who reads the log of an ended process reads it to its end, whatever is started
// meanwhile; what it left running is not ended with its record.
func TestReadersKeepAnEndedProcess(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sandbox.SetProcessBounds(m, 8, 2)
	sb := w.create(m, "dev")
	file := filepath.Join(t.TempDir(), "pid")
	run(t, m, sb, "read", "echo out; setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $! > "+file)
	a := attach(t, m, sb, "read", api.AttachRequest{Since: new(int64(0))})
	for i := range 3 {
		run(t, m, sb, fmt.Sprint("p", i), "exit 0")
	}
	b := attach(t, m, sb, "p2", api.AttachRequest{})
	_, err := m.StartProcess(t.Context(), operator, "dev", permitProcess(t, sb, shell("p3", "exit 0")))
	if code(err) != api.CodeNoCapacity {
		t.Errorf("a start while all that have ended are being read: %v", err)
	}
	b.Close()
	if got, exit, err := drain(a); err != nil || got != "out\n" || exit == nil {
		t.Errorf("read %q, %+v, %v", got, exit, err)
	}
	a.Close()
	eventually(t, "it is not kept any longer", func() bool {
		start(t, m, sb, shell("", "exit 0"))
		_, err = m.Process(t.Context(), operator, "dev", "read")
		return code(err) == api.CodeNotFound
	})
	pid, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); err != nil {
		t.Errorf("what it left running: %v", err)
	}
}

// A removal writes nothing of the processes that it removes, however many; who
// reads one of them is told of its end.
func TestRemovalDoesNotSettleOnDisk(t *testing.T) {
	w := newFixture(t)
	var sb api.Sandbox
	written := -1
	w.trap = func(_ context.Context, point string) error {
		if point != "before erase" {
			return nil
		}
		files, err := filepath.Glob(filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "processes", "*", "process.json"))
		if err != nil || len(files) != 20 {
			t.Errorf("records: %v, %v", files, err)
		}
		written = 0
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Error(err)
			}
			if !strings.Contains(string(data), `"state":"running"`) {
				written++
			}
		}
		return nil
	}
	m := w.manager(false)
	sb = w.create(m, "dev")
	for i := range 20 {
		start(t, m, sb, shell(fmt.Sprint("p", i), "exec sleep 600"))
	}
	a := attach(t, m, sb, "p7", api.AttachRequest{})
	if err := m.Remove(t.Context(), operator, "dev"); err != nil {
		t.Fatal(err)
	}
	if _, exit, err := drain(a); err != nil || exit == nil || exit.ExitCode != nil || exit.Reason == "" {
		t.Errorf("who was attached: %+v, %v", exit, err)
	}
	if written != 1 {
		t.Errorf("%d records were written once more, want the one that was being read", written)
	}
	for i := range 20 {
		if got := w.processEvents(fmt.Sprint("p", i)); !slices.Equal(got, []string{"started", "exited"}) {
			t.Errorf("events of p%d: %v", i, got)
		}
	}
	w.nothingLeft(m)
}

func TestEndedProcessesAreKeptForAWhile(t *testing.T) {
	w := newFixture(t)
	w.retention = retention.Rule{For: 300 * time.Millisecond}
	m := w.manager(false)
	sb := w.create(m, "dev")
	start(t, m, sb, shell("lives", "exec sleep 600"))
	for i := range 3 {
		start(t, m, sb, shell(fmt.Sprint("p", i), "exit 0"))
	}
	eventually(t, "only what lives is on record", func() bool { return slices.Equal(ids(t, m, sb), []string{"lives"}) })
	// A daemon that comes later knows when the time of what it finds is over.
	start(t, m, sb, shell("late", "exit 0"))
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	m = w.manager(false)
	eventually(t, "it is forgotten there too", func() bool { return slices.Equal(ids(t, m, sb), []string{"lives"}) })
}
