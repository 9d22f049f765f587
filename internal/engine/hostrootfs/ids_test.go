//go:build linux

package hostrootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSubordinate: a line that is no range of subordinate ids is ignored, whatever it has.
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

// identity is who a thread is to the kernel: its users, the one for files among them, and its
// capabilities.
func identity(t *testing.T) (ids string, caps string) {
	t.Helper()
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name {
		case "Uid":
			ids = strings.Join(strings.Fields(value), " ")
		case "CapEff", "CapPrm":
			caps += strings.TrimSpace(value) + " "
		}
	}
	return ids, caps
}

// TestCreate: what makes a namespace is the sandbox's user to the kernel, with files as root
// and no capability less; afterwards the thread is what it was, whatever came of it.
func TestCreate(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: another user has no ids to give")
	}
	runtime.LockOSThread() // and is never unlocked: what goes wrong ends with the thread
	ids := IDs{UID: 0x6fff_0000, GID: 0x6fff_0000, Size: rangeSize}
	before, caps := identity(t)
	failed := errors.New("it failed")
	for _, want := range []error{nil, failed} {
		err := ids.Create(func() error {
			if got, its := identity(t); got != fmt.Sprintf("0 %d 0 0", ids.UID) || its != caps {
				t.Errorf("it is made by %s with %s, and the thread had %s", got, its, caps)
			}
			return want
		})
		if !errors.Is(err, want) {
			t.Errorf("says %v, want %v", err, want)
		}
		if got, its := identity(t); got != before || its != caps {
			t.Errorf("afterwards the thread is %s with %s, and was %s with %s", got, its, before, caps)
		}
	}
	one := IDs{UID: 1234, Size: 1}
	if err := one.Create(func() error {
		if got, _ := identity(t); got != before {
			t.Errorf("for one user it is made by %s, not %s", got, before)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
