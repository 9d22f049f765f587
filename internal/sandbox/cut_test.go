//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/test/longtest"
)

// What the end of a sandbox cuts off of a write leaves no file in its named workspace,
// whichever daemon sees the end. Without a write that was cut off nothing is looked for.
func TestCutWrites(t *testing.T) {
	longtest.Skip(t, "it makes a sandbox for each end")
	const name = ".cloche-0123456789abcdef"
	ends := map[string]func(w *fixture, m *sandbox.Manager){
		"stop":   func(w *fixture, m *sandbox.Manager) { _, _ = m.Stop(t.Context(), operator, "x", nil) },
		"remove": func(w *fixture, m *sandbox.Manager) { _ = m.Remove(t.Context(), operator, "x") },
		"crash": func(w *fixture, m *sandbox.Manager) {
			sandbox.Crash(m)
			_ = w.machine.Close(context.WithoutCancel(t.Context()))
			w.manager(false)
		},
	}
	for how, end := range ends {
		for _, cut := range []bool{true, false} {
			if how == "crash" && !cut {
				continue // it is not known then
			}
			title := how
			if !cut {
				title += " without a write"
			}
			t.Run(title, func(t *testing.T) {
				w := newFixture(t)
				m := w.manager(false)
				if _, err := m.Create(t.Context(), w.permit(api.SandboxSpec{Name: "x", Workspace: &api.Workspace{Name: "kept"}}), nil); err != nil {
					t.Fatal(err)
				}
				file := filepath.Join(w.dir, "workspaces", operator.Tenant, "kept", name)
				if err := os.WriteFile(file, []byte("half"), 0o600); err != nil {
					t.Fatal(err)
				}
				if cut {
					in := io.MultiReader(iotest.ErrReader(errors.New("the caller went away")))
					if _, err := m.WriteFile(t.Context(), operator, "x", api.FilePlace{Path: filepath.Join(t.TempDir(), "f")}, 0, in); err == nil {
						t.Fatal("the write was not cut off")
					}
				}
				end(w, m)
				if _, err := os.Lstat(file); cut != errors.Is(err, os.ErrNotExist) {
					t.Errorf("after the end: %v", err)
				}
			})
		}
	}
}
