package hostfile_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/cloche-dev/cloche/internal/hostfile"
)

// TestReplace: a file has the old content or the new, whatever fails, and nothing else is
// left.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	path := filepath.Join(dir, "d", "file")
	for _, text := range []string{"first", "second, which is longer", "3"} {
		if err := hostfile.Replace(root, "d/file", []byte(text)); err != nil {
			t.Fatal(err)
		}
		holds(t, path, text)
	}
	wanted := errors.New("wanted")
	err = hostfile.ReplaceWith(root, "d/file", func(w io.Writer) error {
		_, _ = w.Write([]byte("half"))
		return wanted
	})
	if !errors.Is(err, wanted) {
		t.Errorf("a writer that fails: %v", err)
	}
	holds(t, path, "3")
	if err := os.Mkdir(filepath.Join(dir, "d", "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := hostfile.ReplaceIn(filepath.Join(dir, "d"), "taken", []byte("x")); err == nil {
		t.Error("a directory was replaced")
	}
	entries, err := os.ReadDir(filepath.Join(dir, "d"))
	if err != nil || len(entries) != 2 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// TestSettle: what is open and written gets a name that another file had.
func TestSettle(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := hostfile.CreateIn(dir, "file", []byte("old")); err != nil {
		t.Fatal(err)
	}
	holds(t, path, "old")
	f, err := hostfile.CreateTemp(dir, "temp-")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("new"); err != nil {
		t.Fatal(err)
	}
	if err := hostfile.Settle(f, path); err != nil {
		t.Fatal(err)
	}
	holds(t, path, "new")
}

// BenchmarkReplace is what a record costs on the disk that the temporary directory is on:
// one that is replaced, one that is new, and many replaced at once, which share the writes
// of the filesystem's journal.
func BenchmarkReplace(b *testing.B) {
	data := make([]byte, 3000)
	for name, put := range map[string]func(dir string) error{
		"replaced": func(dir string) error { return hostfile.ReplaceIn(dir, "record", data) },
		"new":      func(dir string) error { return hostfile.CreateIn(dir, "record", data) },
	} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			for b.Loop() {
				if err := put(dir); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("at once", func(b *testing.B) {
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			dir := b.TempDir()
			for pb.Next() {
				if err := hostfile.ReplaceIn(dir, "record", data); err != nil {
					b.Error(err)
				}
			}
		})
	})
}
