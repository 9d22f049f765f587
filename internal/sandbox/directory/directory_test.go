//go:build linux

package directory

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Prepare removes what a start that was cut short has left: files of the engine, mount points and mounts.
func TestPrepareAfterAStartThatWasCutShort(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		if err := Prepare(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, Engine, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		point := filepath.Join(dir, Staging, "m-1")
		if err := os.Mkdir(point, 0o700); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			if err := unix.Mount(t.TempDir(), point, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := Prepare(dir); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{Engine, Staging} {
		if left, err := os.ReadDir(filepath.Join(dir, sub)); err != nil || len(left) > 0 {
			t.Errorf("%s: %v, %v", sub, left, err)
		}
	}
}
