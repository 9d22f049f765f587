package docker

import (
	"os/exec"
	"syscall"
)

// apart gives a process a group of its own: what a console sends to this one's is
// not for it.
func apart(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}
