//go:build linux && (amd64 || arm64)

package confine

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// theFilter is made once: the tests ask it often.
var theFilter = sync.OnceValues(func() ([]unix.SockFilter, error) { return filter(Threads{1, 9}, asking{}) })

// judged runs the filter on one call with arguments.
func judged(t *testing.T, nr uint32, args ...uint64) uint32 {
	t.Helper()
	code, err := theFilter()
	if err != nil {
		t.Fatal(err)
	}
	return runWith(code, auditArch, nr, args...)
}

const allowedAnswer = uint32(unix.SECCOMP_RET_ALLOW)

func errnoAnswer(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

// TestNeverAllowed has a list of its own: what no program may do with the host's kernel,
// whatever the tables of the package say.
func TestNeverAllowed(t *testing.T) {
	for name, nr := range map[string]uint32{
		"mount": unix.SYS_MOUNT, "umount2": unix.SYS_UMOUNT2, "pivot_root": unix.SYS_PIVOT_ROOT, "setns": unix.SYS_SETNS,
		"open_tree": unix.SYS_OPEN_TREE, "move_mount": unix.SYS_MOVE_MOUNT, "fsopen": unix.SYS_FSOPEN, "fsconfig": unix.SYS_FSCONFIG,
		"fsmount": unix.SYS_FSMOUNT, "fspick": unix.SYS_FSPICK, "mount_setattr": unix.SYS_MOUNT_SETATTR, "open_tree_attr": 467,
		"bpf": unix.SYS_BPF, "perf_event_open": unix.SYS_PERF_EVENT_OPEN, "userfaultfd": unix.SYS_USERFAULTFD,
		"io_uring_setup": unix.SYS_IO_URING_SETUP, "io_uring_enter": unix.SYS_IO_URING_ENTER, "io_uring_register": unix.SYS_IO_URING_REGISTER,
		"keyctl": unix.SYS_KEYCTL, "add_key": unix.SYS_ADD_KEY, "request_key": unix.SYS_REQUEST_KEY,
		"init_module": unix.SYS_INIT_MODULE, "finit_module": unix.SYS_FINIT_MODULE, "delete_module": unix.SYS_DELETE_MODULE,
		"kexec_load": unix.SYS_KEXEC_LOAD, "kexec_file_load": unix.SYS_KEXEC_FILE_LOAD, "reboot": unix.SYS_REBOOT,
		"swapon": unix.SYS_SWAPON, "swapoff": unix.SYS_SWAPOFF, "acct": unix.SYS_ACCT, "quotactl": unix.SYS_QUOTACTL, "quotactl_fd": unix.SYS_QUOTACTL_FD,
		"open_by_handle_at": unix.SYS_OPEN_BY_HANDLE_AT, "syslog": unix.SYS_SYSLOG, "settimeofday": unix.SYS_SETTIMEOFDAY,
		"clock_settime": unix.SYS_CLOCK_SETTIME, "sethostname": unix.SYS_SETHOSTNAME, "setdomainname": unix.SYS_SETDOMAINNAME,
		"vhangup": unix.SYS_VHANGUP, "clone3": unix.SYS_CLONE3, "openat2": unix.SYS_OPENAT2, "file_setattr": 469,
		"fanotify_init": unix.SYS_FANOTIFY_INIT, "lsm_set_self_attr": unix.SYS_LSM_SET_SELF_ATTR, "a call of the future": 700,
	} {
		if got := judged(t, nr); got != errnoAnswer(unix.EPERM) && got != errnoAnswer(unix.ENOSYS) {
			t.Errorf("%s: %#x, want EPERM or ENOSYS", name, got)
		}
	}
}

// TestNamespaceFlags tries each flag by itself and beside others, by its number.
func TestNamespaceFlags(t *testing.T) {
	for name, flag := range map[string]uint64{
		"time": 0x80, "mount": 0x2_0000, "cgroup": 0x200_0000, "uts": 0x400_0000, "ipc": 0x800_0000, "user": 0x1000_0000, "pid": 0x2000_0000, "net": 0x4000_0000,
	} {
		for _, beside := range []uint64{0, 17, 0x100 | 0x200 | 0x400, 1 << 40} {
			if got := judged(t, unix.SYS_CLONE, flag|beside); got != errnoAnswer(unix.EPERM) {
				t.Errorf("clone with a namespace of %s and %#x: %#x, want EPERM", name, beside, got)
			}
			if got := judged(t, unix.SYS_UNSHARE, flag|beside); got != errnoAnswer(unix.EPERM) {
				t.Errorf("unshare of %s and %#x: %#x, want EPERM", name, beside, got)
			}
		}
	}
	for _, flags := range []uint64{17, 0x4111, 0x3d0f00, 0x1200011} { // fork, vfork, a thread of glibc's, of musl's fork
		if got := judged(t, unix.SYS_CLONE, flags); got != allowedAnswer {
			t.Errorf("clone with %#x: %#x, want it allowed", flags, got)
		}
	}
	for bit := range 32 {
		want := errnoAnswer(unix.EPERM)
		if flag := uint64(1) << bit; flag == 0x200 || flag == 0x400 || flag == 0x40000 { // directory, files, semaphores
			want = allowedAnswer
		}
		if got := judged(t, unix.SYS_UNSHARE, 1<<bit); got != want {
			t.Errorf("unshare of %#x: %#x, want %#x", 1<<bit, got, want)
		}
	}
}

// TestSetIDModes gives each call that makes or changes a file each bit, by their numbers.
func TestSetIDModes(t *testing.T) {
	const create, tmpfile = 0o100, 0o20000000
	type modeArg struct {
		name  string
		nr    uint32
		args  []uint64 // before the mode
		makes bool     // the arguments make a file
	}
	directory := uint64(0o200000)
	if auditArch == unix.AUDIT_ARCH_AARCH64 {
		directory = 0o40000
	}
	calls := []modeArg{
		{"fchmod", unix.SYS_FCHMOD, []uint64{3}, true},
		{"fchmodat", unix.SYS_FCHMODAT, []uint64{3, 4}, true},
		{"fchmodat2", 452, []uint64{3, 4}, true},
		{"mknodat", unix.SYS_MKNODAT, []uint64{3, 4}, true},
		{"openat to make", unix.SYS_OPENAT, []uint64{3, 4, create | 2}, true},
		{"openat to make only", unix.SYS_OPENAT, []uint64{3, 4, create}, true},
		{"openat of a file without a name", unix.SYS_OPENAT, []uint64{3, 4, tmpfile | directory | 2}, true},
		{"openat to read", unix.SYS_OPENAT, []uint64{3, 4, 0}, false},
		{"openat of a directory", unix.SYS_OPENAT, []uint64{3, 4, directory}, false},
		{"openat to empty", unix.SYS_OPENAT, []uint64{3, 4, 0o1000 | 1}, false},
	}
	if auditArch == unix.AUDIT_ARCH_X86_64 {
		calls = append(calls, modeArg{"chmod", 90, []uint64{4}, true}, modeArg{"creat", 85, []uint64{4}, true}, modeArg{"mknod", 133, []uint64{4}, true},
			modeArg{"open to make", 2, []uint64{4, create | 1}, true}, modeArg{"open of a file without a name", 2, []uint64{4, tmpfile | directory | 1}, true},
			modeArg{"open to read", 2, []uint64{4, 0}, false})
	}
	for _, c := range calls {
		for mode, bad := range map[uint64]bool{
			0o4000: true, 0o2000: true, 0o6000: true, 0o4755: true, 0o2711: true, 0o7777: true, 0o104755: true, 1<<40 | 0o4755: true,
			0: false, 0o644: false, 0o1777: false, 0o100644: false,
		} {
			want := allowedAnswer
			if bad && c.makes {
				want = errnoAnswer(unix.EPERM)
			}
			if got := judged(t, c.nr, append(slices.Clone(c.args), mode)...); got != want {
				t.Errorf("%s with mode %o: %#x, want %#x", c.name, mode, got, want)
			}
		}
	}
}

// TestArguments has the other promises that depend on arguments, by their numbers.
func TestArguments(t *testing.T) {
	eperm, einval, family := errnoAnswer(unix.EPERM), errnoAnswer(unix.EINVAL), errnoAnswer(unix.EAFNOSUPPORT)
	check := func(what string, got, want uint32) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %#x, want %#x", what, got, want)
		}
	}
	for request, want := range map[uint64]uint32{
		0x5412: eperm, 0x541c: eperm, 0x5423: eperm, 1<<32 | 0x5412: eperm, 1<<32 | 0x541c: eperm, // typing, the console's, line disciplines
		0x5401: allowedAnswer, 0x5413: allowedAnswer, 0x541b: allowedAnswer, 0x5422: allowedAnswer, 0x5424: allowedAnswer, 0x541d: allowedAnswer,
	} {
		check(fmt.Sprintf("ioctl %#x", request), judged(t, unix.SYS_IOCTL, 3, request), want)
	}
	options := []uint64{1, 2, 3, 4, 7, 8, 15, 16, 21, 22, 23, 24, 27, 28, 29, 30, 36, 37, 38, 39, 40, 41, 42, 47, 50, 51, 52, 54, 55, 56, 0x59616d61, 0x53564d41}
	for option := range uint64(120) {
		want := einval
		if slices.Contains(options, option) {
			want = allowedAnswer
		}
		check(fmt.Sprintf("prctl %d", option), judged(t, unix.SYS_PRCTL, option), want)
	}
	check("prctl to be traced", judged(t, unix.SYS_PRCTL, 0x59616d61), allowedAnswer)
	check("prctl to name memory", judged(t, unix.SYS_PRCTL, 0x53564d41), allowedAnswer)
	for domain := range uint64(64) {
		for protocol := range uint64(300) {
			want := family
			switch {
			case domain == 1, domain == 16 && protocol == 0:
				want = allowedAnswer
			case (domain == 2 || domain == 10) && slices.Contains([]uint64{0, 1, 6, 17, 58}, protocol):
				want = allowedAnswer
			}
			check(fmt.Sprintf("socket of family %d with protocol %d", domain, protocol), judged(t, unix.SYS_SOCKET, domain, 1, protocol), want)
		}
		want := family
		if domain == 1 {
			want = allowedAnswer
		}
		check(fmt.Sprintf("pair of sockets of family %d", domain), judged(t, unix.SYS_SOCKETPAIR, domain, 1, 0), want)
	}
	for number := range uint64(12) { // the agent's threads are 1 to 9
		others := allowedAnswer
		if number >= 1 && number <= 9 {
			others = eperm
		}
		check(fmt.Sprintf("affinity of %d", number), judged(t, unix.SYS_SCHED_SETAFFINITY, number), others)
		check(fmt.Sprintf("affinity of %d with high bits", number), judged(t, unix.SYS_SCHED_SETAFFINITY, 1<<32|number), others)
		for which := range uint64(3) {
			want := others
			if which == 2 { // all processes of a user
				want = eperm
			}
			check(fmt.Sprintf("priority of %d, kind %d", number, which), judged(t, unix.SYS_SETPRIORITY, which, number), want)
			if which++; which == 3 {
				want = eperm
			} else {
				want = others
			}
			check(fmt.Sprintf("priority of I/O of %d, kind %d", number, which), judged(t, unix.SYS_IOPRIO_SET, which, number), want)
		}
		own := eperm
		if number == 0 {
			own = allowedAnswer
		}
		for name, nr := range map[string]uint32{"limits": unix.SYS_PRLIMIT64, "parameters": unix.SYS_SCHED_SETPARAM, "attributes": unix.SYS_SCHED_SETATTR} {
			check(fmt.Sprintf("%s of %d", name, number), judged(t, nr, number), own)
		}
		for policy, want := range map[uint64]uint32{unix.SCHED_NORMAL: allowedAnswer, unix.SCHED_BATCH: own, unix.SCHED_FIFO: own, unix.SCHED_NORMAL | unix.SCHED_RESET_ON_FORK: own} {
			check(fmt.Sprintf("scheduler of %d, policy %d", number, policy), judged(t, unix.SYS_SCHED_SETSCHEDULER, number, policy), want)
		}
	}
	for persona, want := range map[uint64]uint32{
		0: allowedAnswer, 8: allowedAnswer, 0x20000: allowedAnswer, 0x20008: allowedAnswer, 0xffffffff: allowedAnswer,
		0x40000: eperm, 0x400000: eperm, 0x100000: eperm, 0x8000000: eperm, 1: eperm, 0x20009: eperm,
	} {
		check(fmt.Sprintf("personality %#x", persona), judged(t, unix.SYS_PERSONALITY, persona), want)
	}
}

