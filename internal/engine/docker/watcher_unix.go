//go:build unix

package docker

import (
	"os/exec"
	"syscall"
)

// apart gives a process a session of its own: what a terminal sends to this one's is
// not for it.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
