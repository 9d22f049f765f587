//go:build linux

package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// TestCompareHostFiles: a file of an image's mount must be the one that the memory was saved with. Others may change.
func TestCompareHostFiles(t *testing.T) {
	dir := t.TempDir()
	lib := filepath.Join(dir, "lib", "libc.so")
	if err := os.MkdirAll(filepath.Dir(lib), 0o755); err != nil {
		t.Fatal(err)
	}
	put := func() {
		t.Helper()
		if err := os.WriteFile(lib, []byte("code"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put()
	// A longer target than the mount of the image is another mount, and so is one that only begins alike.
	mounts := []engine.Mount{
		{Source: dir, Target: "/usr", ReadOnly: true, Static: true, OfImage: true},
		{Source: t.TempDir(), Target: "/usr/share"}, {Source: t.TempDir(), Target: "/work"},
	}
	saved := func() []hostFile {
		var st unix.Stat_t
		if err := unix.Stat(lib, &st); err != nil {
			t.Fatal(err)
		}
		return []hostFile{
			{Path: "/usr/lib/libc.so", Size: st.Size, Modified: st.Mtim.Nano(), Inode: st.Ino},
			{Path: "/usr/share/other", Size: 1}, {Path: "/work/file", Size: 1}, {Path: "/usrlib/file", Size: 1},
		}
	}
	if err := compareHostFiles(saved(), mounts); err != nil {
		t.Error(err)
	}
	for what, c := range map[string]struct {
		change func() error
		said   string
	}{
		"removed":  {func() error { return os.Remove(lib) }, "was removed"},
		"touched":  {func() error { return os.Chtimes(lib, time.Time{}, time.Now().Add(time.Hour)) }, "was changed"},
		"longer":   {func() error { return os.Truncate(lib, 5) }, "was changed"},
		"replaced": {func() error { return errors.Join(os.Rename(lib, lib+".old"), os.WriteFile(lib, []byte("evil"), 0o644)) }, "was changed or replaced"},
		"a link":   {func() error { return errors.Join(os.Rename(lib, lib+".moved"), os.Symlink(lib+".moved", lib)) }, "was changed or replaced"},
	} {
		_ = os.Remove(lib)
		put()
		before := saved()
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		err := compareHostFiles(before, mounts)
		if api.CodeOf(err) != api.CodeState || !errors.Is(err, engine.ErrMemoryRefused) || !strings.Contains(err.Error(), "/usr/lib/libc.so of this machine "+c.said) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// A hostile path does not leave the mount.
	if err := compareHostFiles([]hostFile{{Path: "/usr/../../etc/passwd"}}, mounts); err == nil {
		t.Error("a path outside of the mount was looked for")
	}
}
