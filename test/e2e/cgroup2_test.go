//go:build linux

package e2e_test

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/vm"
	"github.com/cloche-dev/cloche/test/vm/plan"
)

// guestVar says to a test that it runs in the machine which TestUnderAnotherKernel starts,
// and names the engines that are to be there.
const guestVar = "CLOCHE_TEST_GUEST"

// TestUnderAnotherKernel has sandboxes with limits where cgroups are of version 2 alone: of
// root, of a normal user to whom a group was delegated, with all of it or a part, and of
// root of a container. The machine is emulated, so everything takes long in it.
func TestUnderAnotherKernel(t *testing.T) {
	self, bin := machinePrograms(t, 6, 6)
	program := filepath.Join(t.TempDir(), "inside")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/cloche-dev/cloche/internal/engine/enginetest/inside")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build what runs in the sandboxes: %v\n%s", err, out)
	}
	root, programs := []string{"native", "gvisor"}, map[string]string{}
	if path := os.Getenv("CLOCHE_TEST_NSJAIL"); path != "" {
		programs["/usr/bin/nsjail"] = path
		root = append(root, "nsjail")
	} else {
		t.Run("nsjail", func(t *testing.T) { t.Skip("needs nsjail: CLOCHE_TEST_NSJAIL names none") })
	}
	if path, err := exec.LookPath("runc"); err == nil {
		programs["/usr/bin/runc"] = path
		root = append(root, "oci")
	} else {
		t.Run("oci", func(t *testing.T) { t.Skip("needs runc: it is not installed") })
	}
	run := func(name string, place plan.Place, without []string, test string, engines []string) plan.Command {
		return plan.Command{
			Name: name, Place: place, Without: without, Argv: []string{"/test", "-test.v", "-test.timeout=9m", "-test.run=^" + test + "$"},
			Env: []string{"PATH=/usr/sbin:/usr/bin", "HOME=/tmp", guestVar + "=" + strings.Join(engines, " ")},
		}
	}
	passed := vm.Test(t, vm.Machine{
		Modules: []string{"loop", "overlay", "erofs", "tun"},
		Files:   map[string]string{"/test": self, "/cloche": bin, "/usr/bin/inside": program}, Programs: programs,
		DiskMB: 1024, MemoryMB: 1536,
		Commands: []plan.Command{
			run("root", plan.Top, nil, "TestLimitsOfVersion2", root),
			run("user", plan.Delegated, nil, "TestLimitsOfVersion2", []string{"native"}),
			run("container", plan.Container, nil, "TestSharedGroup", []string{"native"}),
			run("user-without-cpu", plan.Delegated, []string{"cpu"}, "TestControllerNotDelegated", []string{"native"}),
		},
	})
	want := []string{"user/TestLimitsOfVersion2/native", "container/TestSharedGroup", "user-without-cpu/TestControllerNotDelegated"}
	for _, e := range root {
		want = append(want, "root/TestLimitsOfVersion2/"+e)
	}
	for _, name := range want {
		if !slices.Contains(passed, name) {
			t.Errorf("%s did not run, or did not pass", name)
		}
	}
}

