//go:build linux

package oci

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// watcherArgv0 is the name under which an executable plays the watcher.
const watcherArgv0 = "cloche-oci-watcher"

// watcher is a process that kills a sandbox when this process is gone, which it sees at
// a pipe: the kernel does that only for children, and the sandbox is the runtime's.
type watcher struct {
	pipe io.WriteCloser
	cmd  *exec.Cmd
	once sync.Once
}

// Dispatch plays the watcher, when this process was started for that, and does not
// return then. A main calls it first.
func Dispatch() {
	if len(os.Args) != 1 || os.Args[0] != watcherArgv0 {
		return
	}
	// A byte says that there is nothing to kill any more.
	if n, _ := io.ReadFull(os.Stdin, make([]byte, 1)); n == 0 {
		_ = unix.PidfdSendSignal(firstFD, unix.SIGKILL, nil, 0)
	}
	os.Exit(0)
}

// watchOver starts a watcher of a process. It must not end before release.
func (e *Engine) watchOver(ctx context.Context, p *pidfd.Process) (*watcher, error) {
	exe := e.opts.ExePath
	if exe == "" {
		exe = "/proc/self/exe"
	}
	pfd, err := unix.PidfdOpen(p.ID.PID, 0)
	if err != nil {
		return nil, fmt.Errorf("watch over the sandbox: %w", err)
	}
	f := os.NewFile(uintptr(pfd), "pidfd")
	defer f.Close()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), exe) // release ends it, or the end of this process
	cmd.Args, cmd.Env = []string{watcherArgv0}, []string{}
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("watch over the sandbox: %w", err)
	}
	if err := cmd.Start(); err != nil {
		pipe.Close()
		return nil, fmt.Errorf("watch over the sandbox: %w", err)
	}
	return &watcher{pipe: pipe, cmd: cmd}, nil
}

// release ends a watcher that has nothing to watch any more.
func (w *watcher) release() {
	w.once.Do(func() {
		_, _ = w.pipe.Write([]byte{0}) // it may be dead
		w.pipe.Close()
		_ = w.cmd.Wait() // how it ended is of no interest
	})
}
