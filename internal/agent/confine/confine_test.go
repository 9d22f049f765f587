//go:build linux && (amd64 || arm64)

package confine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const triesEnv = "CLOCHE_TEST_CONFINED"

func TestMain(m *testing.M) {
	if dir := os.Getenv(triesEnv); dir != "" {
		tries(dir)
		os.Exit(0)
	}
	if dir := os.Getenv(directoryEnv); dir != "" {
		triesInDirectory(dir)
		os.Exit(0)
	}
	if what := os.Getenv(faultEnv); what != "" {
		faulty(what)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// tries makes system calls on a confined thread and says what came of each.
func tries(dir string) {
	runtime.LockOSThread()
	agent, err := ThreadsOf(os.Getpid())
	if err == nil {
		err = Thread(agent)
	}
	if err != nil {
		fmt.Println("confine:", err)
		return
	}
	try := func(name string, nr uintptr, args ...uintptr) {
		args = append(args, make([]uintptr, 6)...)
		_, _, e := unix.RawSyscall6(nr, args[0], args[1], args[2], args[3], args[4], args[5])
		fmt.Printf("%s=%d\n", name, int(e))
	}
	try("getpid", unix.SYS_GETPID)
	try("mount", unix.SYS_MOUNT)
	try("unshare user", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	try("unshare files", unix.SYS_UNSHARE, unix.CLONE_FILES)
	try("clone user", unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD))
	try("clone3", unix.SYS_CLONE3)
	try("io_uring", unix.SYS_IO_URING_SETUP, 1)
	try("bpf", unix.SYS_BPF)
	try("no such", 4000)
	try("bpf with high bits", unix.SYS_BPF|1<<32)
	try("unix", unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM)
	try("tcp", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM)
	try("sctp", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	try("route", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	try("netfilter", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
	try("packet", unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW)
	try("alg", unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET)
	try("vsock", unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM)
	try("tiocsti", unix.SYS_IOCTL, 1<<20, unix.TIOCSTI)
	try("tiocsti with high bits", unix.SYS_IOCTL, 1<<20, unix.TIOCSTI|1<<32)
	try("tiocgwinsz", unix.SYS_IOCTL, 1<<20, unix.TIOCGWINSZ)
	try("set_mm", unix.SYS_PRCTL, unix.PR_SET_MM)
	name, _ := unix.BytePtrFromString(filepath.Join(dir, "a", "f"))
	path, here := uintptr(unsafe.Pointer(name)), ^uintptr(unix.AT_FDCWD*-1-1)
	try("chmod", unix.SYS_FCHMODAT, here, path, 0o755)
	try("set uid", unix.SYS_FCHMODAT, here, path, 0o4755)
	try("set gid", unix.SYS_FCHMODAT, here, path, 0o2755)
	try("open with a mode that is not used", unix.SYS_OPENAT, here, path, unix.O_RDONLY, 0o6777)
	try("make set uid", unix.SYS_OPENAT, here, path, unix.O_CREAT|unix.O_RDWR, 0o4777)
	at, _ := unix.BytePtrFromString(dir)
	place := uintptr(unsafe.Pointer(at))
	try("set uid without a name", unix.SYS_OPENAT, here, place, unix.O_TMPFILE|unix.O_RDWR, 0o4755)
	try("set gid without a name", unix.SYS_OPENAT, here, place, unix.O_TMPFILE|unix.O_WRONLY, 0o2711)
	try("clone cgroup", unix.SYS_CLONE, unix.CLONE_NEWCGROUP|uintptr(unix.SIGCHLD))
	try("clone time", unix.SYS_CLONE, unix.CLONE_NEWTIME)
	try("unshare cgroup", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)
	try("tioclinux", unix.SYS_IOCTL, 1<<20, 0x541c)
	try("tiocsetd", unix.SYS_IOCTL, 1<<20, unix.TIOCSETD)
	try("project of a file", unix.SYS_IOCTL, 1<<20, 0x401c5820)
	try("flags of a file", unix.SYS_IOCTL, 1<<20, unix.FS_IOC_SETFLAGS)
	try("flags of a file, as 32 bits", unix.SYS_IOCTL, 1<<20, 0x40046602)
	try("attributes of a file", unix.SYS_IOCTL, 1<<20, 0x801c581f)
	try("openat2", unix.SYS_OPENAT2)
	label, _ := unix.BytePtrFromString("huge")
	try("huge memory", unix.SYS_MMAP, 0, 4<<20, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_HUGETLB, ^uintptr(0))
	try("memory", unix.SYS_MMAP, 0, 4<<20, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON, ^uintptr(0))
	try("huge file", unix.SYS_MEMFD_CREATE, uintptr(unsafe.Pointer(label)), unix.MFD_HUGETLB)
	try("huge file of 2 MiB", unix.SYS_MEMFD_CREATE, uintptr(unsafe.Pointer(label)), unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	try("file of memory", unix.SYS_MEMFD_CREATE, uintptr(unsafe.Pointer(label)), unix.MFD_CLOEXEC)
	try("huge segment", unix.SYS_SHMGET, unix.IPC_PRIVATE, 4<<20, unix.IPC_CREAT|0o600|0o4000)
	self := uintptr(os.Getpid())
	var limit unix.Rlimit
	try("own limit", unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, 0, uintptr(unsafe.Pointer(&limit)))
	try("limit by number", unix.SYS_PRLIMIT64, self, unix.RLIMIT_NOFILE, 0, uintptr(unsafe.Pointer(&limit)))
	try("limit with high bits", unix.SYS_PRLIMIT64, 1<<32, unix.RLIMIT_NOFILE, 0, uintptr(unsafe.Pointer(&limit)))
	mask := ^uintptr(0)
	var param uint32
	for _, who := range []struct {
		name string
		nr   uintptr
	}{{"own", 0}, {"agent's", self}, {"another's", 1 << 30}} {
		try(who.name+" affinity", unix.SYS_SCHED_SETAFFINITY, who.nr, unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask)))
		try(who.name+" scheduler", unix.SYS_SCHED_SETSCHEDULER, who.nr, unix.SCHED_BATCH, uintptr(unsafe.Pointer(&param)))
		try(who.name+" parameters", unix.SYS_SCHED_SETPARAM, who.nr, uintptr(unsafe.Pointer(&param)))
		try(who.name+" attributes", unix.SYS_SCHED_SETATTR, who.nr, 0, 0)
		// The lowest, which each user may take, also where these tests run with a low one.
		try(who.name+" priority", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, who.nr, 19)
		try(who.name+" group's priority", unix.SYS_SETPRIORITY, unix.PRIO_PGRP, who.nr, 19)
		try(who.name+" disk priority", unix.SYS_IOPRIO_SET, 1, who.nr, 0)
	}
	try("user's priority", unix.SYS_SETPRIORITY, unix.PRIO_USER, 0, 0)
	try("user's disk priority", unix.SYS_IOPRIO_SET, ioprioUser, 0, 0)
	try("personality", unix.SYS_PERSONALITY, 0xffffffff)
	// Reads through bytes of another architecture: the parent tells by its absence.
	a, b := filepath.Join(dir, "a", "f"), filepath.Join(dir, "b", "f")
	fmt.Printf("rename=%v\n", os.Rename(a, b))
	fmt.Printf("signal=%v\n", unix.Kill(os.Getppid(), 0))
}

// TestThread makes calls under the profile in another process.
func TestThread(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), triesEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a process group without processes of another user
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(string(out), "\n")
	eperm, enosys, family, esrch, einval := int(unix.EPERM), int(unix.ENOSYS), int(unix.EAFNOSUPPORT), int(unix.ESRCH), int(unix.EINVAL)
	for name, want := range map[string]int{
		"getpid": 0, "mount": eperm, "unshare user": eperm, "unshare files": 0, "clone user": eperm, "clone3": enosys, "io_uring": enosys, "bpf": eperm,
		"no such": enosys, "bpf with high bits": eperm, "unix": 0, "tcp": 0, "sctp": family, "route": 0, "netfilter": family, "packet": family, "alg": family, "vsock": family,
		"tiocsti": eperm, "tiocsti with high bits": eperm, "tiocgwinsz": int(unix.EBADF), "set_mm": int(unix.EINVAL), "personality": 0,
		"chmod": 0, "set uid": eperm, "set gid": eperm, "open with a mode that is not used": 0, "make set uid": eperm, "openat2": enosys,
		"huge memory": int(unix.ENOMEM), "memory": 0, "huge file": einval, "huge file of 2 MiB": einval, "file of memory": 0, "huge segment": int(unix.ENOMEM),
		"set uid without a name": eperm, "set gid without a name": eperm, "clone cgroup": eperm, "clone time": eperm, "unshare cgroup": eperm, "tioclinux": eperm, "tiocsetd": eperm,
		"project of a file": eperm, "flags of a file": eperm, "flags of a file, as 32 bits": eperm, "attributes of a file": int(unix.EBADF),
		"own limit": 0, "limit by number": eperm, "limit with high bits": 0, "user's priority": eperm, "user's disk priority": eperm,
		"own affinity": 0, "agent's affinity": eperm, "another's affinity": esrch, "own scheduler": 0, "agent's scheduler": eperm, "another's scheduler": eperm,
		"own parameters": 0, "agent's parameters": eperm, "another's parameters": eperm, "own attributes": einval, "agent's attributes": eperm, "another's attributes": eperm,
		"own priority": 0, "agent's priority": eperm, "another's priority": esrch, "own disk priority": 0, "agent's disk priority": eperm, "another's disk priority": esrch,
		"own group's priority": 0, "agent's group's priority": eperm, "another's group's priority": esrch,
	} {
		if !slices.Contains(lines, fmt.Sprintf("%s=%d", name, want)) {
			t.Errorf("no %s=%d in:\n%s", name, want, out)
		}
	}
	if !slices.Contains(lines, "rename=<nil>") {
		t.Errorf("a file cannot be moved to another directory:\n%s", out)
	}
	if version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1); errno == 0 && version >= scopes && !slices.Contains(lines, "signal=operation not permitted") {
		t.Errorf("a process outside of the domain can be signalled:\n%s", out)
	}
}

// TestFilterIsWhole runs the filter by hand on every number of every architecture.
func TestFilterIsWhole(t *testing.T) {
	code, err := filter(Threads{1, 9}, asking{})
	if err != nil {
		t.Fatal(err)
	}
	if len(code) > unix.BPF_MAXINSNS {
		t.Fatalf("%d instructions", len(code))
	}
	t.Logf("%d instructions", len(code))
	want := map[uint32]action{}
	for _, c := range slices.Concat(common[:], native[:]) {
		want[c.nr] = allowed
	}
	for _, c := range refusals[:] {
		want[c.nr] = refused
	}
	for _, r := range rules(Threads{1, 9}, false) {
		want[r.nr] = ruled
	}
	for nr := range uint32(2000) {
		got := run(code, auditArch, nr)
		switch want[nr] {
		case allowed:
			if got != unix.SECCOMP_RET_ALLOW {
				t.Errorf("call %d: %#x, want it allowed", nr, got)
			}
		case refused:
			if got != unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM) {
				t.Errorf("call %d: %#x, want EPERM", nr, got)
			}
		case unknown:
			if got != unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS) {
				t.Errorf("call %d: %#x, want ENOSYS", nr, got)
			}
		}
		for _, arch := range []uint32{unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, 0} {
			if got := run(code, arch, nr); got != unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS) {
				t.Errorf("call %d of architecture %#x: %#x, want ENOSYS", nr, arch, got)
			}
		}
		if foreign != 0 {
			if got := run(code, auditArch, nr|foreign); got != unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS) {
				t.Errorf("call %d of x32: %#x, want ENOSYS", nr, got)
			}
		}
	}
}

