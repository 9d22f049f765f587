//go:build !remoteonly

package workspace_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cloche-dev/cloche/internal/workspace"
)

// Only files with the exact form of a write that was cut off go.
func TestRemoveCutWrites(t *testing.T) {
	at := t.TempDir()
	elsewhere := t.TempDir()
	const cut = ".cloche-0123456789abcdef"
	must(t, os.MkdirAll(filepath.Join(at, "d", "e"), 0o755))
	must(t, os.WriteFile(filepath.Join(elsewhere, cut), nil, 0o600))
	kept := []string{cut + "0", ".cloche-0123456789ABCDEF", ".cloche-0123456789abcdeg", "x" + cut, "d/.cloche-import-0123456789abcdef0123456789abcdef"}
	for _, name := range append(kept, cut, "d/"+cut, "d/e/.cloche-fedcba9876543210") {
		must(t, os.WriteFile(filepath.Join(at, name), []byte("x"), 0o600))
	}
	const whole, linked, dir, link = ".cloche-1111111111111111", ".cloche-2222222222222222", ".cloche-3333333333333333", ".cloche-4444444444444444"
	must(t, os.WriteFile(filepath.Join(at, whole), nil, 0o600))
	must(t, os.Chmod(filepath.Join(at, whole), 0o644))
	must(t, os.WriteFile(filepath.Join(at, linked), nil, 0o600))
	must(t, os.Link(filepath.Join(at, linked), filepath.Join(at, "other-name")))
	must(t, os.Mkdir(filepath.Join(at, dir), 0o700))
	must(t, os.Symlink(elsewhere, filepath.Join(at, "leads-away")))
	must(t, os.Symlink("d", filepath.Join(at, link)))
	d, err := workspace.OpenDir(at)
	must(t, err)
	defer d.Close()
	must(t, d.RemoveCutWrites(t.Context()))
	var left []string
	must(t, filepath.WalkDir(at, func(path string, e os.DirEntry, err error) error {
		if rel, _ := filepath.Rel(at, path); err == nil && rel != "." && rel != "d" && rel != "d/e" {
			left = append(left, rel)
		}
		return err
	}))
	want := append(kept, whole, linked, dir, link, "other-name", "leads-away")
	slices.Sort(want)
	slices.Sort(left)
	if !slices.Equal(left, want) {
		t.Errorf("left:\n%q\nwant\n%q", left, want)
	}
	if _, err := os.Lstat(filepath.Join(elsewhere, cut)); err != nil {
		t.Errorf("behind a symlink: %v", err)
	}
}
