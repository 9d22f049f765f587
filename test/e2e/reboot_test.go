//go:build linux

package e2e_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/vm"
	"github.com/cloche-dev/cloche/test/vm/plan"
)

// rebootedHome is the home in the machine that TestUnderAnotherKernelReboot starts.
const rebootedHome = "/srv/cloche"

// TestUnderAnotherKernelReboot switches a machine off with sandboxes in it, and on again.
func TestUnderAnotherKernelReboot(t *testing.T) {
	self, bin := machinePrograms(t, 6, 1)
	shell, err := exec.LookPath("/bin/busybox")
	if err != nil {
		t.Skip("needs busybox: it is not installed")
	}
	run := func(name string, reboot bool, test string) plan.Command {
		return plan.Command{
			Name: name, Reboot: reboot, Argv: []string{"/test", "-test.v", "-test.timeout=4m", "-test.run=^" + test + "$"},
			Env: []string{"PATH=/bin:/usr/bin", "HOME=/root", "CLOCHE_HOME=" + rebootedHome, guestVar + "=gvisor"},
		}
	}
	moved := movedHome(t, bin, shell)
	other := run("other-processor", true, "TestOnAnotherProcessor")
	other.Env = append(other.Env, "CLOCHE_HOME="+moved.home)
	passed := vm.Test(t, vm.Machine{
		Modules: []string{"loop", "overlay", "erofs", "tun"},
		Files:   map[string]string{"/test": self, "/cloche": bin, "/bin/sh": shell, "/bin/cat": shell, "/bin/tar": shell, movedTar: moved.tar},
		DiskMB:  1024, MemoryMB: 1536,
		Commands: []plan.Command{run("before", false, "TestBeforeReboot"), run("after", true, "TestAfterReboot"), other},
	})
	if strings.Join(passed, " ") != "before/TestBeforeReboot after/TestAfterReboot other-processor/TestOnAnotherProcessor" {
		t.Errorf("passed: %q", passed)
	}
}

// movedTar has the home that TestUnderAnotherKernelReboot moves to the machine.
const movedTar = "/moved.tar"

// moved is a home in a tar.
type moved struct{ home, tar string }

// movedHome makes a home with a suspended sandbox, on the processor that the tests run on.
func movedHome(t *testing.T, bin, shell string) moved {
	t.Helper()
	dir := t.TempDir()
	m := moved{home: filepath.Join(dir, "home"), tar: filepath.Join(dir, "home.tar")}
	root := filepath.Join(dir, "rootfs", "bin")
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sh", "cat"} {
		if out, err := exec.Command("cp", shell, filepath.Join(root, name)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	cloche, daemon := serving(t, bin, append(os.Environ(), "CLOCHE_HOME="+m.home), filepath.Join(dir, "log"))
	t.Cleanup(func() { _ = daemon.Process.Kill() }) // after a failure
	cloche("", "image", "import", "--name", "shell:1", filepath.Dir(root))
	cloche("", "create", "--engine", "gvisor", "--image", "shell:1", "--name", "moved")
	cloche("", "exec", "moved", "--", "/bin/sh", "-c", "echo moved >/workspace/file")
	startCount(t, cloche, "moved")
	cloche("", "suspend", "moved")
	if err := errors.Join(daemon.Process.Signal(syscall.SIGTERM), daemon.Wait()); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("tar", "-C", "/", "-cf", m.tar, strings.TrimPrefix(m.home, "/")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return m
}

// TestOnAnotherProcessor is what runs in the machine with a home of another one. The emulated processor lacks features.
func TestOnAnotherProcessor(t *testing.T) {
	if _, err := os.Stat(movedTar); err != nil {
		t.Skip("needs another kernel: TestUnderAnotherKernelReboot runs this")
	}
	if out, err := exec.Command("tar", "-C", "/", "-xf", movedTar).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cloche, _ := serving(t, "/cloche", os.Environ(), "/daemon.log")
	try := exec.Command("/cloche", "resume", "moved")
	out, err := try.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "was saved on a processor that this machine's cannot stand in for") {
		t.Errorf("resume: %v, %s", err, out)
	}
	if out := cloche("", "inspect", "moved"); !strings.Contains(out, `"state": "suspended"`) {
		t.Errorf("after the resume that failed:\n%s", out)
	}
	// Its files are not lost.
	cloche("", "stop", "moved")
	cloche("", "start", "moved")
	if out := cloche("", "exec", "moved", "--", "/bin/cat", "/workspace/file"); out != "moved\n" {
		t.Errorf("the workspace has %q", out)
	}
}

// booted starts a daemon in the machine.
func booted(t *testing.T) func(stdin string, args ...string) string {
	t.Helper()
	if os.Getenv(guestVar) == "" || os.Getenv("CLOCHE_HOME") != rebootedHome {
		t.Skip("needs another kernel: TestUnderAnotherKernelReboot runs this")
	}
	cloche, _ := serving(t, "/cloche", os.Environ(), "/daemon.log")
	return cloche
}

// serving starts a daemon that outlives the test, and returns what runs cloche with some input.
func serving(t *testing.T, bin string, env []string, logFile string) (func(stdin string, args ...string) string, *exec.Cmd) {
	t.Helper()
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			data, _ := os.ReadFile(logFile)
			t.Logf("the daemon's log:\n%s", data)
		}
	})
	daemon := exec.Command(bin, "serve")
	daemon.Env, daemon.Stdout, daemon.Stderr, daemon.SysProcAttr = env, log, log, &syscall.SysProcAttr{Setsid: true}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	try := func(stdin string, args ...string) (string, int) {
		cmd := exec.CommandContext(t.Context(), bin, args...)
		cmd.Env = env
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	if !fixture.Poll(func() bool { _, status := try("", "ls"); return status == 0 }) {
		t.Fatal("the daemon does not answer")
	}
	return func(stdin string, args ...string) string {
		t.Helper()
		out, status := patiently(func() (string, int) { return try(stdin, args...) })
		if status != 0 {
			t.Fatalf("%q: status %d\n%s", args, status, out)
		}
		return out
	}, daemon
}

