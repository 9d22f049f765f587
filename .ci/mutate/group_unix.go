//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// setGroup gives a command a process group, which ends as a whole.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
