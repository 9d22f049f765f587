package workspace_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/workspace"
	"github.com/cloche-dev/cloche/test/longtest"
)

func TestRemoveTreeOfAnyDepth(t *testing.T) {
	longtest.Skip(t, "it makes trees of any depth")
	dir := filepath.Join(t.TempDir(), "ws")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5000 { // a path of 5,000 elements is longer than PATH_MAX
		if err := unix.Mkdirat(fd, "dddd", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "dddd", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if f, err := unix.Openat(fd, fmt.Sprint("f", i), unix.O_CREAT|unix.O_CLOEXEC, 0); err == nil {
			unix.Close(f)
		}
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	if err := workspace.RemoveTree(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the tree is still there: %v", err)
	}
}

func TestRemoveTreeFollowsNoSymlink(t *testing.T) {
	base := t.TempDir()
	precious := filepath.Join(base, "precious")
	dir := filepath.Join(base, "ws")
	for _, p := range []string{precious, filepath.Join(dir, "a", "b"), filepath.Join(dir, "locked")} {
		if err := os.MkdirAll(p, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	keep := filepath.Join(precious, "keep")
	os.WriteFile(keep, []byte("x"), 0o600)
	os.Symlink(precious, filepath.Join(dir, "a", "b", "out"))
	os.Symlink(precious, filepath.Join(dir, "out"))
	os.WriteFile(filepath.Join(dir, "locked", "f"), nil, 0)
	os.Chmod(filepath.Join(dir, "locked"), 0)
	if err := workspace.RemoveTree(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(keep); err != nil {
		t.Fatalf("a file behind a symlink was removed: %v", err)
	}
	link := filepath.Join(base, "link")
	os.Symlink(precious, link)
	if err := workspace.RemoveTree(link); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(keep); err != nil {
		t.Fatalf("removing a symlink removed what is behind it: %v", err)
	}
	if err := workspace.RemoveTree(filepath.Join(base, "absent")); err != nil {
		t.Fatalf("removing what is not there: %v", err)
	}
}
