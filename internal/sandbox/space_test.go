//go:build linux

package sandbox_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox"
)

// small is a sandbox whose workspace may hold 2 MiB, and nothing of the kernel's holds it
// to that.
func (w *fixture) small(m *sandbox.Manager, change func(*api.SandboxSpec)) (sb api.Sandbox, dir string) {
	w.t.Helper()
	spec := api.SandboxSpec{Name: "small", Limits: api.Limits{DiskBytes: 4 << 20}}
	if change != nil {
		change(&spec)
	}
	sb, err := m.Create(w.t.Context(), w.permit(spec), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if sb.Workspace.SizeBytes != 2<<20 {
		w.t.Fatalf("the workspace is %+v", sb.Workspace)
	}
	return sb, filepath.Join(w.dir, "owner", "sandboxes", sb.ID, "workspace")
}

func fill(t *testing.T, path string, bytes int) {
	t.Helper()
	if err := os.WriteFile(path, []byte(strings.Repeat("x", bytes)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// stopsForQuota waits until the sandbox was stopped for what its workspace holds.
func stopsForQuota(t *testing.T, m *sandbox.Manager, bound string) {
	t.Helper()
	var sb api.Sandbox
	eventually(t, "a sandbox with too much in its workspace was stopped", func() bool {
		var err error
		if sb, err = m.Get(operator, "small"); err != nil {
			t.Fatal(err)
		}
		return sb.State == api.StateStopped
	})
	if sb.TerminalReason != api.EndedQuota || !strings.Contains(sb.Reason, "holds more than it may") || !strings.Contains(sb.Reason, "of "+bound+", so the sandbox was stopped") {
		t.Errorf("it ended for %q: %s", sb.TerminalReason, sb.Reason)
	}
}

// What is written beyond the bound of a private workspace ends its sandbox while it is
// written, and is kept.
func TestWatchedWorkspace(t *testing.T) {
	for _, quota := range []api.QuotaMode{"", api.QuotaWatched, api.QuotaMeasured} {
		t.Run("quota "+string(quota), func(t *testing.T) {
			w := newFixture(t)
			m := w.manager(false)
			_, dir := w.small(m, func(s *api.SandboxSpec) {
				if quota != "" {
					s.Workspace = &api.Workspace{Quota: quota}
				}
			})
			fill(t, filepath.Join(dir, "fits"), 1<<20)
			fill(t, filepath.Join(dir, "big"), 4<<20)
			bound := "2097152"
			if quota == api.QuotaMeasured {
				bound = "4194304" // what is measured may be passed while a command runs, and the disk may not
			}
			stopsForQuota(t, m, bound)
			if fi, err := os.Stat(filepath.Join(dir, "big")); err != nil || fi.Size() != 4<<20 {
				t.Errorf("what was written is %v, %v", fi, err)
			}
			if kinds := strings.Join(w.kinds(), " "); kinds != "created stopping stopped" {
				t.Errorf("the events were %s", kinds)
			}
			if err := m.Remove(t.Context(), operator, "small"); err != nil {
				t.Fatal(err)
			}
			w.nothingLeft(m)
		})
	}
}

// Files count, and not only what is in them.
func TestWatchedWorkspaceOfManyFiles(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	_, dir := w.small(m, func(s *api.SandboxSpec) {
		s.Workspace = &api.Workspace{Quota: api.QuotaWatched, Inodes: 20, SizeBytes: 2 << 20}
		s.Limits.DiskBytes = 0
	})
	for i := range 40 {
		fill(t, filepath.Join(dir, "f"+string(rune('A'+i))), 0)
	}
	eventually(t, "a sandbox with too many files was stopped", func() bool {
		sb, err := m.Get(operator, "small")
		if err != nil {
			t.Fatal(err)
		}
		return sb.State == api.StateStopped && sb.TerminalReason == api.EndedQuota && strings.Contains(sb.Reason, "inodes of 20")
	})
}

// A daemon that comes later holds the bounds of the sandboxes that it finds, and a paused
// one is looked at when it runs again.
func TestWatchGoesOn(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	_, dir := w.small(m, nil)
	if _, err := m.Pause(t.Context(), operator, "small"); err != nil {
		t.Fatal(err)
	}
	fill(t, filepath.Join(dir, "big"), 4<<20)
	if sb, err := m.Get(operator, "small"); err != nil || sb.State != api.StatePaused {
		t.Fatalf("a paused sandbox is %s, %v", sb.State, err)
	}
	if err := m.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	m = w.manager(false)
	if _, err := m.Resume(t.Context(), operator, "small"); err != nil {
		t.Fatal(err)
	}
	stopsForQuota(t, m, "2097152")
}
