package early

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

// The one init of the project: roles of this executable, played and left.
func init() {
	a := os.Args
	switch {
	case len(a) == 4 && a[0] == "/proc/self/exe" && a[1] == "umount" && a[2] == "--sync-fd=3":
		unmountOnSync(a[3])
	case len(a) > 2 && a[0] == FirstSentry:
		again(Pooled, setup, 0)
	case len(a) == 1 && a[0] == Probe:
		probe()
	case len(a) > 2 && a[0] == FirstGofer:
		refuseSetID()
		again(Gofer, setup|files, files)
	}
}

// unmountOnSync waits for a byte on descriptor 3.
func unmountOnSync(path string) {
	var b [1]byte
	if n, err := syscall.Read(3, b[:]); n != 1 || err != nil {
		os.Exit(1)
	}
	if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// probe tries what a sentry is going to do, in the namespaces of one.
func probe() {
	say := func(step byte, errno syscall.Errno) {
		_, _ = syscall.Write(Executable+1, []byte{step, byte(errno)})
		os.Exit(0)
	}
	err := syscall.Mount("", "/", "", syscall.MS_SLAVE|syscall.MS_REC, "")
	if err == nil {
		err = syscall.Mount("probe", "/tmp", "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, "")
	}
	if err != nil {
		errno := syscall.EPERM
		errors.As(err, &errno)
		say(ProbeMount, errno)
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PTRACE, syscall.PTRACE_TRACEME, 0, 0); errno != 0 {
		say(ProbePtrace, errno)
	}
	say(ProbeOK, 0)
}

// Sets of capabilities, by number.
const (
	// setup makes the empty root directory: SYS_CHROOT, SYS_ADMIN.
	setup uint64 = 1<<18 | 1<<21
	// files serves files of every owner: CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH,
	// FOWNER, FSETID, SYS_CHROOT.
	files uint64 = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<18
)

const (
	prCapbsetRead    = 23
	prCapbsetDrop    = 24
	capabilityV3     = 0x20080522
	exitFirst        = 113
	capabilityNumber = 64
)

type capHeader struct {
	version uint32
	pid     int32
}

type capData struct{ effective, permitted, inheritable uint32 }

// closeAbove closes every descriptor above the last that was meant for this
// process. A daemon has some that outlive execve: those of who started it, and
// the eventfds of gVisor's control connections, one for each sandbox. None is a
// sandbox's business, and one with a number that gVisor wants for itself would
// keep its sentry from booting.
func closeAbove(last string) {
	n, err := strconv.ParseUint(last, 10, 16)
	if err != nil {
		os.Exit(exitFirst)
	}
	if _, _, e := syscall.RawSyscall(sysCloseRange, uintptr(n)+1, 1<<32-1, 0); e == 0 {
		return
	}
	// Before Linux 5.9.
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		os.Exit(exitFirst)
	}
	for _, d := range open {
		if fd, err := strconv.ParseUint(d.Name(), 10, 31); err == nil && fd > n {
			_ = syscall.Close(int(fd)) // the one of the list itself is closed by now
		}
	}
}

// sysCloseRange has this number on every architecture.
const sysCloseRange = 436

// again executes this program again under another name, with the capabilities
// in keep and a bounding set of bound. gVisor drops what is left at the end of
// its own setup. It would also trim the bounding set, on all of its threads at
// once, forty times, which takes longer than all the rest; here there is one
// thread that counts, the one that executes, and without SETPCAP gVisor leaves
// the bounding set alone.
//
// A process with user id 0 gets, when it executes, its inheritable set and its
// bounding set: so keep is inherited, and bound only bounds.
func again(name string, keep, bound uint64) {
	header := capHeader{version: capabilityV3}
	var data [2]capData
	if _, _, e := syscall.RawSyscall(syscall.SYS_CAPGET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0); e != 0 {
		os.Exit(exitFirst)
	}
	data[0].inheritable, data[1].inheritable = uint32(keep), uint32(keep>>32)
	if _, _, e := syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0); e != 0 {
		os.Exit(exitFirst)
	}
	for c := range uintptr(capabilityNumber) {
		if bound&(1<<c) != 0 {
			continue
		}
		if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, prCapbsetRead, c, 0); e != 0 {
			break // no capability of this number: the last was the one before
		}
		if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, prCapbsetDrop, c, 0); e != 0 {
			os.Exit(exitFirst)
		}
	}
	closeAbove(os.Args[1])
	_ = syscall.Close(Executable)
	argv := append([]string{name}, os.Args[2:]...)
	_ = syscall.Exec("/proc/self/exe", argv, nil)
	os.Exit(exitFirst)
}
