//go:build linux

package holder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStrangersGetNothing: another user who reaches the socket, whatever its modes
// say, is not answered and takes no link.
func TestStrangersGetNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it becomes another user")
	}
	dir, err := os.MkdirTemp("", "holder-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := client(t, dir, nil)
	near, _ := pair(t)
	if err := c.Put(t.Context(), "sb-1", near); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, socketName)
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(path, 0o666)); err != nil {
		t.Fatal(err)
	}
	ask := func(uid int) error {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // and never unlocked: nobody else gets this thread
			done <- takeAs(uid, path)
		}()
		return <-done
	}
	if err := ask(0); err != nil {
		t.Fatalf("as its own user: %v", err)
	}
	if err := ask(65534); err == nil {
		t.Error("another user took a link")
	}
	if ids, err := c.List(t.Context()); err != nil || len(ids) != 1 {
		t.Errorf("after that: %q, %v", ids, err)
	}
}

// takeAs takes a link with the calling thread's user changed, which it stays.
func takeAs(uid int, path string) error {
	if _, _, no := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); no != 0 {
		return no
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	tv := unix.Timeval{Sec: 5}
	if err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv), unix.Connect(fd, &unix.SockaddrUnix{Name: path})); err != nil {
		return err
	}
	if err := send(fd, encode(verbTake, "sb-1"), nil); err != nil {
		return err
	}
	words, file, err := receive(fd)
	if err != nil {
		return err
	}
	if file == nil {
		return fmt.Errorf("answered %q", words)
	}
	return file.Close()
}
