//go:build linux

package fsop

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestLargeFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int64{"a/b/sparse": 1 << 40, "a/ten": 10, "nine": 9} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(dir, name), size); err != nil {
			t.Skipf("needs a filesystem with holes: %v", err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "a", "ten"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	got := large(dir, 10)
	if len(got.Files) != 2 || string(got.Files[0].Path) != filepath.Join(dir, "a/b/sparse") || got.Files[0].Size != 1<<40 || got.Files[1].Size != 10 || got.Partial {
		t.Errorf("found %+v", got)
	}
	for i := range 3 * maxLarge {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), make([]byte, 20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := large(dir, 10); len(got.Files) != maxLarge || got.Files[0].Size != 1<<40 || got.Files[maxLarge-1].Size != 20 {
		t.Errorf("found %d files", len(got.Files))
	}
	if got := large(filepath.Join(dir, "missing"), 0); len(got.Files) != 0 {
		t.Errorf("found %+v of what is not there", got)
	}
}