// TestHugePages has every flag of the calls that get memory, by their numbers: huge pages
// are refused in the words of a kernel that has none.
func TestHugePages(t *testing.T) {
	const mapShared, mapPrivate, mapAnonymous, mapHuge = 0x1, 0x2, 0x20, 0x4_0000
	shmget, memfd, mmap := uint32(29), uint32(319), uint32(9)
	if auditArch == unix.AUDIT_ARCH_AARCH64 {
		shmget, memfd, mmap = 194, 279, 222
	}
	for bit := range 64 {
		flag := uint64(1) << bit
		for _, c := range []struct {
			name   string
			nr     uint32
			before int // arguments in front of the flags
			beside uint64
			huge   uint64
			errno  unix.Errno
		}{
			{"mmap of memory", mmap, 3, mapPrivate | mapAnonymous, mapHuge, unix.ENOMEM},
			{"mmap of shared memory", mmap, 3, mapShared | mapAnonymous, mapHuge, unix.ENOMEM},
			{"mmap of a file", mmap, 3, mapShared, mapHuge, unix.EINVAL},
			{"memfd_create", memfd, 1, 1, 4, unix.EINVAL},
			{"shmget", shmget, 2, 0o1600, 0o4000, unix.ENOMEM},
		} {
			want := allowedAnswer
			if flag == c.huge {
				want = errnoAnswer(c.errno)
			}
			for _, size := range []uint64{0, 21 << 26, 30 << 26} { // the kernel's own choice, 2 MiB, 1 GiB
				flags := flag | c.beside | size&^c.huge
				if flags&mapAnonymous != 0 && c.errno == unix.EINVAL && c.nr == mmap {
					continue
				}
				if got := judged(t, c.nr, append(make([]uint64, c.before), flags)...); got != want {
					t.Errorf("%s with %#x: %#x, want %#x", c.name, flags, got, want)
				}
			}
		}
	}
}

