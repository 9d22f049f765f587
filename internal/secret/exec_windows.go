package secret

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// noWait is nothing: there are no FIFOs that a name leads to.
const noWait = 0

// runApart runs a program with an environment of its own and in a job that ends with it.
// It is in the job a moment after it began: what it starts before that, and leaves, stays.
func runApart(cmd *exec.Cmd) error {
	root := os.Getenv("SystemRoot")
	cmd.Env = []string{"SystemRoot=" + root, "PATH=" + root + `\System32;` + root}
	cmd.Dir = root
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP | windows.CREATE_NO_WINDOW}
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return fmt.Errorf("make a job: %w", err)
	}
	defer func() { _ = windows.CloseHandle(job) }()
	limits := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{BasicLimitInformation: windows.JOBOBJECT_BASIC_LIMIT_INFORMATION{LimitFlags: windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE}}
	if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits))); err != nil {
		return fmt.Errorf("make a job: %w", err)
	}
	cmd.Cancel = func() error { return windows.TerminateJobObject(job, 1) }
	if err := cmd.Start(); err != nil {
		return err
	}
	p, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(cmd.Process.Pid))
	if err == nil {
		err = errors.Join(windows.AssignProcessToJobObject(job, p), windows.CloseHandle(p))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("put it into a job: %w", err), cmd.Process.Kill(), cmd.Wait())
	}
	return cmd.Wait()
}
