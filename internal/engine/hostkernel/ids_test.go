//go:build linux

package hostkernel

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSubordinate: what is no range of subordinate ids is none, whatever stands there.
func TestSubordinate(t *testing.T) {
	for _, test := range []struct {
		text         string
		first, count uint32
	}{
		{"", 0, 0},
		{"other:100000:65536\n", 0, 0},
		{"root:100000:65536\n", 100000, 65536},
		{"other:1:2\n  root:200000:131072  \n", 200000, 131072},
		{"root:100000\nroot:-1:65536\nroot:x:y\nroot:0:65536\nroot:300000:65536\n", 300000, 65536},
		{"root:4294901760:65536\n", 0, 0},
		{"root:4294967295:4294967295\n", 0, 0},
		{"root:1:18446744073709551615\n", 0, 0},
		{"\x00\xff:\n:::::\nroot:::\n", 0, 0},
	} {
		file := filepath.Join(t.TempDir(), "subuid")
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if first, count := subordinate(file, "root"); first != test.first || count != test.count {
			t.Errorf("%q: %d from %d, want %d from %d", test.text, count, first, test.count, test.first)
		}
	}
	if first, count := subordinate(filepath.Join(t.TempDir(), "none"), "root"); first != 0 || count != 0 {
		t.Errorf("without the file: %d from %d", count, first)
	}
}

// TestPoolIsEmpty: no range is given to two sandboxes, by pools of one directory.
func TestPoolIsEmpty(t *testing.T) {
	dir := t.TempDir()
	pools := []*IDPool{{dir: dir, base: 1 << 20, count: 2}, {dir: dir, base: 1 << 20, count: 2}}
	var taken []IDs
	for _, p := range pools {
		ids, err := p.Take()
		if err != nil || !ids.Many() {
			t.Fatalf("%+v, %v", ids, err)
		}
		taken = append(taken, ids)
	}
	if taken[0].UID == taken[1].UID {
		t.Errorf("one range is two sandboxes': %+v", taken)
	}
	if ids, err := pools[0].Take(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a third of two: %+v, %v", ids, err)
	}
	pools[0].Release(taken[1].UID)
	if ids, err := pools[1].Take(); err != nil || ids != taken[1] {
		t.Errorf("after one was given back: %+v, %v", ids, err)
	}
}

// TestNormalUser has no ranges: root inside is that user.
func TestNormalUser(t *testing.T) {
	ids, err := NewIDPool(t.TempDir(), false).Take()
	if err != nil || ids.Many() || int(ids.UID) != os.Geteuid() {
		t.Errorf("%+v, %v", ids, err)
	}
}
