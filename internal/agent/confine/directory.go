//go:build linux && (amd64 || arm64)

package confine

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// changesFS are the rights of Landlock's that concern files, by the version that has them. What is executed or
// asked of a device is not for a process that only changes files.
func changesFS(version uintptr) (handled, allowed uint64) {
	handled = unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1 | unix.LANDLOCK_ACCESS_FS_REFER
	if version >= 3 {
		handled |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	allowed = handled &^ unix.LANDLOCK_ACCESS_FS_EXECUTE
	if version >= 5 {
		handled |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if version >= resolves {
		handled |= unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
	}
	return handled, allowed
}

// ToDirectory confines all threads of this process: it keeps those of its capabilities that are in keep, never gains
// one, executes nothing, and opens, makes and removes files below the open directory dir only. A kernel without
// Landlock, or with its first version, is no error: the capabilities hold alone. The program must be built without
// cgo.
func ToDirectory(dir int, keep uint64) error {
	if err := onAllThreads("keep the process from new privileges", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make process undumpable: %w", err)
	}
	if err := keepCaps(keep); err != nil {
		return err
	}
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || version < refers {
		return nil
	}
	handled, allowed := changesFS(version)
	attr := rulesetAttr{fs: handled}
	set, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), 8, 0)
	if errno != 0 {
		return fmt.Errorf("make Landlock's rules: %w", errno)
	}
	defer unix.Close(int(set))
	beneath := unix.LandlockPathBeneathAttr{Allowed_access: allowed, Parent_fd: int32(dir)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, set, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&beneath)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("make Landlock's rules: %w", errno)
	}
	return onAllThreads("enter Landlock's domain", unix.SYS_LANDLOCK_RESTRICT_SELF, set, 0, 0)
}

// keepCaps takes from all threads the capabilities that are not in keep.
func keepCaps(keep uint64) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	for i := range data {
		half := uint32(keep >> (32 * i))
		data[i].Permitted &= half
		data[i].Effective = data[i].Permitted
		data[i].Inheritable = 0
	}
	err := onAllThreads("drop capabilities", unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data)), 0)
	runtime.KeepAlive(&hdr)
	runtime.KeepAlive(&data)
	return err
}

// onAllThreads makes a system call on all threads. Arguments that are pointers stay where they are.
//
//go:uintptrescapes
func onAllThreads(what string, nr, a, b, c uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall(nr, a, b, c); errno != 0 {
		return fmt.Errorf("%s: %w", what, errno)
	}
	return nil
}
