//go:build linux

package fdstore

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
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
			runtime.LockOSThread() // and never unlocked: no other goroutine gets this thread
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

// envTake is the socket from which a child of a test takes a link.
const envTake = "HOLDER_TAKE"

// TestNamespacedGetNothing: a process of another user or process namespace with the
// fd store's own uid, as root of a sandbox may have, is not answered and takes no link.
func TestNamespacedGetNothing(t *testing.T) {
	if path := os.Getenv(envTake); path != "" {
		if err := takeAs(-1, path); err != nil {
			fmt.Println("refused:", err)
			return
		}
		fmt.Println("taken")
		return
	}
	dir, err := os.MkdirTemp("", "holder-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := client(t, dir, nil)
	near, _ := pair(t)
	ids := []syscall.SysProcIDMap{{HostID: os.Getuid(), ContainerID: os.Getuid(), Size: 1}}
	groups := []syscall.SysProcIDMap{{HostID: os.Getgid(), ContainerID: os.Getgid(), Size: 1}}
	for name, attr := range map[string]*syscall.SysProcAttr{
		"its own namespaces":         nil,
		"a user namespace":           {Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: groups},
		"a user and a pid namespace": {Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID, UidMappings: ids, GidMappings: groups},
		"a pid namespace":            {Cloneflags: syscall.CLONE_NEWPID},
	} {
		if name == "a pid namespace" && os.Geteuid() != 0 {
			continue // that alone takes root
		}
		t.Run(name, func(t *testing.T) {
			if err := c.Put(t.Context(), "sb-1", near); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestNamespacedGetNothing$", "-test.v")
			cmd.Env = append(os.Environ(), envTake+"="+filepath.Join(dir, socketName))
			cmd.SysProcAttr = attr
			out, err := cmd.CombinedOutput()
			if err != nil && len(out) == 0 {
				t.Skip("needs namespaces, which cannot be made here: ", err)
			}
			got, want := bytes.Contains(out, []byte("\ntaken\n")), attr == nil
			if got != want || !got && !bytes.Contains(out, []byte("\nrefused: ")) {
				t.Errorf("taken: %v, want %v: %s", got, want, out)
			}
			if left, err := c.List(t.Context()); err != nil || len(left) != 1 {
				t.Errorf("after that: %q, %v", left, err)
			}
		})
	}
}
