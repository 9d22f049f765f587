//go:build linux

package native

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
)

// TestChildDiesWithDaemon kills a daemon while a child waits for its ids. The child has
// what descriptors the daemon had, also the end of the pipe that it waits on.
func TestChildDiesWithDaemon(t *testing.T) {
	const daemon = "CLOCHE_TEST_DAEMON_THAT_DIES"
	if os.Getenv(daemon) != "" {
		dieWithChild(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), awaitTime/2)
	defer cancel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^TestChildDiesWithDaemon$")
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), daemon+"=1"), []*os.File{w}
	err = cmd.Run()
	w.Close()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != unix.SIGKILL {
		t.Skipf("needs user namespaces: %v", err)
	}
	// The end of the pipe is the death of all who had it.
	if err := r.SetReadDeadline(time.Now().Add(awaitTime / 2)); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || os.IsTimeout(err) {
		t.Errorf("the child outlives the daemon: %d, %v", n, err)
	}
}

// dieWithChild is the daemon.
func dieWithChild(t *testing.T) {
	s, err := newScript()
	if err != nil {
		t.Fatal(err)
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	s.trial(hostrootfs.IDs{}, fds[0], fds[1])
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	if _, _, err := s.fork(unix.CLONE_NEWUSER|unix.CLONE_NEWNS|unix.CLONE_NEWPID|unix.CLONE_NEWNET, -1); err != nil {
		t.Fatal(err)
	}
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	select {}
}
