//go:build linux && (amd64 || arm64)

package confine

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// faultEnv says which system call fails in a process of the test, with what, and whether
// only where its second argument is not 0; and what is called then.
const faultEnv = "CLOCHE_TEST_CONFINE_FAULT"

// faulty calls what a test asks for on a thread on which one system call fails.
func faulty(what string) {
	runtime.LockOSThread()
	var call string
	var nr, errno uint32
	var second bool
	if _, err := fmt.Sscan(what, &call, &nr, &errno, &second); err != nil {
		fmt.Println("scan:", err)
		return
	}
	stmt := func(code uint16, k uint32, jt, jf uint8) unix.SockFilter {
		return unix.SockFilter{Code: code, Jt: jt, Jf: jf, K: k}
	}
	filter := []unix.SockFilter{
		stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offNumber, 0, 0),
		stmt(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, nr, 1, 0),
		stmt(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW, 0, 0),
	}
	if second {
		filter = append(filter,
			stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, 24, 0, 0),
			stmt(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, 0, 0, 1),
			stmt(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW, 0, 0))
	}
	filter = append(filter, stmt(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ERRNO|errno, 0, 0))
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		fmt.Println("prctl:", err)
		return
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: unsafe.SliceData(filter)}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); e != 0 {
		fmt.Println("seccomp:", e)
		return
	}
	runtime.KeepAlive(filter)
	var err error
	switch call {
	case "thread":
		err = Thread(Threads{})
	case "proc":
		err = Proc()
	}
	fmt.Printf("result=%v\n", err)
}

// Whatever of it fails, a thread is confined whole or not at all, and says so: nothing is
// executed on one that is not.
func TestThreadFails(t *testing.T) {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	landlocked := errno == 0 && version >= refers
	for _, c := range []struct {
		name, call string
		nr         uintptr
		errno      unix.Errno
		second     bool
		landlock   bool
		want       string
	}{
		{name: "no new privileges", call: "thread", nr: unix.SYS_PRCTL, errno: unix.EIO, want: "give up new privileges"},
		{name: "the filter", call: "thread", nr: unix.SYS_SECCOMP, errno: unix.EIO, want: "install the filter"},
		{name: "a domain's rules", call: "thread", nr: unix.SYS_LANDLOCK_CREATE_RULESET, errno: unix.EIO, second: true, landlock: true, want: "make Landlock's rules"},
		{name: "the root", call: "thread", nr: unix.SYS_OPENAT, errno: unix.EIO, landlock: true, want: "make Landlock's rules"},
		{name: "a rule", call: "thread", nr: unix.SYS_LANDLOCK_ADD_RULE, errno: unix.EIO, landlock: true, want: "make Landlock's rules"},
		{name: "the domain", call: "thread", nr: unix.SYS_LANDLOCK_RESTRICT_SELF, errno: unix.EIO, landlock: true, want: "enter Landlock's domain"},
		{name: "a kernel without Landlock", call: "thread", nr: unix.SYS_LANDLOCK_CREATE_RULESET, errno: unix.ENOSYS, want: "result=<nil>"},
		{name: "/proc", call: "proc", nr: unix.SYS_MOUNT_SETATTR, errno: unix.EIO, want: "make /proc read-only"},
		{name: "/proc without the right to", call: "proc", nr: unix.SYS_MOUNT_SETATTR, errno: unix.EPERM, want: "result=<nil>"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.landlock && !landlocked {
				t.Skip("needs a kernel with Landlock")
			}
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d %t", faultEnv, c.call, c.nr, c.errno, c.second))
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "result=") || !strings.Contains(string(out), c.want) {
				t.Errorf("%v\n%s\nwant %q", err, out, c.want)
			}
		})
	}
}

// A jump that does not fit is an error and not one to elsewhere.
func TestLongBranch(t *testing.T) {
	for n, fits := range map[int]bool{250: true, 254: true, 255: false, 600: false} {
		p := &program{}
		p.branch(1, func() {
			for range n {
				p.ret(unix.SECCOMP_RET_ALLOW)
			}
		})
		if (p.err == nil) != fits {
			t.Errorf("a branch over %d and one more: %v", n, p.err)
		}
	}
}
