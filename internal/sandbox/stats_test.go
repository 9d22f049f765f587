//go:build linux

package sandbox_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestStats: what can be measured of a sandbox that runs is, with the time, and what cannot
// is no zero. Of one that has ended nothing is.
func TestStats(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "box")
	if err := os.WriteFile(filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "workspace", "big"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := m.Stats(t.Context(), operator, "box")
	if err != nil {
		t.Fatal(err)
	}
	if got.Sandbox != sb.ID || got.Engine != sb.Engine || got.ObservedAt.IsZero() || got.Limits.Pids != sb.Limits.Pids {
		t.Errorf("%+v", got)
	}
	if got.Processes == nil {
		t.Error("no processes are counted")
	}
	if got.WorkspaceBytes == nil || *got.WorkspaceBytes < 1<<20 || got.WorkspaceObservedAt == nil {
		t.Errorf("the workspace: %v at %v", got.WorkspaceBytes, got.WorkspaceObservedAt)
	}
	if got.CPUMS != nil || got.MemoryBytes != nil || got.NetworkInBytes != nil || got.NetworkOutBytes != nil {
		t.Errorf("what this engine does not measure is a number: %+v", got)
	}
	if uses := m.Uses(t.Context()); len(uses) != 1 || uses[0].ID != sb.ID {
		t.Errorf("%+v", uses)
	}
	if _, err := m.Stop(t.Context(), operator, "box", nil); err != nil {
		t.Fatal(err)
	}
	got, err = m.Stats(t.Context(), operator, "box")
	if err != nil || got.State != api.StateStopped || got.Processes != nil || got.WorkspaceBytes != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if uses := m.Uses(t.Context()); len(uses) != 0 {
		t.Errorf("%+v", uses)
	}
	if _, err := m.Stats(t.Context(), operator, "nobody"); api.CodeOf(err) != api.CodeNotFound {
		t.Error(err)
	}
}
