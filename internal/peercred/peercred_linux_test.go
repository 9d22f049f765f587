package peercred_test

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cloche-dev/cloche/internal/peercred"
)

// envDial is the socket that a child of these tests connects to.
const envDial = "PEERCRED_DIAL"

func TestMain(m *testing.M) {
	path := os.Getenv(envDial)
	if path == "" {
		os.Exit(m.Run())
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		panic(err)
	}
	// It stays until the test has judged it.
	_, _ = io.Copy(io.Discard, c)
}

// listen makes a socket that every process of the test reaches.
func listen(t *testing.T) (*net.UnixListener, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "peer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(path, 0o666)); err != nil {
		t.Fatal(err)
	}
	return ln, path
}

// start starts a child that connects.
func start(t *testing.T, path string, attr *syscall.SysProcAttr) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envDial+"="+path)
	cmd.SysProcAttr, cmd.Stderr = attr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Skip("needs namespaces, which cannot be made here: ", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func accept(t *testing.T, ln *net.UnixListener) *net.UnixConn {
	t.Helper()
	c, err := ln.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func mapping(size int) []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: size}}
}

// TestUID: a process of the same namespaces is known by its uid, and one of others is
// not, although its uid is the same.
func TestUID(t *testing.T) {
	ln, path := listen(t)
	cases := map[string]*syscall.SysProcAttr{
		"user namespace":             {Cloneflags: syscall.CLONE_NEWUSER, UidMappings: mapping(1), GidMappings: mapping(1)},
		"process and user namespace": {Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID, UidMappings: mapping(1), GidMappings: mapping(1)},
	}
	if os.Getuid() == 0 {
		cases["process namespace"] = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	}
	t.Run("own", func(t *testing.T) {
		start(t, path, nil)
		if uid, err := peercred.UID(accept(t, ln)); err != nil || uid != os.Getuid() {
			t.Errorf("a process of these namespaces is %d, %v", uid, err)
		}
	})
	t.Run("own, without a new process", func(t *testing.T) {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if uid, err := peercred.UID(accept(t, ln)); err != nil || uid != os.Getuid() {
			t.Errorf("this process is %d, %v", uid, err)
		}
	})
	for name, attr := range cases {
		t.Run(name, func(t *testing.T) {
			start(t, path, attr)
			if uid, err := peercred.UID(accept(t, ln)); !errors.Is(err, peercred.ErrForeign) || uid != -1 {
				t.Errorf("a process of another %s is %d, %v", name, uid, err)
			}
		})
	}
}

// TestUIDOfOneThatEnded: whose namespaces cannot be read any more is not trusted.
func TestUIDOfOneThatEnded(t *testing.T) {
	ln, path := listen(t)
	cmd := start(t, path, nil)
	c := accept(t, ln)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if uid, err := peercred.UID(c); !errors.Is(err, peercred.ErrForeign) || uid != -1 {
		t.Errorf("a process that has ended is %d, %v", uid, err)
	}
}

// TestUIDOfAnotherUser: a process of another user keeps its uid where the daemon may not
// trace it, and in another user namespace it has none.
func TestUIDOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it starts a process of another user")
	}
	ln, path := listen(t)
	start(t, path, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
	if uid, err := peercred.UID(accept(t, ln)); err != nil || uid != 65534 {
		t.Errorf("a process of another user is %d, %v", uid, err)
	}
}

// TestSameByStatus judges by what everybody may read.
func TestSameByStatus(t *testing.T) {
	ln, path := listen(t)
	if err := peercred.SameByStatus(os.Getpid()); err != nil {
		t.Errorf("this process: %v", err)
	}
	for name, flags := range map[string]uintptr{"user": syscall.CLONE_NEWUSER, "user and pid": syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID} {
		cmd := start(t, path, &syscall.SysProcAttr{Cloneflags: flags, UidMappings: mapping(1), GidMappings: mapping(1)})
		accept(t, ln)
		if err := peercred.SameByStatus(cmd.Process.Pid); err == nil {
			t.Errorf("a process of another %s namespace is taken for one of this", name)
		}
	}
	if os.Getuid() != 0 {
		return
	}
	cmd := start(t, path, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID})
	accept(t, ln)
	if err := peercred.SameByStatus(cmd.Process.Pid); err == nil {
		t.Error("a process of another pid namespace is taken for one of this")
	}
}
