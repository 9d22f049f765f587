package workspace_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// TestFillIsSeenWholeOrNotAtAll: the files that were being copied into a workspace
// when a process died are not visible, and it never loses its earlier files.
func TestFillIsSeenWholeOrNotAtAll(t *testing.T) {
	for _, bounds := range []workspace.Bounds{{}, {SizeBytes: 4 << 20, Inodes: 100}} {
		t.Run(fmt.Sprint(bounds.Any()), func(t *testing.T) {
			if bounds.Any() {
				needDisks(t)
			}
			s, home := store(t)
			staging := filepath.Join(home, "staging")
			must(t, os.Mkdir(staging, 0o700))
			w := wish("w")
			w.Bounds = bounds
			_, err := s.Attach(w, writer("a"))
			must(t, err)
			// look opens the workspace, as the next who has it does.
			look := func(want ...string) *workspace.Dir {
				t.Helper()
				d, err := s.Open("local", "w", staging)
				must(t, err)
				t.Cleanup(func() { _ = d.Close() })
				var got []string
				entries, err := os.ReadDir(d.Path())
				must(t, err)
				for _, e := range entries {
					got = append(got, e.Name())
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("it has %v, want %v", got, want)
				}
				if fi, err := os.Stat(d.Path()); err != nil || fi.Mode().Perm() != 0o777 {
					t.Errorf("its mode is %v, %v", fi.Mode(), err)
				}
				return d
			}
			d := look()
			must(t, d.Empty(t.Context()))
			must(t, s.BeginFill("local", "w"))
			must(t, os.MkdirAll(filepath.Join(d.Path(), "half", "of", "it"), 0o700))
			must(t, d.Close())
			look() // the filler died
			d = look()
			must(t, s.BeginFill("local", "w"))
			must(t, os.WriteFile(filepath.Join(d.Path(), "all"), nil, 0o600))
			must(t, s.EndFill("local", "w"))
			must(t, d.Close())
			d = look("all")
			code(t, "another fill", d.Empty(t.Context()), api.CodeConflict)
			must(t, d.Close())
			must(t, s.Detach("local", "w", "d-1", "a", false))
			must(t, s.Remove("local", "w"))
			must(t, s.EndFill("local", "w"))
		})
	}
}
