//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/sandbox/retention"
)

// damage are the ways in which a record is lost.
var damage = map[string]func(file string) error{
	"missing":         os.Remove,
	"empty":           func(file string) error { return os.Truncate(file, 0) },
	"torn":            func(file string) error { return os.Truncate(file, 100) },
	"another version": func(file string) error { return os.WriteFile(file, []byte(`{"Version":99}`), 0o600) },
	"of another": func(file string) error {
		return os.WriteFile(file, []byte(`{"Version":2,"Info":{"id":"sb-other"}}`), 0o600)
	},
}

// A sandbox whose record is lost is kept with its files, its processes and its workspace,
// and is told once. Removing it by name ends all of that.
func TestLostRecord(t *testing.T) {
	noGoroutinesLeft(t)
	for how, hurt := range damage {
		for _, described := range []bool{true, false} {
			name := how
			if !described {
				name += " without a description"
			}
			t.Run(name, func(t *testing.T) {
				w := newFixture(t)
				m := w.manager(false)
				other := w.create(m, "other")
				sb, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "x", Workspace: &api.Workspace{Name: "kept"}}), nil)
				if err != nil {
					t.Fatal(err)
				}
				dir := filepath.Join(w.dir, "owner", "sandboxes", sb.ID)
				file := filepath.Join(dir, "user-file")
				w.write(file, "content")
				sandbox.Crash(m)
				if err := hurt(filepath.Join(dir, "sandbox.json")); err != nil {
					t.Fatal(err)
				}
				if !described {
					if err := os.Remove(filepath.Join(dir, "created.json")); err != nil {
						t.Fatal(err)
					}
				}
				running := instances(w)
				for range 2 { // a second daemon does as the first
					w.forgetEvents()
					m = w.manager(false)
					got, err := m.Get(operator, sb.ID)
					if err != nil || got.State != api.StateFailed || !strings.Contains(got.Reason, sb.ID+"/sandbox.json") || strings.Contains(got.Reason, w.dir) {
						t.Fatalf("after its record was lost: %+v, %v; want failed, with the file below the home", got, err)
					}
					if data, err := os.ReadFile(file); err != nil || string(data) != "content" {
						t.Errorf("a file of it: %q, %v", data, err)
					}
					if left := instances(w); !slices.Equal(left, running) {
						t.Errorf("instances: %v, before %v", left, running)
					}
					if n := count(w.kinds(), "failed"); n != 1 {
						t.Errorf("events: %v, want failed once", w.kinds())
					}
					if ws, err := w.spaces.Get(operator.Tenant, "kept"); err != nil || !slices.Equal(ws.Sandboxes, []string{sb.ID}) {
						t.Errorf("its workspace: %+v, %v; want it to be held still", ws, err)
					}
					if _, err := m.Exec(t.Context(), operator, sb.ID, permitExec(t, other, api.ExecRequest{Argv: []string{"true"}})); api.CodeOf(err) != api.CodeState {
						t.Errorf("an exec: %v, want %s", err, api.CodeState)
					}
					sandbox.Crash(m)
				}
				m = w.manager(false)
				ref := "x"
				if !described {
					ref = sb.ID
				}
				if err := m.Remove(t.Context(), operator, ref); err != nil {
					t.Fatal(err)
				}
				if left := w.machine.Left(); len(left) != 1 || !strings.Contains(left[0], other.ID) {
					t.Errorf("instances after the removal: %v, want that of the other sandbox", left)
				}
				if err := m.Remove(t.Context(), operator, "other"); err != nil {
					t.Fatal(err)
				}
				w.nothingLeft(m)
				w.create(m, "x")
			})
		}
	}
}

func instances(w *fixture) []string {
	ids := w.machine.Left()
	slices.Sort(ids)
	return ids
}

func count(all []string, what string) (n int) {
	for _, s := range all {
		if s == what {
			n++
		}
	}
	return n
}

// A stop ends what runs of a sandbox whose record is lost, and keeps its files and the
// record as it is.
func TestStopLostRecord(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "x")
	record := filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "sandbox.json")
	sandbox.Crash(m)
	if err := os.WriteFile(record, []byte("{torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.retention = retention.Rule{For: 1}
	m = w.manager(false)
	if _, err := m.Stop(t.Context(), operator, "x", nil); err != nil {
		t.Fatal(err)
	}
	if left := w.machine.Left(); len(left) != 0 {
		t.Errorf("instances after a stop: %v", left)
	}
	if data, err := os.ReadFile(record); err != nil || string(data) != "{torn" {
		t.Errorf("the record after a stop: %q, %v", data, err)
	}
	sandbox.Crash(m)
	if got, err := w.manager(false).Get(operator, sb.ID); err != nil || got.State != api.StateFailed {
		t.Errorf("after a restart: %v, %v", got.State, err)
	}
}

// What a creation left that never finished goes, also with a part of a record in it, and
// so does the rest of a removal. Files without a description stay.
func TestUnfinishedCreation(t *testing.T) {
	w := newFixture(t)
	at := func(elem ...string) string {
		return filepath.Join(append([]string{w.dir, "owner", "sandboxes"}, elem...)...)
	}
	for _, file := range []string{
		at("sb-begun", "creating.json"), at("sb-begun", "engine", "f"),
		at("sb-torn", "creating.json"), at("sb-torn", "sandbox.json"),
		at(".gone-sb-removed", "sandbox.json"),
		at("sb-files", "workspace", "f"), at("sb-described", "created.json"),
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		w.write(file, "{")
	}
	if err := os.MkdirAll(at("sb-dirs", "engine"), 0o700); err != nil {
		t.Fatal(err)
	}
	m := w.manager(false)
	eventually(t, "the rest of a removal goes", func() bool {
		_, err := os.Lstat(at(".gone-sb-removed"))
		return errors.Is(err, os.ErrNotExist)
	})
	var kept []string
	for _, sb := range m.List(operator, api.ListOptions{}).Sandboxes {
		kept = append(kept, sb.ID)
	}
	slices.Sort(kept)
	if !slices.Equal(kept, []string{"sb-described", "sb-files"}) {
		t.Errorf("listed: %v", kept)
	}
	left, err := os.ReadDir(at())
	if err != nil || len(left) != 2 {
		t.Errorf("directories: %v, %v", left, err)
	}
}

// A sandbox that could not be reached when the daemon began runs no more once it is
// removed.
func TestRemoveUnreached(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "x")
	sandbox.Crash(m)
	sandbox.BreakEngineStateForTest(t, filepath.Join(w.dir, "owner", "sandboxes", sb.ID))
	m = w.newManager(false)
	t.Cleanup(func() { _ = m.Close(context.WithoutCancel(t.Context())) })
	if err := m.Recover(t.Context()); err == nil {
		t.Error("nothing was wrong")
	}
	if got := states(m); !slices.Equal(got, []api.State{api.StateFailed}) || len(w.machine.Left()) != 1 {
		t.Fatalf("sandboxes: %v, instances: %v", got, w.machine.Left())
	}
	if err := m.Remove(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft(m)
}
