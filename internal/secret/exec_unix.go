//go:build linux || darwin

package secret

import (
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// noWait has a FIFO opened that has no writer.
const noWait = unix.O_NONBLOCK | unix.O_NOCTTY

// execPath is the PATH of a program that is asked for a value: it may call others.
const execPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// runApart runs a program with an environment of its own and in a session that ends with
// it.
func runApart(cmd *exec.Cmd) error {
	cmd.Env, cmd.Dir = []string{execPath, "LANG=C.UTF-8", "HOME=/nonexistent"}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	err := cmd.Run()
	if cmd.Process != nil {
		// What it left in its session goes too; mostly there is nothing any more.
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	}
	return err
}