// startCount starts a program in a sandbox that counts lines, and gives it the first.
func startCount(t *testing.T, cloche func(stdin string, args ...string) string, sandbox string) {
	t.Helper()
	cloche("", "start", "--id", "count", "--open-stdin", sandbox, "--", "/bin/sh", "-c", `n=0; while read -r line; do n=$((n+1)); echo "$n $line"; done`)
	cloche("before\n", "stdin", sandbox, "count")
	hears(t, cloche, sandbox, "1 before")
}

// hears waits until the output of the process of a sandbox has a line.
func hears(t *testing.T, cloche func(stdin string, args ...string) string, sandbox, line string) {
	t.Helper()
	var out string
	if !fixture.Poll(func() bool {
		out = cloche("", "logs", sandbox, "count")
		return strings.Contains("\n"+out, "\n"+line+"\n")
	}) {
		t.Fatalf("%q is not in the output:\n%s", line, out)
	}
}

// TestBeforeReboot is what runs in the machine before it is switched off.
func TestBeforeReboot(t *testing.T) {
	cloche := booted(t)
	for _, name := range []string{"suspended", "stopped", "running"} {
		cloche("", "create", "--engine", "gvisor", "--name", name)
		cloche("", "exec", name, "--", "/bin/sh", "-c", "echo "+name+" >/root/file; echo "+name+" >/workspace/file")
	}
	startCount(t, cloche, "suspended")
	cloche("", "suspend", "suspended")
	cloche("", "stop", "stopped")
}

// TestAfterReboot is what runs in the machine after it was switched on again.
func TestAfterReboot(t *testing.T) {
	cloche := booted(t)
	state := func(name, want string, says ...string) {
		t.Helper()
		out := cloche("", "inspect", name)
		for _, s := range append(says, `"state": "`+want+`"`) {
			if !strings.Contains(out, s) {
				t.Errorf("%s: %q is not in its record:\n%s", name, s, out)
			}
		}
	}
	files := func(name, root string) {
		t.Helper()
		if got, want := cloche("", "exec", name, "--", "/bin/sh", "-c", "cat /root/file; cat /workspace/file"), root+name+"\n"; !strings.HasSuffix(got, want) {
			t.Errorf("%s: its files have %q, want %q", name, got, want)
		}
	}
	state("suspended", "suspended")
	cloche("", "resume", "suspended")
	cloche("after\n", "stdin", "suspended", "count")
	hears(t, cloche, "suspended", "2 after")
	files("suspended", "suspended\n")

	state("stopped", "stopped")
	cloche("", "start", "stopped")
	files("stopped", "stopped\n")

	// What ran has no memory and no root any more, and says so.
	state("running", "lost", `"lost": [`, `"root"`)
	cloche("", "start", "running")
	files("running", "")
}
