//go:build linux

package guest

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// waitAny waits for any child to end and leaves it waitable.
func waitAny(info *[128]byte) error {
	_, _, e := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(info)), unix.WEXITED|unix.WNOWAIT|unix.WALL, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// waitedPID is si_pid of a SIGCHLD siginfo_t, which follows four ints.
func waitedPID(info *[128]byte) int {
	return int(*(*int32)(unsafe.Pointer(&info[16])))
}