// machinePrograms are this program of tests and cloche, for a machine with a kernel of some version or newer. Without one the test
// is skipped.
func machinePrograms(t *testing.T, major, minor int) (self, bin string) {
	t.Helper()
	if why := vm.Missing(vm.EnvKernel, major, minor); why != "" {
		t.Skip(why)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: to make the machine's disk")
	}
	if testing.Short() {
		t.Skip("needs a run without -short: it starts a machine")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if bin, err = filepath.EvalSymlinks(fixture.Binary(t)); err != nil {
		t.Fatal(err)
	}
	return self, bin
}

// guest is how cloche is called in the machine, and the engines that are there.
func guest(t *testing.T) (cloche func(args ...string) (string, int), engines []string) {
	t.Helper()
	engines = strings.Fields(os.Getenv(guestVar))
	if len(engines) == 0 {
		t.Skip("needs another kernel: TestUnderAnotherKernel runs this")
	}
	home, err := os.MkdirTemp("", "cl-")
	if err != nil {
		t.Fatal(err)
	}
	try := func(args ...string) (string, int) {
		t.Helper()
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
	return func(args ...string) (string, int) {
		t.Helper()
		return patiently(func() (string, int) { return try(args...) })
	}, engines
}

// patiently calls cloche again while it waits for an engine: on an emulated processor engines are asked longer than their
// callers wait.
func patiently(call func() (out string, status int)) (out string, status int) {
	for range 5 {
		if out, status = call(); !strings.Contains(out, "has not said yet what it can do here") {
			break
		}
	}
	return out, status
}

// TestLimitsOfVersion2 is what runs in the machine.
func TestLimitsOfVersion2(t *testing.T) {
	cloche, engines := guest(t)
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			run := func(want int, says string, argv ...string) {
				t.Helper()
				out, status := cloche(append([]string{"run", "--json", "--engine", engine, "--memory", "128MiB", "--cpus", "1", "--pids", "20", "--"}, argv...)...)
				if status != want || !strings.Contains(out, says) {
					t.Errorf("%v: status %d, want %d and %s:\n%s", argv, status, want, says, out)
				}
				if strings.Contains(out, "not enforced") {
					t.Errorf("%v: limits are not enforced:\n%s", argv, out)
				}
			}
			// 137 is 128 and KILL, and that memory was why is read from the group.
			run(137, `"oom":true`, "/usr/bin/inside", "hog", "400")
			if engine != "gvisor" { // whose processes are its own kernel's to count
				run(0, "resource temporarily unavailable", "/usr/bin/inside", "forks")
			}
			// A program reads its limits in its own group: below the group of the sandbox, or with
			// nsjail in that group, which the agent and nsjail are in too.
			group, memory := "/job/x1", "134217728"
			if engine == "nsjail" {
				group, memory = "/", strconv.Itoa(128<<20+48<<20)
			}
			run(0, "0::"+group, "/usr/bin/inside", "cat", "/proc/self/cgroup")
			dir := filepath.Join("/sys/fs/cgroup", group)
			run(0, "100000 100000", "/usr/bin/inside", "cat", dir+"/cpu.max")
			run(0, memory, "/usr/bin/inside", "cat", dir+"/memory.max")
			run(1, "", "/usr/bin/inside", "write", dir+"/cpu.max", "max")
			run(1, "", "/usr/bin/inside", "write", dir+"/cgroup.procs", "0")
			if left := groupsLeft(); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// TestControllerNotDelegated: what a user was not given is said by its name, by doctor
// and of each sandbox that asks for it, and the other limits hold.
func TestControllerNotDelegated(t *testing.T) {
	cloche, _ := guest(t)
	out, _ := cloche("doctor")
	for _, want := range []string{"cgroup: version 2 (memory, pids); not delegated: cpu;", "not enforced: cpus: not delegated: cpu;", " enforced: disk_bytes, egress, kernel_files, memory_bytes, pids\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor does not say %q:\n%s", want, out)
		}
	}
	if out, status := cloche("run", "--engine", "native", "--cpus", "0.5", "--", "/usr/bin/inside", "hostname"); status != 125 || !strings.Contains(out, "not delegated: cpu") {
		t.Errorf("half a processor: status %d, want 125 and why:\n%s", status, out)
	}
	if out, status := cloche("run", "--engine", "native", "--memory", "128MiB", "--", "/usr/bin/inside", "hog", "400"); status != 137 {
		t.Errorf("too much memory: status %d, want 137:\n%s", status, out)
	}
}

// TestSharedGroup: beside other processes in the first group of a container nothing can be
// limited, which is said; a sandbox without limits works, and can be paused.
func TestSharedGroup(t *testing.T) {
	cloche, _ := guest(t)
	out, _ := cloche("doctor")
	for _, want := range []string{"cgroup: version 2 without controllers; no group can be handed these controllers: memory, cpu, pids: other processes are in the same cgroup", "not enforced: cpus, memory_bytes, pids: "} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor does not say %q:\n%s", want, out)
		}
	}
	if out, status := cloche("run", "--engine", "native", "--memory", "128MiB", "--", "/usr/bin/inside", "hostname"); status != 125 || !strings.Contains(out, "other processes are in the same cgroup") {
		t.Errorf("a limit of memory: status %d, want 125 and why:\n%s", status, out)
	}
	if out, status := cloche("run", "--engine", "native", "--", "/usr/bin/inside", "hostname"); status != 0 || !strings.Contains(out, "other processes are in the same cgroup") {
		t.Errorf("without limits: status %d, want 0 and a warning:\n%s", status, out)
	}
	if left := groupsLeft(); len(left) > 0 {
		t.Errorf("left: %q", left)
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
