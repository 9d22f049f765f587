//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// testLayout is one that splits where memory is limited.
func testLayout(parent string) Layout {
	return Layout{
		Parent: parent, Controllers: []string{Memory, CPU, Usage}, Own: "own", Overhead: 1 << 20,
		Split: func(h Hierarchy) bool { return h.Has(Memory) },
	}
}

const hybrid = `20 1 0:20 / / rw - ext4 /dev/vda rw
30 25 0:26 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
31 25 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
32 25 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
33 25 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
broken line
`

func TestParseCgroupMounts(t *testing.T) {
	var got []string
	for _, m := range ParseMounts(hybrid) {
		got = append(got, m.Path)
	}
	want := []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"}
	if !slices.Equal(got, want) {
		t.Errorf("mounts are %v, want %v", got, want)
	}
}

func FuzzParseCgroupMounts(f *testing.F) {
	f.Add(hybrid)
	f.Add("- - -")
	f.Fuzz(func(t *testing.T, text string) {
		for _, m := range ParseMounts(text) {
			if m.Version != 1 && m.Version != 2 {
				t.Errorf("version %d", m.Version)
			}
		}
	})
}

// hierarchyDir is a directory with the files of a group of version 2.
func hierarchyDir(t *testing.T, controllers string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"cgroup.controllers": controllers, "cgroup.subtree_control": "", "cgroup.procs": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestGroupMakerFindsControllers(t *testing.T) {
	v2 := hierarchyDir(t, "cpuset cpu io memory pids\n")
	empty := hierarchyDir(t, "\n")
	memory := t.TempDir()
	tests := []struct {
		name        string
		mounts      []Mount
		cpu, memory bool
	}{
		{"none", nil, false, false},
		{"unified", []Mount{{Path: v2, Version: 2}}, true, true},
		{"unified without controllers", []Mount{{Path: empty, Version: 2}}, false, false},
		{"version 1", []Mount{{Path: memory, Version: 1, Controllers: []string{"rw", "memory"}}}, false, true},
		{"hybrid", []Mount{{Path: memory, Version: 1, Controllers: []string{"memory"}}, {Path: empty, Version: 2}}, false, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := testLayout("cloche").from(test.mounts, "")
			e := m.Enforcement()
			if e["cpus"].OK != test.cpu || e["memory_bytes"].OK != test.memory {
				t.Errorf("enforces %+v", e)
			}
			for name, v := range e {
				if !v.OK && v.Reason == "" {
					t.Errorf("no reason why %s is not enforced", name)
				}
			}
		})
	}
}

// TestDescribe: the versions that a machine has are told apart, and what is missing is
// named.
func TestDescribe(t *testing.T) {
	v2 := Mount{Path: "/cg", Root: "/", Version: 2}
	memory, pids := Mount{Path: "/cg/memory", Version: 1}, Mount{Path: "/cg/pids", Version: 1}
	l := Layout{Controllers: []string{Memory, Pids}}
	missing := Maker{layout: l, All: []Hierarchy{{Mount: v2, Uses: []string{Pids}}}, Reason: "why"}
	beside := In(l, Hierarchy{Mount: memory, Uses: []string{Memory}}, Hierarchy{Mount: pids, Uses: []string{Pids}})
	beside.mounts = append(beside.mounts, v2)
	for want, m := range map[string]Maker{
		"none: why":                                    {Reason: "why"},
		"version 2 (memory, pids)":                     In(l, Hierarchy{Mount: v2, Uses: []string{Memory, Pids}}),
		"version 2 (pids); why":                        missing,
		"version 1 (memory below the own group, pids)": In(l, Hierarchy{Mount: memory, Uses: []string{Memory}, Nested: true}, Hierarchy{Mount: pids, Uses: []string{Pids}}),
		"version 1 (memory, pids) and version 2 without controllers": In(l,
			Hierarchy{Mount: v2}, Hierarchy{Mount: memory, Uses: []string{Memory}}, Hierarchy{Mount: pids, Uses: []string{Pids}}),
		"version 1 (memory, pids); version 2 is mounted too, without these": beside,
	} {
		if got := m.Describe(); got != want {
			t.Errorf("it is %q, want %q", got, want)
		}
	}
	m := testLayout("cloche").from([]Mount{{Path: hierarchyDir(t, "memory\n"), Version: 2}}, "")
	if e := m.Enforcement()["cpus"]; e.OK || !strings.Contains(e.Reason, "has the cpu controller") || !strings.HasPrefix(m.Describe(), "version 2 (memory); ") {
		t.Errorf("without cpu it is %q, and processors are %+v", m.Describe(), e)
	}
}

