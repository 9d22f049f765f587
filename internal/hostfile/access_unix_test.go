//go:build linux || darwin

package hostfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cloche-dev/cloche/internal/hostfile"
)

// TestAccess: a directory is closed to others, and a file that they get at is told of.
func TestAccess(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := hostfile.CloseDir(dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the mode is %v, want 0700: %v", info.Mode(), err)
	}
	f := open(t, filepath.Join(dir, "file"), os.O_RDWR|os.O_CREATE)
	for mode, guarded := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: false, 0o604: false, 0o622: false} {
		if err := f.Chmod(mode); err != nil {
			t.Fatal(err)
		}
		err := hostfile.Guarded(f)
		if _, told := errors.AsType[*hostfile.ForeignError](err); told == guarded || guarded && err != nil {
			t.Errorf("%v: %v", mode, err)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := f.Chmod(0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Chown(12345, 12345), os.Chown(dir, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"a file": hostfile.Guarded(f), "a directory": hostfile.CloseDir(dir)} {
		if _, told := errors.AsType[*hostfile.ForeignError](err); !told {
			t.Errorf("%s of another user: %v", what, err)
		}
	}
}
