//go:build linux

package cloche_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/vmtest"
)

// guestVar says that a test runs in the machine which TestUnderAnotherKernel starts.
const guestVar = "CLOCHE_TEST_GUEST"

// TestUnderAnotherKernel has sandboxes with limits where cgroups are of version 2 alone,
// with all controllers: of root, and of a normal user to whom a group was delegated. The
// machine is emulated, so everything takes long in it.
func TestUnderAnotherKernel(t *testing.T) {
	if why := vmtest.Missing(); why != "" {
		t.Skip(why)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: to make the machine's disk")
	}
	if testing.Short() {
		t.Skip("needs a run without -short: it starts a machine")
	}
	var major, minor int
	for _, kernel := range glob(t, filepath.Join(os.Getenv(vmtest.EnvKernel), "boot", "vmlinuz-*")) {
		_, _ = fmt.Sscanf(filepath.Base(kernel), "vmlinuz-%d.%d", &major, &minor)
	}
	if major < 6 || major == 6 && minor < 6 {
		t.Skipf("needs Linux 6.6 or newer as the other kernel, for the engine native: this one is %d.%d", major, minor)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin, err := filepath.EvalSymlinks(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "inside")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/cloche-dev/cloche/internal/engine/enginetest/inside")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build what runs in the sandboxes: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	console, status := vmtest.TestIn(ctx, t, vmtest.Machine{
		Modules: []string{"quota_v2", "loop", "overlay", "erofs", "tun"},
		Files:   map[string]string{"/test": self, "/cloche": bin, "/usr/bin/inside": program},
		DiskMB:  1024, MemoryMB: 1536,
		Command: []string{"/test", "-test.v", "-test.timeout=9m", "-test.run=^TestLimitsOfVersion2$"},
		Env:     []string{"PATH=/usr/bin", "HOME=/root", guestVar + "=1"},
	})
	if status != 0 {
		t.Fatalf("status %d:\n%s", status, console)
	}
	for _, ran := range []string{"root/native", "user/native"} {
		if !strings.Contains(console, "--- PASS: TestLimitsOfVersion2/"+ran+" ") {
			t.Errorf("%s did not run:\n%s", ran, console)
		}
	}
}

// TestLimitsOfVersion2 is what runs in the machine.
func TestLimitsOfVersion2(t *testing.T) {
	if os.Getenv(guestVar) == "" {
		t.Skip("needs another kernel: TestUnderAnotherKernel runs this")
	}
	if os.Geteuid() != 0 {
		limitsOfVersion2(t)
		return
	}
	t.Run("root", limitsOfVersion2)
	t.Run("user", func(t *testing.T) {
		const uid = 1000
		// What systemd makes of Delegate=yes: a group that is the user's, with the user's
		// processes in one below.
		group := "/sys/fs/cgroup/user"
		if err := os.MkdirAll(group+"/session", 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{".", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "session", "session/cgroup.procs", "session/cgroup.subtree_control"} {
			if err := os.Chown(filepath.Join(group, name), uid, uid); err != nil {
				t.Fatal(err)
			}
		}
		session, err := os.Open(group + "/session")
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		cmd := exec.CommandContext(t.Context(), "/test", "-test.v", "-test.run=^TestLimitsOfVersion2$")
		cmd.Env, cmd.Dir = []string{"PATH=/usr/bin", "HOME=/tmp", guestVar + "=1"}, "/tmp"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, UseCgroupFD: true, CgroupFD: int(session.Fd())}
		out, err := cmd.CombinedOutput()
		// As if its tests were below this one.
		fmt.Println(strings.ReplaceAll(string(out), ": TestLimitsOfVersion2/", ": TestLimitsOfVersion2/user/"))
		if err != nil {
			t.Error(err)
		}
	})
}

func limitsOfVersion2(t *testing.T) {
	home, err := os.MkdirTemp("", "cl-")
	if err != nil {
		t.Fatal(err)
	}
	cloche := func(args ...string) (string, int) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "/cloche", args...)
		cmd.Env = append(os.Environ(), "CLOCHE_HOME="+home)
		cmd.WaitDelay = time.Second
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	for _, engine := range []string{"native"} { // gVisor does not get far on an emulated processor
		t.Run(engine, func(t *testing.T) {
			run := func(want int, says string, argv ...string) {
				t.Helper()
				out, status := cloche(append([]string{"run", "--json", "--engine", engine, "--memory", "128MiB", "--pids", "20", "--"}, argv...)...)
				if status != want || !strings.Contains(out, says) {
					t.Errorf("%v: status %d, want %d and %s:\n%s", argv, status, want, says, out)
				}
				if strings.Contains(out, "not enforced") {
					t.Errorf("%v: limits are not enforced:\n%s", argv, out)
				}
			}
			// 137 is 128 and KILL, and that memory was why is read from the group.
			run(137, `"oom":true`, "/usr/bin/inside", "hog", "400")
			run(0, "resource temporarily unavailable", "/usr/bin/inside", "forks")
			run(0, "inside", "/usr/bin/inside", "ls", "/usr/bin")
			if left := groupsLeft(); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// groupsLeft are the groups of sandboxes.
func groupsLeft() []string {
	var left []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "sb-") {
			left = append(left, path)
		}
		return nil
	})
	return left
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return found
}
