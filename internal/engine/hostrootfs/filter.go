//go:build linux

package hostrootfs

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FilterMend is what would be right where CheckFilters fails.
const FilterMend = "use a kernel with CONFIG_SECCOMP_FILTER, or let the daemon make the call seccomp where something filters its own"

// CheckFilters says why no filter can be put before the system calls of a program here.
// Without a filter there are no sandboxes: nothing else holds what it holds.
func CheckFilters() error {
	// The answer of Cloche's filters. A kernel that knows no filters knows no answers.
	action := uint32(unix.SECCOMP_RET_ERRNO)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	if errno != 0 {
		return fmt.Errorf("no filter of system calls can be installed: %w", errno)
	}
	return nil
}
