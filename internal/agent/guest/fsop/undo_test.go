//go:build linux

package fsop

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
)

// TestDropSetID: content that is changed in place takes the bits away, in the root too.
func TestDropSetID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("before"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Chmod(path, 0o6755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := &scopedFile{here: f}
	if err := w.empty(); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&0o7777 != 0o755 || st.Size != 0 {
		t.Errorf("mode %o and %d bytes, %v", st.Mode&0o7777, st.Size, err)
	}
}

// TestUndoRestoresSharedDirectories: an import that is taken back leaves a directory
// set-group-ID that was so before.
func TestUndoRestoresSharedDirectories(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "mode-")
	if err != nil {
		t.Skipf("needs a directory in /dev/shm: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if pathwalk.InRoot(int(f.Fd())) {
		t.Skip("needs /dev/shm to be a mount of its own")
	}
	if err := unix.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := &swap{target: pathwalk.DirWalk{Top: f}, meta: map[string]dirEnd{".": {name: ".", mode: 0o6775}}}
	if err := s.undo(false); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil || st.Mode&0o7777 != 0o2775 {
		t.Errorf("mode %o, want 2775 (%v)", st.Mode&0o7777, err)
	}
}
