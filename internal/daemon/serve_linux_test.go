package daemon

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestSocketIsPrivate: from its first moment, and without a mask that would be
// everybody's: a directory made meanwhile by another goroutine lost its x that way.
func TestSocketIsPrivate(t *testing.T) {
	dir := t.TempDir()
	made := make(chan os.FileMode)
	go func() {
		defer close(made)
		for i := range 2000 {
			p := filepath.Join(dir, "made")
			if err := os.Mkdir(p, 0o700); err != nil {
				t.Error(i, err)
				return
			}
			if fi, err := os.Lstat(p); err == nil && fi.Mode().Perm() != 0o700 {
				made <- fi.Mode()
			}
			if err := syscall.Rmdir(p); err != nil {
				t.Error(i, err)
				return
			}
		}
	}()
	path := filepath.Join(dir, "cloche.sock")
	for range 200 {
		ln, err := listenUnix(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Lstat(path); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("the socket: %v %v", fi.Mode(), err)
		}
		ln.Close()
	}
	for mode := range made {
		t.Errorf("a directory made meanwhile has mode %v", mode)
	}
}
