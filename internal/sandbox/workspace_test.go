//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox"
)

// nobodyHasAWorkspace fails when a named workspace is still held, or the disk of
// one has a loop device.
func (w *fixture) nobodyHasAWorkspace() {
	w.t.Helper()
	list, err := w.spaces.List(func(string) bool { return true })
	if err != nil {
		w.t.Error(err)
	}
	for _, i := range list {
		if len(i.Sandboxes) > 0 {
			w.t.Errorf("workspace %s is still held by %v", i.Name, i.Sandboxes)
		}
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(data), w.dir+"/") {
			w.t.Errorf("a loop device is left for %s", data)
		}
	}
}

// A named workspace is given up at the end of its sandbox, or, where something is
// to be done with it then, at the removal.
func TestWorkspaceIsGivenUp(t *testing.T) {
	for _, drop := range []bool{false, true} {
		w := newFixture(t)
		m := w.manager(false)
		spec := everything(t)
		spec.Workspace.Drop = drop
		permit := w.permit(spec)
		if _, err := m.Create(t.Context(), permit, nil); err != nil {
			t.Fatal(err)
		}
		second := everything(t)
		second.Name = "second"
		conflict := func(when string) {
			t.Helper()
			_, err := m.Create(t.Context(), w.permit(second), nil)
			if e, _ := errors.AsType[*api.Error](err); e == nil || e.Code != api.CodeConflict || e.Field != "workspace.name" {
				t.Errorf("drop %v: %s: %v, want a conflict", drop, when, err)
			}
		}
		conflict("while it runs")
		if _, err := m.Stop(t.Context(), operator, "x", nil); err != nil {
			t.Fatal(err)
		}
		if drop {
			conflict("while it is stopped, to be dropped")
		} else if _, err := m.Create(t.Context(), w.permit(second), nil); err != nil {
			t.Errorf("after a stop: %v", err)
		} else if err := m.Remove(t.Context(), operator, "second"); err != nil {
			t.Error(err)
		}
		if err := m.Remove(t.Context(), operator, "x"); err != nil {
			t.Fatal(err)
		}
		_, err := w.spaces.Get("local", "kept")
		if gone := errors.Is(err, api.ErrNotFound); gone != drop {
			t.Errorf("drop %v: the workspace is gone: %v (%v)", drop, gone, err)
		}
		w.nothingLeft(m)
	}
}

// A workspace that is dropped goes with a failed creation no more than any other:
// it was there before.
func TestWorkspaceSurvivesAFailedCreate(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	if _, err := m.Create(t.Context(), w.permit(everything(t)), nil); err != nil {
		t.Fatal(err)
	}
	if err := m.Remove(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	spec := everything(t)
	spec.Workspace.Drop = true
	w.trap = func(_ context.Context, point string) error {
		if point == "before record" {
			return errWanted
		}
		return nil
	}
	sandbox.SetTrap(m, w.trap)
	if _, err := m.Create(t.Context(), w.permit(spec), nil); err == nil {
		t.Fatal("the create did not fail")
	}
	if _, err := w.spaces.Get("local", "kept"); err != nil {
		t.Errorf("the workspace went with a failed create: %v", err)
	}
	w.nothingLeft(m)
}

// The next daemon finds out who still has what.
func TestWorkspaceAfterACrash(t *testing.T) {
	w := newFixture(t)
	first := w.manager(false)
	if _, err := first.Create(t.Context(), w.permit(everything(t)), nil); err != nil {
		t.Fatal(err)
	}
	sandbox.Crash(first)
	second := w.manager(false)
	info, err := w.spaces.Get("local", "kept")
	if err != nil || len(info.Sandboxes) != 1 {
		t.Errorf("a sandbox that lives lost its workspace: %+v, %v", info, err)
	}
	if err := second.Remove(t.Context(), operator, "x"); err != nil {
		t.Error(err)
	}
	w.nothingLeft(second)
}