// TestControllersNotHandedDown: what cannot be limited is said, and where groups without
// controllers are of use there are some.
func TestControllersNotHandedDown(t *testing.T) {
	for _, bare := range []bool{false, true} {
		// No file to write to is there, as in no group of the kernel's.
		mount := Mount{Path: t.TempDir(), Root: "/", Version: 2}
		if err := os.WriteFile(filepath.Join(mount.Path, "cgroup.controllers"), []byte("cpu memory pids\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		l := testLayout("cloche-test")
		l.Bare = bare
		m := l.from([]Mount{mount}, "0::/\n")
		if e := m.Enforcement()["memory_bytes"]; e.OK || !strings.Contains(e.Reason, "no group can be handed") {
			t.Errorf("bare %t: memory is %+v", bare, e)
		}
		if !strings.Contains(m.Describe(), "no group can be handed") {
			t.Errorf("bare %t: it is described as %q", bare, m.Describe())
		}
		if got := m.Unified() != nil; got != bare {
			t.Errorf("bare %t: there is a hierarchy: %t", bare, got)
		}
		if !bare {
			continue
		}
		g, err := m.Make("owner", "id")
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Limit(engine.Limits{MemoryBytes: 1 << 20, Pids: 1, CPUs: 1}); err != nil {
			t.Errorf("limits of a group without controllers: %v", err)
		}
		if _, err := g.Stat(); !errors.Is(err, errNoGroup) {
			t.Errorf("use of a group without controllers: %v", err)
		}
	}
}

func TestDelegatedGroup(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("needs a normal user: root may write everywhere")
	}
	top := hierarchyDir(t, "cpu memory\n")
	m := delegated([]Mount{{Path: top, Version: 2}}, "0::/\n", delegation{layout: testLayout("cloche")})
	if len(m.All) != 1 {
		t.Errorf("a delegated group is not used: %s", m.Reason)
	}
	if err := os.Chmod(filepath.Join(top, "cgroup.procs"), 0o444); err != nil {
		t.Fatal(err)
	}
	m = delegated([]Mount{{Path: top, Version: 2}}, "0::/\n", delegation{layout: testLayout("cloche")})
	if len(m.All) != 0 || m.Reason == "" {
		t.Error("a group that was not delegated is used")
	}
}

func TestLimitFiles(t *testing.T) {
	tests := []struct {
		h    Hierarchy
		want map[string]string
	}{
		{Hierarchy{Mount: Mount{Version: 2}, Uses: []string{Memory, CPU}}, map[string]string{"memory.max": "1048576", "memory.swap.max": "0", "cpu.max": "50000 100000"}},
		{Hierarchy{Mount: Mount{Version: 1}, Uses: []string{Pids}}, map[string]string{"pids.max": "7"}},
		{Hierarchy{Mount: Mount{Version: 1}, Uses: []string{Memory}}, map[string]string{"memory.limit_in_bytes": "1048576", "memory.memsw.limit_in_bytes": "1048576", "memory.kmem.tcp.limit_in_bytes": "262144"}},
		{Hierarchy{Mount: Mount{Version: 1}, Uses: []string{CPU}}, map[string]string{"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}},
	}
	for _, test := range tests {
		dir := t.TempDir()
		for name := range test.want {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := test.h.limit(dir, engine.Limits{MemoryBytes: 1 << 20, CPUs: 0.5, Pids: 7}); err != nil {
			t.Error(err)
		}
		for name, want := range test.want {
			if got, _ := os.ReadFile(filepath.Join(dir, name)); string(got) != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	}
}

// TestLimitOfBoth: what is started has the limits that were asked for, and the whole of the
// group as much more memory as the engine's own part of it takes.
func TestLimitOfBoth(t *testing.T) {
	dir := t.TempDir()
	h := Hierarchy{Mount: Mount{Version: 1}, Uses: []string{Memory, Pids}}
	want := map[string]string{
		"memory.limit_in_bytes": "1052672", "pids.max": "",
		guestGroup + "/memory.limit_in_bytes": "1048576", guestGroup + "/pids.max": "7",
	}
	if err := os.Mkdir(filepath.Join(dir, guestGroup), 0o755); err != nil {
		t.Fatal(err)
	}
	for name := range want {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	g := Group{Parts: []Part{{Hierarchy: h, Dir: dir, split: true, overhead: 4096}}}
	if err := g.Limit(engine.Limits{MemoryBytes: 1 << 20, Pids: 7}); err != nil {
		t.Fatal(err)
	}
	for name, want := range want {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v, want %q", name, got, err, want)
		}
	}
}

// TestEnterComesBack: what is forked is in the group, the thread is not.
func TestEnterComesBack(t *testing.T) {
	m := Find(testLayout("cloche-test"), os.Geteuid() == 0)
	if len(m.All) == 0 {
		t.Skip("needs a cgroup of its own: " + m.Reason)
	}
	t.Cleanup(func() {
		for _, h := range m.All {
			if err := os.Remove(h.Root); err == nil && h.Nested {
				t.Errorf("left inside another's group: %s", h.Root)
			}
		}
	})
	g, err := m.Make("owner", api.NewID("g-"))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Limit(engine.Limits{MemoryBytes: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	read := func() string {
		b, err := os.ReadFile("/proc/thread-self/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	before := read()
	inside := ""
	if err := g.Enter(func(fd int) error {
		if fd < 0 {
			inside = read()
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if inside != "" && !strings.Contains(inside, "/cloche-test/owner/") {
		t.Errorf("the thread was not in the group:\n%s", inside)
	}
	if after := read(); after != before {
		t.Errorf("the thread did not come back:\n%s", after)
	}
	if err := g.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, dir := range g.Paths() {
		if unix.Access(dir, unix.F_OK) == nil {
			t.Errorf("left: %s", dir)
		}
	}
}

// unifiedMount mounts the hierarchy of version 2 where no other process sees it.
func unifiedMount(t *testing.T) Mount {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a cgroup file system of version 2")
	}
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Skipf("needs a kernel with cgroups of version 2: %v", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		t.Skipf("needs a kernel with cgroups of version 2: %v", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs the right to mount: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return Mount{Path: fmt.Sprintf("/proc/self/fd/%d", fd), Root: "/", Version: 2}
}

// TestForkIntoUnifiedGroup: a process is born in a group of version 2. No
// controller is needed for that.
func TestForkIntoUnifiedGroup(t *testing.T) {
	mount := unifiedMount(t)
	id := api.NewID("g-")
	m := In(testLayout("cloche-test"), Hierarchy{Mount: mount, Root: filepath.Join(mount.Path, "cloche-test")})
	t.Cleanup(func() { os.Remove(filepath.Join(mount.Path, "cloche-test")) })
	g, err := m.Make("owner", id)
	if err != nil {
		t.Fatal(err)
	}
	var sleep *exec.Cmd
	if err := g.Enter(func(fd int) error {
		sleep = exec.Command("sleep", "1000")
		sleep.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
		return sleep.Start()
	}); err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", sleep.Process.Pid))
	if err != nil || !strings.Contains(string(own), "0::/cloche-test/owner/"+id) {
		t.Errorf("the process is in %s, %v", own, err)
	}
	// Kills what is in it.
	if err := g.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := sleep.Wait(); err == nil {
		t.Error("what was in the group was not killed")
	}
}

func TestOwnGroup(t *testing.T) {
	const cgroups = "4:memory:/docker/c1/sub\n2:cpu,cpuacct:/docker/c1\n1:name=systemd:/\n0::/docker/c1\n"
	memory := Mount{Path: "/cg/memory", Root: "/", Version: 1, Controllers: []string{"rw", "memory"}}
	inside := memory
	inside.Root = "/docker/c1"
	tests := []struct {
		name, cgroups string
		mount         Mount
		want          string // empty means no group
	}{
		{"whole hierarchy", cgroups, memory, "/cg/memory/docker/c1/sub"},
		{"a container's part", cgroups, inside, "/cg/memory/sub"},
		{"the part itself", "4:memory:/docker/c1\n", inside, "/cg/memory"},
		{"another part of like name", "4:memory:/docker/c10\n", inside, ""},
		{"outside of the namespace", "4:memory:/../c1\n", memory, ""},
		{"two controllers", cgroups, Mount{Path: "/cg/cpu", Root: "/", Version: 1, Controllers: []string{"cpu", "cpuacct"}}, "/cg/cpu/docker/c1"},
		{"unified", cgroups, Mount{Path: "/cg", Root: "/docker/c1", Version: 2}, "/cg"},
		{"none", "4:pids:/\n", memory, ""},
		{"nothing", "", memory, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, ok := test.mount.own(test.cgroups)
			if got != test.want || ok != (test.want != "") {
				t.Errorf("the own group is %q, %v, want %q", got, ok, test.want)
			}
		})
	}
}

func FuzzOwnGroup(f *testing.F) {
	f.Add("4:memory:/a/b\n", "/a")
	f.Add("4:memory:/../b\n", "/")
	f.Add("4:memory:a\n", "")
	f.Fuzz(func(t *testing.T, cgroups, root string) {
		m := Mount{Path: "/cg/memory", Root: root, Version: 1, Controllers: []string{"memory"}}
		if dir, ok := m.own(cgroups); ok && dir != m.Path && !strings.HasPrefix(dir, m.Path+"/") {
			t.Errorf("%q is outside of the mount", dir)
		}
	})
}

// version1 is a hierarchy of version 1 with this process in the group own.
func version1(t *testing.T, controller, own string) (Mount, string) {
	t.Helper()
	m := Mount{Path: t.TempDir(), Root: "/", Version: 1, Controllers: []string{"rw", controller}}
	dir := filepath.Join(m.Path, own)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tasks"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return m, "3:" + controller + ":" + own + "\n"
}

// TestVersion1StaysInside: what limits the own group of version 1 limits those
// of the sandboxes too, and none of it stays there.
func TestVersion1StaysInside(t *testing.T) {
	for _, own := range []string{"/", "/docker/c1"} {
		mount, text := version1(t, "cpuacct", own)
		m := testLayout("cloche").from([]Mount{mount}, text)
		if len(m.All) != 1 {
			t.Fatal(m.Reason)
		}
		want := filepath.Join(mount.Path, own, "cloche")
		if m.All[0].Root != want {
			t.Errorf("in %s the groups are made in %s", own, m.All[0].Root)
		}
		g, err := m.Make("owner", "id")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(want, "owner", "id")); err != nil {
			t.Error(err)
		}
		// A later daemon is somewhere else, and finds it by what is on record.
		later := Maker{layout: testLayout("cloche"), mounts: []Mount{mount}}
		if err := later.Open(g.Paths()).Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(want, "owner")); err == nil {
			t.Error("the group is left")
		}
		if _, err := os.Stat(want); own != "/" && err == nil {
			t.Error("the engine's directory is left in another's group")
		}
	}
}

// TestOpenTakesOnlyOwn: a record leads to no directory that the engine would not
// have made.
func TestOpenTakesOnlyOwn(t *testing.T) {
	m := Maker{layout: testLayout("cloche"), mounts: []Mount{{Path: "/cg", Root: "/", Version: 2}}}
	for dir, want := range map[string]int{
		"/cg/a.scope/cloche/owner/id":       1,
		"/cg/cloche/owner/id":               1,
		"/cg/a.scope/other/owner/id":        0,
		"/elsewhere/cloche/owner/id":        0,
		"/cg/cloche/../../etc/cloche/../id": 0,
		"":                                  0,
	} {
		if got := len(m.Open([]string{dir}).Parts); got != want {
			t.Errorf("%q is %d groups, want %d", dir, got, want)
		}
	}
}

// TestQuotaWithinOuter: version 1 refuses a quota above the quota of an outer group.
func TestQuotaWithinOuter(t *testing.T) {
	mount, _ := version1(t, "cpu", "/docker/c1")
	outer := filepath.Join(mount.Path, "docker")
	dir := filepath.Join(outer, "c1", "cloche", "owner", "id")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		filepath.Join(outer, "cpu.cfs_quota_us"):        "150000\n",
		filepath.Join(outer, "cpu.cfs_period_us"):       "100000\n",
		filepath.Join(outer, "c1", "cpu.cfs_quota_us"):  "-1\n",
		filepath.Join(outer, "c1", "cpu.cfs_period_us"): "100000\n",
		filepath.Join(dir, "cpu.cfs_quota_us"):          "",
		filepath.Join(dir, "cpu.cfs_period_us"):         "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h := Hierarchy{Mount: mount, Root: filepath.Join(outer, "c1", "cloche"), Uses: []string{CPU}}
	for cpus, want := range map[float64]string{1: "100000", 4: "150000"} {
		if err := os.Truncate(filepath.Join(dir, "cpu.cfs_quota_us"), 0); err != nil {
			t.Fatal(err)
		}
		if err := h.limit(dir, engine.Limits{CPUs: cpus}); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(filepath.Join(dir, "cpu.cfs_quota_us")); string(got) != want {
			t.Errorf("for %v processors the quota is %s, want %s", cpus, got, want)
		}
	}
}

// TestFreeze: processes in the group are frozen until they are thawed, and can be killed
// meanwhile.
func TestFreeze(t *testing.T) {
	if err := (&Group{}).Freeze(t.Context()); !errors.Is(err, ErrNoFreezer) {
		t.Errorf("without a group: %v", err)
	}
	mount := unifiedMount(t)
	m := In(testLayout("cloche-test"), Hierarchy{Mount: mount, Root: filepath.Join(mount.Path, "cloche-test")})
	t.Cleanup(func() { os.Remove(filepath.Join(mount.Path, "cloche-test")) })
	g, err := m.Make("owner", api.NewID("g-"))
	if err != nil {
		t.Fatal(err)
	}
	p := sleeper(t)
	if err := pidfd.Write(g.Unified(), "cgroup.procs", strconv.Itoa(p.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := g.Freeze(t.Context()); err != nil || !g.Frozen() {
			t.Fatalf("frozen: %v, %v", g.Frozen(), err)
		}
		if err := g.Thaw(t.Context()); err != nil || g.Frozen() {
			t.Fatalf("frozen: %v, %v", g.Frozen(), err)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Freeze(over); !errors.Is(err, context.Canceled) || g.Frozen() {
		t.Errorf("frozen by who had left: %v, %v", g.Frozen(), err)
	}
	if err := g.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err == nil {
		t.Error("what was frozen was not killed")
	}
}
