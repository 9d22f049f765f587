package workspace_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cloche-dev/cloche/test/longtest"
)

// TestMain gives root's tests a mount namespace of their own, so that nothing
// they mount is ever seen on the machine, even when they crash.
func TestMain(m *testing.M) {
	const inside = "CLOCHE_TEST_MOUNTS"
	if os.Geteuid() != 0 || os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "run tests in a mount namespace:", err)
		os.Exit(1)
	}
}

// needRoot skips without the right to mount.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: only root stages directories as mounts")
	}
}

// TestAsNormalUser runs the tests of this package again as a user who is not
// root.
func TestAsNormalUser(t *testing.T) {
	longtest.Skip(t, "it runs the tests of this package again")
	needRoot(t)
	tmp, err := os.MkdirTemp("", "cloche-workspace-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(tmp) })
	must(t, os.Chown(tmp, 12345, 12345))
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run=^Test(Named|Private|OpenDir|Rootless|CheckPath|RemoveTree)")
	cmd.Dir = tmp
	cmd.Env = []string{"TMPDIR=" + tmp, "HOME=" + tmp, "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as user 12345: %v\n%s", err, out)
	}
	for _, ran := range []string{"--- PASS: TestNamed", "--- PASS: TestPrivate", "--- PASS: TestOpenDir", "--- PASS: TestRootless"} {
		if !strings.Contains(string(out), ran) {
			t.Errorf("no %q as user 12345:\n%s", ran, out)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tempDir is a directory whose path holds no symlink, for this user alone.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	dir = filepath.Join(dir, "d")
	must(t, os.Mkdir(dir, 0o700))
	return dir
}

func write(t *testing.T, path, content string, mode os.FileMode, uid, gid int) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), mode))
	must(t, os.Chmod(path, mode))
	must(t, os.Lchown(path, uid, gid))
}
