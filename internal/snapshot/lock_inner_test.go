//go:build linux

package snapshot

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRemoveDuringFork: a snapshot that is whole can be removed, even while a process that was forked during its making
// has not executed its program yet.
func TestRemoveDuringFork(t *testing.T) {
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	lock, err := lockDir(f.Name(), unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	forked, err := unix.FcntlInt(lock.Fd(), unix.F_DUPFD_CLOEXEC, 0) // as a fork does
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(forked)
	unlock(lock)
	again, err := lockDir(f.Name(), unix.LOCK_EX)
	if err != nil {
		t.Fatalf("the lock is still held: %v", err)
	}
	unlock(again)
	_ = f.Close()
}