// run is what the kernel does with a filter, for arguments of zero.
func run(code []unix.SockFilter, arch, nr uint32) uint32 { return runWith(code, arch, nr) }

// runWith is run with arguments.
func runWith(code []unix.SockFilter, arch, nr uint32, args ...uint64) uint32 {
	seen := map[uint32]uint32{offArch: arch, offNumber: nr}
	for i, v := range args {
		seen[uint32(16+8*i)], seen[uint32(20+8*i)] = uint32(v), uint32(v>>32)
	}
	var a uint32
	for pc := 0; pc < len(code); pc++ {
		c := code[pc]
		jump := func(yes bool) {
			if yes {
				pc += int(c.Jt)
			} else {
				pc += int(c.Jf)
			}
		}
		switch c.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = seen[c.K]
		case unix.BPF_RET | unix.BPF_K:
			return c.K
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(c.K)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(a == c.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(a >= c.K)
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			jump(a > c.K)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump(a&c.K != 0)
		}
	}
	return 0
}

// TestProfileIsWrittenDown compares the profile with what people are told of it.
func TestProfileIsWrittenDown(t *testing.T) {
	if architecture != "amd64" {
		t.Skipf("needs amd64, whose profile is the one written down, and this is %s", architecture)
	}
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "native.md"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "```text\n" + profileText() + "```\n"; !strings.Contains(string(b), want) {
		t.Errorf("docs/native.md does not hold the profile as it is:\n%s", want)
	}
}
