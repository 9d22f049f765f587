//go:build linux

package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/engine"
)

const hybrid = `20 1 0:20 / / rw - ext4 /dev/vda rw
30 25 0:26 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
31 25 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
32 25 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
33 25 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
broken line
`

func TestParseCgroupMounts(t *testing.T) {
	var got []string
	for _, m := range parseCgroupMounts(hybrid) {
		got = append(got, m.path)
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
		for _, m := range parseCgroupMounts(text) {
			if m.version != 1 && m.version != 2 {
				t.Errorf("version %d", m.version)
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
		mounts      []cgroupMount
		cpu, memory bool
	}{
		{"none", nil, false, false},
		{"unified", []cgroupMount{{path: v2, version: 2}}, true, true},
		{"unified without controllers", []cgroupMount{{path: empty, version: 2}}, false, false},
		{"version 1", []cgroupMount{{path: memory, version: 1, controllers: []string{"rw", "memory"}}}, false, true},
		{"hybrid", []cgroupMount{{path: memory, version: 1, controllers: []string{"memory"}}, {path: empty, version: 2}}, false, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := groupMakerFrom(test.mounts, "", "cloche")
			e := m.enforcement()
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

func TestDelegatedGroup(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("needs a normal user: root may write everywhere")
	}
	top := hierarchyDir(t, "cpu memory\n")
	m := delegatedGroupMaker([]cgroupMount{{path: top, version: 2}}, "0::/\n", "cloche", delegation{parent: "cloche"})
	if len(m.roots) != 1 {
		t.Errorf("a delegated group is not used: %s", m.reason)
	}
	if err := os.Chmod(filepath.Join(top, "cgroup.procs"), 0o444); err != nil {
		t.Fatal(err)
	}
	m = delegatedGroupMaker([]cgroupMount{{path: top, version: 2}}, "0::/\n", "cloche", delegation{parent: "cloche"})
	if len(m.roots) != 0 || m.reason == "" {
		t.Error("a group that was not delegated is used")
	}
}

func TestLimitFiles(t *testing.T) {
	tests := []struct {
		h    hierarchy
		want map[string]string
	}{
		{hierarchy{version: 2, memory: true, cpu: true}, map[string]string{"memory.max": "1048576", "memory.swap.max": "0", "cpu.max": "50000 100000"}},
		{hierarchy{version: 1, memory: true}, map[string]string{"memory.limit_in_bytes": "1048576"}},
		{hierarchy{version: 1, cpu: true}, map[string]string{"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}},
	}
	for _, test := range tests {
		dir := t.TempDir()
		for name := range test.want {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := test.h.limit(dir, engine.Limits{MemoryBytes: 1 << 20, CPUs: 0.5}); err != nil {
			t.Error(err)
		}
		for name, want := range test.want {
			if got, _ := os.ReadFile(filepath.Join(dir, name)); string(got) != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	}
}

// TestEnterComesBack: what is forked is in the group, the thread is not.
func TestEnterComesBack(t *testing.T) {
	m := findGroupMaker("cloche-test", os.Geteuid() == 0)
	if len(m.roots) == 0 {
		t.Skip("needs a cgroup of its own: " + m.reason)
	}
	t.Cleanup(func() {
		for _, h := range m.roots {
			if err := os.Remove(h.root); err == nil && h.nested {
				t.Errorf("left inside another's group: %s", h.root)
			}
		}
	})
	g, err := m.make("owner", cloche.NewID("g-"), engine.Limits{MemoryBytes: 64 << 20})
	if err != nil {
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
	if err := g.enter(func(fd int) error {
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
	if err := g.remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, dir := range g.paths() {
		if unix.Access(dir, unix.F_OK) == nil {
			t.Errorf("left: %s", dir)
		}
	}
}

// unifiedMount mounts the hierarchy of version 2 where nobody else sees it.
func unifiedMount(t *testing.T) cgroupMount {
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
	return cgroupMount{path: fmt.Sprintf("/proc/self/fd/%d", fd), root: "/", version: 2}
}

// TestForkIntoUnifiedGroup: a process is born in a group of version 2. No
// controller is needed for that.
func TestForkIntoUnifiedGroup(t *testing.T) {
	mount := unifiedMount(t)
	id := cloche.NewID("g-")
	m := groupMaker{roots: []hierarchy{{mount: mount, root: filepath.Join(mount.path, "cloche-test"), version: 2}}}
	t.Cleanup(func() { os.Remove(filepath.Join(mount.path, "cloche-test")) })
	g, err := m.make("owner", id, engine.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	s := newSpawner()
	defer s.close()
	var p *process
	err = s.do(t.Context(), func() error {
		return g.enter(func(fd int) (err error) {
			c := command{exe: "/bin/sleep", args: []string{"sleep", "1000"}}
			c.sys.UseCgroupFD, c.sys.CgroupFD = true, fd
			p, err = c.spawn(null)
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid))
	if err != nil || !strings.Contains(string(own), "0::/cloche-test/owner/"+id) {
		t.Errorf("the process is in %s, %v", own, err)
	}
	// Kills what is in it.
	if err := g.remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-p.done
	p.close()
}

func TestOwnGroup(t *testing.T) {
	const cgroups = "4:memory:/docker/c1/sub\n2:cpu,cpuacct:/docker/c1\n1:name=systemd:/\n0::/docker/c1\n"
	memory := cgroupMount{path: "/cg/memory", root: "/", version: 1, controllers: []string{"rw", "memory"}}
	inside := memory
	inside.root = "/docker/c1"
	tests := []struct {
		name, cgroups string
		mount         cgroupMount
		want          string // empty is none
	}{
		{"whole hierarchy", cgroups, memory, "/cg/memory/docker/c1/sub"},
		{"a container's part", cgroups, inside, "/cg/memory/sub"},
		{"the part itself", "4:memory:/docker/c1\n", inside, "/cg/memory"},
		{"another part of like name", "4:memory:/docker/c10\n", inside, ""},
		{"outside of the namespace", "4:memory:/../c1\n", memory, ""},
		{"two controllers", cgroups, cgroupMount{path: "/cg/cpu", root: "/", version: 1, controllers: []string{"cpu", "cpuacct"}}, "/cg/cpu/docker/c1"},
		{"unified", cgroups, cgroupMount{path: "/cg", root: "/docker/c1", version: 2}, "/cg"},
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
		m := cgroupMount{path: "/cg/memory", root: root, version: 1, controllers: []string{"memory"}}
		if dir, ok := m.own(cgroups); ok && dir != m.path && !strings.HasPrefix(dir, m.path+"/") {
			t.Errorf("%q is outside of the mount", dir)
		}
	})
}

// version1 is a hierarchy of version 1 with this process in the group own.
func version1(t *testing.T, controller, own string) (cgroupMount, string) {
	t.Helper()
	m := cgroupMount{path: t.TempDir(), root: "/", version: 1, controllers: []string{"rw", controller}}
	dir := filepath.Join(m.path, own)
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
		m := groupMakerFrom([]cgroupMount{mount}, text, "cloche")
		if len(m.roots) != 1 {
			t.Fatal(m.reason)
		}
		want := filepath.Join(mount.path, own, "cloche")
		if m.roots[0].root != want {
			t.Errorf("in %s the groups are made in %s", own, m.roots[0].root)
		}
		g, err := m.make("owner", "id", engine.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(want, "owner", "id")); err != nil {
			t.Error(err)
		}
		// A later daemon is somewhere else, and finds it by what is on record.
		later := groupMaker{parent: "cloche", mounts: []cgroupMount{mount}}
		if err := later.open(g.paths()).remove(t.Context()); err != nil {
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
	m := groupMaker{parent: "cloche", mounts: []cgroupMount{{path: "/cg", root: "/", version: 2}}}
	for dir, want := range map[string]int{
		"/cg/a.scope/cloche/owner/id":       1,
		"/cg/cloche/owner/id":               1,
		"/cg/a.scope/other/owner/id":        0,
		"/elsewhere/cloche/owner/id":        0,
		"/cg/cloche/../../etc/cloche/../id": 0,
		"":                                  0,
	} {
		if got := len(m.open([]string{dir}).parts); got != want {
			t.Errorf("%q is %d groups, want %d", dir, got, want)
		}
	}
}

// TestQuotaWithinOuter: version 1 refuses a quota above that of a group around.
func TestQuotaWithinOuter(t *testing.T) {
	mount, _ := version1(t, "cpu", "/docker/c1")
	outer := filepath.Join(mount.path, "docker")
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
	h := hierarchy{mount: mount, root: filepath.Join(outer, "c1", "cloche"), version: 1, cpu: true}
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
