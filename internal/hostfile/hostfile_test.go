package hostfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/cloche-dev/cloche/internal/hostfile"
)

func open(t *testing.T, path string, flag int) *os.File {
	t.Helper()
	f, err := hostfile.OpenFile(path, flag, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func holds(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s holds %q, want %q: %v", filepath.Base(path), got, want, err)
	}
}

// TestLock: a lock is of an opened file, does not keep others from reading, and ends with it.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first := open(t, path, os.O_RDWR|os.O_CREATE)
	second := open(t, path, os.O_RDWR)
	if err := hostfile.TryLock(first); err != nil {
		t.Fatal(err)
	}
	if err := hostfile.TryLock(second); !errors.Is(err, hostfile.ErrLocked) {
		t.Errorf("a second lock: %v, want %v", err, hostfile.ErrLocked)
	}
	if _, err := first.WriteString("text"); err != nil {
		t.Error(err)
	}
	holds(t, path, "text")
	hostfile.Unlock(first)
	if err := hostfile.TryLock(second); err != nil {
		t.Errorf("after the first was given up: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if err := hostfile.Lock(first); err != nil {
		t.Errorf("after the second was closed: %v", err)
	}
}

// TestOpenFiles: what is open can get another name, and be what another name is taken from.
func TestOpenFiles(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	f, err := hostfile.CreateTemp(dir, "temp-")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("new"); err != nil {
		t.Fatal(err)
	}
	write(t, at("taken"), "old")
	if err := hostfile.RenameNew(f.Name(), at("taken")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a name that somebody has: %v, want %v", err, fs.ErrExist)
	}
	holds(t, at("taken"), "old")
	if err := hostfile.RenameNew(f.Name(), at("free")); err != nil {
		t.Fatal(err)
	}
	holds(t, at("free"), "new")
	if err := os.Chmod(at("taken"), 0o400); err != nil {
		t.Fatal(err)
	}
	if err := hostfile.Rename(at("free"), at("taken")); err != nil {
		t.Fatal(err)
	}
	holds(t, at("taken"), "new")
	if err := hostfile.Rename(at("free"), at("taken")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is gone: %v, want %v", err, fs.ErrNotExist)
	}
	if err := os.Remove(at("taken")); err != nil {
		t.Errorf("remove what is open: %v", err)
	}
}

// TestAppend: what is opened to be appended to is never written elsewhere.
func TestAppend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write(t, path, "one\n")
	f := open(t, path, os.O_RDWR|os.O_APPEND)
	if _, err := f.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("two\n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Error(err)
	}
	holds(t, path, "one\ntwo\n")
	open(t, path, os.O_RDWR|os.O_TRUNC)
	holds(t, path, "")
}

// TestID: an ID is of the file and not of its name.
func TestID(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), "12345")
	write(t, filepath.Join(dir, "b"), "")
	id, err := hostfile.ID(open(t, filepath.Join(dir, "a"), os.O_RDONLY))
	if err != nil {
		t.Fatal(err)
	}
	if err := hostfile.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "c")); err != nil {
		t.Fatal(err)
	}
	same, size, err := hostfile.Look(filepath.Join(dir, "c"))
	if err != nil || same != id || size != 5 {
		t.Errorf("renamed, it is %d with %d bytes, and was %d: %v", same, size, id, err)
	}
	if other, _, err := hostfile.Look(filepath.Join(dir, "b")); err != nil || other == id {
		t.Errorf("another has the id %d too: %v", other, err)
	}
	if _, _, err := hostfile.Look(filepath.Join(dir, "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is gone: %v, want %v", err, fs.ErrNotExist)
	}
}

func TestSyncDir(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := hostfile.SyncDir(root); err != nil {
		t.Error(err)
	}
}

// TestSymlink: a symlink is not followed.
func TestSymlink(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), "text")
	if err := os.Symlink("file", filepath.Join(dir, "link")); err != nil {
		t.Skipf("needs symlinks: %v", err)
	}
	if f, err := hostfile.OpenFile(filepath.Join(dir, "link"), os.O_RDONLY, 0); err == nil {
		_ = f.Close()
		t.Error("a symlink was opened")
	}
}