// TestAskedModes has the filter of an agent that answers: what is there already is asked
// for, what would be made with the bits is refused, and nothing else has changed.
func TestAskedModes(t *testing.T) {
	code, err := filter(Threads{1, 9}, asking{modes: true})
	if err != nil {
		t.Fatal(err)
	}
	asks := map[uint32]int{unix.SYS_FCHMOD: 1, unix.SYS_FCHMODAT: 2, 452: 2} // the argument with the mode
	if auditArch == unix.AUDIT_ARCH_X86_64 {
		asks[90] = 1
	}
	for nr, at := range asks {
		for mode, want := range map[uint64]uint32{
			0o4755: unix.SECCOMP_RET_USER_NOTIF, 0o2711: unix.SECCOMP_RET_USER_NOTIF, 0o6000: unix.SECCOMP_RET_USER_NOTIF, 1<<40 | 0o4755: unix.SECCOMP_RET_USER_NOTIF,
			0: allowedAnswer, 0o755: allowedAnswer, 0o1777: allowedAnswer,
		} {
			if got := runWith(code, auditArch, nr, append(make([]uint64, at), mode)...); got != want {
				t.Errorf("call %d with mode %o: %#x, want %#x", nr, mode, got, want)
			}
		}
	}
	for nr := range uint32(2000) {
		if _, asked := asks[nr]; asked {
			continue
		}
		for _, args := range [][]uint64{nil, {3, 4, 0o4755, 0o4755}, {3, 0o102, 0o4755}, {3, 0o4755}, {3, 4, 0o102, 0o4755}} {
			if got, want := runWith(code, auditArch, nr, args...), judged(t, nr, args...); got != want {
				t.Errorf("call %d with %o: %#x, and %#x where nobody is asked", nr, args, got, want)
			}
		}
	}
}

// TestAskedJoins has the filter of an agent whose programs are shown other numbers: it is asked
// for setns alone.
func TestAskedJoins(t *testing.T) {
	code, err := filter(Threads{1, 9}, asking{joins: true})
	if err != nil {
		t.Fatal(err)
	}
	for nr := range uint32(2000) {
		for _, args := range [][]uint64{nil, {3, unix.CLONE_NEWUSER}, {3, 0}} {
			want := judged(t, nr, args...)
			if nr == unix.SYS_SETNS {
				want = unix.SECCOMP_RET_USER_NOTIF
			}
			if got := runWith(code, auditArch, nr, args...); got != want {
				t.Errorf("call %d with %d: %#x, want %#x", nr, args, got, want)
			}
		}
	}
}
