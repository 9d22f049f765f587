//go:build linux

package oci

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
)

// namespaces are those that a runtime is told to enter.
type namespaces struct{ user, net *os.File }

func (n namespaces) close() {
	for _, f := range []*os.File{n.user, n.net} {
		if f != nil {
			f.Close()
		}
	}
}

// makeNamespaces makes a user namespace with these ids and a network namespace that
// belongs to it. Only a process can make a user namespace: here one that begins to
// execute program is stopped before its first instruction, and killed when the
// namespaces are held.
func makeNamespaces(program binary, ids hostrootfs.IDs) (n namespaces, err error) {
	// Who forked has to wait for it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return n, fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	defer null.Close()
	var pid int
	create := ids.Create
	if !hasOwnTables(program.Name) {
		create = func(f func() error) error { return f() }
	}
	err = create(func() (err error) {
		pid, err = syscall.ForkExec(program.path, []string{program.path, "--version"}, &syscall.ProcAttr{
			Dir: "/", Env: []string{}, Files: []uintptr{null.Fd(), null.Fd(), null.Fd()},
			Sys: &syscall.SysProcAttr{
				Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET, Ptrace: true, Pdeathsig: syscall.SIGKILL,
				UidMappings: []syscall.SysProcIDMap{{HostID: int(ids.UID), Size: int(ids.Size)}},
				GidMappings: []syscall.SysProcIDMap{{HostID: int(ids.GID), Size: int(ids.Size)}}, GidMappingsEnableSetgroups: true,
			},
		})
		return err
	})
	if err != nil {
		return n, fmt.Errorf("make namespaces: %w", err)
	}
	defer func() {
		_ = unix.Kill(pid, unix.SIGKILL)
		if werr := wait(pid, syscall.WaitStatus.Stopped); err == nil && werr != nil {
			n.close()
			n, err = namespaces{}, werr
		}
	}()
	var status syscall.WaitStatus
	if _, err := wait4(pid, &status); err != nil || !status.Stopped() {
		return n, fmt.Errorf("make namespaces: wait for their process: %w", errors.Join(err, unix.ESRCH))
	}
	dir := "/proc/" + strconv.Itoa(pid) + "/ns/"
	if n.user, err = os.Open(dir + "user"); err == nil {
		n.net, err = os.Open(dir + "net")
	}
	if err != nil {
		n.close()
		return namespaces{}, fmt.Errorf("hold namespaces: %w", err)
	}
	return n, nil
}

// hasOwnTables reports whether a runtime goes on where the user namespace was made by
// another user than itself. Then what the kernel counts by user it does not count for root
// of the host. All but crun set limits of a process that is in there already, which root
// without CAP_SYS_RESOURCE may do as the namespace's maker only.
func hasOwnTables(runtime string) bool {
	if runtime == Crun {
		return true
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	return unix.Capget(&head, &caps[0]) == nil && caps[0].Effective>>unix.CAP_SYS_RESOURCE&1 != 0
}

// wait reaps a process; while says in which states it goes on waiting.
func wait(pid int, while func(syscall.WaitStatus) bool) error {
	for {
		var status syscall.WaitStatus
		if _, err := wait4(pid, &status); err != nil {
			return fmt.Errorf("wait for the process of the namespaces: %w", err)
		}
		if !while(status) {
			return nil
		}
	}
}

func wait4(pid int, status *syscall.WaitStatus) (int, error) {
	for {
		n, err := syscall.Wait4(pid, status, 0, nil)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// errForeignProcess is of a runtime that names a process which is not the sandbox's.
var errForeignProcess = errors.New("it names a process that is not in the sandbox")

// has reports whether a process is in the user namespace.
func (n namespaces) has(pid int) error {
	var ours, its unix.Stat_t
	if err := unix.Fstat(int(n.user.Fd()), &ours); err != nil {
		return fmt.Errorf("look at the user namespace: %w", err)
	}
	if err := unix.Stat("/proc/"+strconv.Itoa(pid)+"/ns/user", &its); err != nil {
		return fmt.Errorf("%w: %w", errForeignProcess, err)
	}
	if ours.Dev != its.Dev || ours.Ino != its.Ino {
		return errForeignProcess
	}
	return nil
}
