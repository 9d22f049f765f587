package early

import (
	"os"
	"syscall"
	"unsafe"
)

// setIDBits are set-user-ID and set-group-ID. A directory of the host is mounted
// nosuid inside, but what a sandbox writes there is seen from the host as well,
// where such a file would run with its owner's rights: root's, if the directory
// is root's.
const setIDBits = 0o6000

// modeCall is a system call that takes mode bits, and which argument they are.
type modeCall struct{ nr, mode uint32 }

// refuseSetID makes every call of this thread, and of what it executes, that
// would set one of setIDBits fail with EPERM.
func refuseSetID() {
	const (
		load, jumpEqual, jumpSet, ret = 0x20, 0x15, 0x45, 0x06
		allow, refuse                 = 0x7fff0000, 0x00050000 | uint32(syscall.EPERM)
		setSeccomp, modeFilter        = 22, 2
	)
	filter := []syscall.SockFilter{{Code: load, K: 0}} // the call's number
	for _, c := range modeCalls() {
		filter = append(filter,
			syscall.SockFilter{Code: jumpEqual, K: c.nr, Jf: 4},
			syscall.SockFilter{Code: load, K: 16 + 8*c.mode}, // the low half of an argument
			syscall.SockFilter{Code: jumpSet, K: setIDBits, Jf: 1},
			syscall.SockFilter{Code: ret, K: refuse},
			syscall.SockFilter{Code: ret, K: allow})
	}
	filter = append(filter, syscall.SockFilter{Code: ret, K: allow})
	prog := syscall.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, setSeccomp, modeFilter, uintptr(unsafe.Pointer(&prog))); e != 0 {
		os.Exit(exitFirst)
	}
}
