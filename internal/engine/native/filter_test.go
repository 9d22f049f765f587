//go:build linux

package native_test

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// withoutVar says that a process is one in which no filter can be installed.
const withoutVar = "NATIVE_TEST_WITHOUT_FILTERS"

// TestWithoutFilters: where the kernel filters no system calls there is no sandbox with
// less, but a report that says what would be right.
func TestWithoutFilters(t *testing.T) {
	if os.Getenv(withoutVar) == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestWithoutFilters$", "-test.v")
		cmd.Env = append(os.Environ(), withoutVar+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	refuseFilters(t)
	r := newEngine(t, t.TempDir()).Probe(t.Context())
	if r.Usable || len(r.Problems) == 0 {
		t.Fatalf("usable without filters: %+v", r)
	}
	if p := r.Problems[0]; !strings.Contains(p.What, "no filter of system calls") || !strings.Contains(p.Mend, "CONFIG_SECCOMP_FILTER") {
		t.Errorf("the problem is %+v", p)
	}
}

// refuseFilters makes all threads of this process find no call to install filters with.
func refuseFilters(t *testing.T) {
	t.Helper()
	code := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SECCOMP, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: unsafe.SliceData(code)}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(code)
	if errno != 0 {
		t.Skipf("needs a kernel that filters system calls, to refuse it: %v", errno)
	}
}
