//go:build linux

package pathwalk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzFollow compares where paths lead with what the kernel says, and with what they are within.
func FuzzFollow(f *testing.F) {
	for _, s := range []string{"f", "a/../f", "l/f", "abs/f", "out", "out/secret", "a/./b//f", "loop", "up/../f", "none/../f", "f/", "l/", "../x", strings.Repeat("a/../", 50)} {
		f.Add(s)
	}
	top, err := filepath.EvalSymlinks(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	root := top + "/root"
	if err := errors.Join(os.MkdirAll(root+"/a/b", 0o755), os.WriteFile(root+"/f", nil, 0o644), os.WriteFile(root+"/a/b/f", nil, 0o644), os.WriteFile(top+"/x", nil, 0o644),
		os.Symlink("a/b", root+"/l"), os.Symlink(root+"/a", root+"/abs"), os.Symlink("..", root+"/up"), os.Symlink("../x", root+"/out"), os.Symlink("loop", root+"/loop"),
		os.Symlink("/proc/self/root", root+"/proc")); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if strings.ContainsRune(name, 0) || len(name) > 1000 {
			return
		}
		b, err := OpenRoot(root, false)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		path := root + "/" + name
		s, err := Roots{b}.Find(path, true)
		if err != nil {
			return
		}
		defer s.Close()
		fd, kerr := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if !s.Exists {
			if !errors.Is(kerr, unix.ENOENT) {
				t.Fatalf("%q is not there, and the kernel says %v", name, kerr)
			}
			return
		}
		if kerr != nil {
			t.Fatalf("%q is there, and the kernel says %v", name, kerr)
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || FileIDOf(&st) != FileIDOf(&s.Stat) {
			t.Fatalf("%q leads elsewhere: %v", name, err)
		}
		real, err := os.Readlink(ProcFD(fd))
		if err != nil || real != root && !strings.HasPrefix(real, root+"/") {
			t.Fatalf("%q leads out, to %q: %v", name, real, err)
		}
		if got := "/" + strings.Join(s.Names(), "/"); got != real {
			t.Fatalf("%q is %q, and was found at %q", name, real, got)
		}
	})
}

// TestBoundsAreDirectoriesNotNames: another directory that takes the name of the one that
// was named is outside, and so is all that a path reaches by it.
func TestBoundsAreDirectoriesNotNames(t *testing.T) {
	top := t.TempDir()
	name := filepath.Join(top, "a")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.Mkdir(name, 0o755))
	check(os.WriteFile(filepath.Join(name, "f"), nil, 0o644))
	b, err := OpenRoot(name, false)
	check(err)
	defer b.Close()
	s, err := Roots{b}.Find(filepath.Join(name, "f"), true)
	check(err)
	s.Close()
	check(os.Rename(name, filepath.Join(top, "gone")))
	check(os.Mkdir(name, 0o755))
	check(os.WriteFile(filepath.Join(name, "f"), nil, 0o644))
	for _, path := range []string{"a", "a/f", "a/new", "gone/f"} {
		if s, err := (Roots{b}).Find(filepath.Join(top, path), true); !errors.Is(err, ErrEscaped) {
			t.Errorf("%s: %v", path, err)
			if err == nil {
				s.Close()
			}
		}
	}
}
