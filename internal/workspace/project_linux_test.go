package workspace_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/workspace"
	"github.com/cloche-dev/cloche/test/vm"
	"github.com/cloche-dev/cloche/test/vm/plan"
)

// TestUnderAnotherKernel runs the tests of this package, and those of projects among
// them, on a filesystem with project quotas: in a virtual machine where this kernel
// has none.
func TestUnderAnotherKernel(t *testing.T) {
	if why := vm.Missing(vm.EnvKernel, 6, 1); why != "" {
		t.Skip(why)
	}
	needRoot(t)
	self, err := os.Executable()
	must(t, err)
	passed := vm.Test(t, vm.Machine{
		Modules: []string{"loop", "overlay"},
		Files:   map[string]string{"/test": self},
		DiskMB:  1024, MemoryMB: 1024,
		Commands: []plan.Command{{
			Name: "root", Argv: []string{"/test", "-test.v", "-test.timeout=8m", "-test.run=^Test(Project|Named|LayerWithin|Rollback|Fill)"},
			Env: []string{"PATH=/bin", "HOME=/root"},
		}},
	})
	for _, ran := range []string{"TestProject/bounds", "TestProject/layer", "TestProject/fill", "TestProject/removal", "TestProject/moved", "TestProject/private", "TestProject/private_removal", "TestProject/private_crash", "TestProject/private_in_a_project", "TestNamedCreateListRemove"} {
		if !slices.Contains(passed, "root/"+ran) {
			t.Errorf("%s did not run, or did not pass", ran)
		}
	}
}

const projectBytes, projectInodes = 16 << 20, 64

// projectDir is where the project of a tenant's only bounded workspace lies; empty is
// that it has a disk.
func projectDir(t *testing.T, home string) string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(home, "workspaces", "acme", ".cloche", "*.project"))
	must(t, err)
	if len(dirs) == 0 {
		return ""
	}
	return dirs[0]
}

// TestProject is about workspaces that the home's own filesystem holds to their bounds.
func TestProject(t *testing.T) {
	needRoot(t)
	probe := tempDir(t)
	s, err := workspace.Open(probe)
	must(t, err)
	_, err = s.Create(workspace.Wish{Tenant: "acme", Name: "probe", Bounds: workspace.Bounds{SizeBytes: 1 << 20, Inodes: 10}})
	if err != nil || projectDir(t, probe) == "" {
		t.Skip("needs a filesystem with project quotas: TestUnderAnotherKernel runs this")
	}
	must(t, s.Remove("acme", "probe"))
	t.Run("bounds", testProjectBounds)
	t.Run("layer", testProjectLayer)
	t.Run("fill", testProjectFill)
	t.Run("removal", testProjectRemoval)
	t.Run("moved", testProjectMoved)
	t.Run("private", testPrivateProject)
	t.Run("private removal", testPrivateProjectRemoval)
	t.Run("private crash", testPrivateProjectCrash)
	t.Run("private in a project", testPrivateInAProject)
}

// openNew makes a workspace with bounds and opens its files.
func openNew(t *testing.T, s *workspace.Store, name string) *workspace.Dir {
	t.Helper()
	info, err := s.Create(workspace.Wish{Tenant: "acme", Name: name, Bounds: workspace.Bounds{SizeBytes: projectBytes, Inodes: projectInodes}})
	must(t, err)
	if info.Enforced != api.HeldByKernel {
		t.Errorf("enforced is %q", info.Enforced)
	}
	return reopen(t, s, name)
}

func reopen(t *testing.T, s *workspace.Store, name string) *workspace.Dir {
	t.Helper()
	d, err := s.Open("acme", name, t.TempDir())
	must(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

// bounded calls fn as one whom quotas hold: root with all its capabilities is not.
func bounded[T any](t *testing.T, fn func() (T, error)) (T, error) {
	t.Helper()
	return without(t, unix.CAP_SYS_RESOURCE, fn)
}

// without calls fn as root without one of its capabilities.
func without[T any](t *testing.T, capability int, fn func() (T, error)) (T, error) {
	t.Helper()
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		err := unix.Capget(&header, &data[0])
		data[0].Effective &^= 1 << capability
		if err = errors.Join(err, unix.Capset(&header, &data[0])); err != nil {
			done <- result{err: err}
			return
		}
		value, err := fn()
		done <- result{value, err}
	}()
	r := <-done
	return r.value, r.err
}

// written is how much fits into a file.
func written(t *testing.T, path string) int64 {
	t.Helper()
	n, err := bounded(t, func() (int64, error) {
		f, err := os.Create(path)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		chunk := bytes.Repeat([]byte("x"), 64<<10)
		for total := int64(0); ; {
			n, err := f.Write(chunk)
			if total += int64(n); err != nil || total > 4*projectBytes {
				return total, err
			}
		}
	})
	if !errors.Is(err, unix.EDQUOT) {
		t.Fatalf("%d bytes were written to a workspace of %d, and then %v", n, projectBytes, err)
	}
	return n
}

func testProjectBounds(t *testing.T) {
	s, err := workspace.Open(tempDir(t))
	must(t, err)
	d := openNew(t, s, "one")
	if got := written(t, filepath.Join(d.Path(), "fill")); got < projectBytes*9/10 || got > projectBytes {
		t.Errorf("%d bytes fit into %d", got, projectBytes)
	}
	other := openNew(t, s, "two")
	must(t, os.WriteFile(filepath.Join(other.Path(), "free"), []byte("as before"), 0o600))
	info, err := s.Get("acme", "one")
	must(t, err)
	if info.UsedBytes == nil || *info.UsedBytes < projectBytes*9/10 || *info.UsedBytes > projectBytes {
		t.Errorf("used is %v of %d", info.UsedBytes, projectBytes)
	}
	must(t, os.Remove(filepath.Join(d.Path(), "fill")))
	files, err := bounded(t, func() (int, error) {
		for i := range 2 * projectInodes {
			if err := os.WriteFile(filepath.Join(d.Path(), fmt.Sprint(i)), nil, 0o600); err != nil {
				return i, err
			}
		}
		return 2 * projectInodes, nil
	})
	if !errors.Is(err, unix.EDQUOT) || files != projectInodes {
		t.Errorf("%d files, and then %v; %d were asked for", files, err, projectInodes)
	}
	var fs unix.Statfs_t
	must(t, unix.Statfs(other.Path(), &fs))
	if size := int64(fs.Blocks) * fs.Bsize; size > 2*projectBytes {
		t.Errorf("df inside says %d of %d", size, projectBytes)
	}
}

func testProjectLayer(t *testing.T) {
	home := tempDir(t)
	s, err := workspace.Open(home)
	must(t, err)
	d := openNew(t, s, "one")
	must(t, os.WriteFile(filepath.Join(d.Path(), "kept"), bytes.Repeat([]byte("x"), projectBytes/2), 0o600))
	l, err := workspace.MakeLayer(t.Context(), filepath.Join(home, "unused"), d)
	must(t, err)
	upper := filepath.Join(projectDir(t, home), "layer", "upper")
	if got := written(t, filepath.Join(upper, "more")); got > projectBytes/2 {
		t.Errorf("%d bytes fit beside %d of %d", got, projectBytes/2, projectBytes)
	}
	must(t, os.WriteFile(filepath.Join(upper, "more"), []byte("less"), 0o600))
	must(t, l.Commit(t.Context(), d))
	data, err := os.ReadFile(filepath.Join(d.Path(), "more"))
	must(t, err)
	if string(data) != "less" {
		t.Errorf("committed %q", data)
	}
}

// testProjectFill: what Cloche itself copies is held too, though it may do anything.
func testProjectFill(t *testing.T) {
	s, err := workspace.Open(tempDir(t))
	must(t, err)
	d := openNew(t, s, "one")
	from := tempDir(t)
	must(t, os.WriteFile(filepath.Join(from, "large"), bytes.Repeat([]byte("x"), 2*projectBytes), 0o600))
	if err := d.FillFrom(t.Context(), from, workspace.CopyLimits{}); !errors.Is(err, unix.EDQUOT) {
		t.Errorf("%d bytes into %d: %v", 2*projectBytes, projectBytes, err)
	}
}

func testProjectRemoval(t *testing.T) {
	home := tempDir(t)
	s, err := workspace.Open(home)
	must(t, err)
	d := openNew(t, s, "one")
	must(t, os.WriteFile(filepath.Join(d.Path(), "file"), make([]byte, 1<<20), 0o600))
	must(t, d.Close())
	orphan := filepath.Join(filepath.Dir(projectDir(t, home)), "ws-0000000000000000.project")
	must(t, os.Mkdir(orphan, 0o700)) // what a creation that was killed leaves
	must(t, s.Sweep("nobody", func(string) bool { return true }))
	if _, err := os.Lstat(orphan); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a killed creation left is there: %v", err)
	}
	reopen(t, s, "one")
	must(t, s.Remove("acme", "one"))
	if left := projectDir(t, home); left != "" {
		t.Errorf("after the removal there is %s", left)
	}
	if _, err := s.Get("acme", "one"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("after the removal: %v", err)
	}
}

// testProjectMoved: files that were copied to a place without a bound do not count as
// bounded.
func testProjectMoved(t *testing.T) {
	home := tempDir(t)
	s, err := workspace.Open(home)
	must(t, err)
	must(t, openNew(t, s, "one").Close())
	dir, err := os.Open(projectDir(t, home))
	must(t, err)
	defer dir.Close()
	none := [28]byte{}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), 0x401c5820, uintptr(unsafe.Pointer(&none))); errno != 0 {
		t.Fatal(errno)
	}
	if _, err := s.Open("acme", "one", t.TempDir()); api.CodeOf(err) != api.CodeUnsupported {
		t.Errorf("opened without its bounds: %v", err)
	}
}

// privateHome is a directory like the directory of a sandbox, with a place for what is staged.
func privateHome(t *testing.T) (dir, staging string) {
	t.Helper()
	dir = filepath.Join(tempDir(t), "sandbox")
	staging = filepath.Join(dir, "staging")
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.Mkdir(staging, 0o700))
	return dir, staging
}

// openPrivate opens the private workspace in dir, which is made when it is missing.
func openPrivate(t *testing.T, dir, staging string) *workspace.Dir {
	t.Helper()
	d, err := workspace.PrivateBounded(filepath.Join(dir, "workspace-x"), staging, workspace.Bounds{SizeBytes: projectBytes, Inodes: projectInodes})
	must(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

// testPrivateProject: a private workspace is a project too, with the same bounds, and
// is found again.
func testPrivateProject(t *testing.T) {
	dir, staging := privateHome(t)
	if !workspace.HasProjects(dir) || !workspace.HardQuota(dir).OK {
		t.Error("the filesystem has projects, and it is not seen")
	}
	d := openPrivate(t, dir, staging)
	if got := written(t, filepath.Join(d.Path(), "fill")); got < projectBytes*9/10 || got > projectBytes {
		t.Errorf("%d bytes fit into %d", got, projectBytes)
	}
	must(t, os.WriteFile(filepath.Join(dir, "record"), []byte("not of the workspace"), 0o600))
	again := openPrivate(t, dir, staging)
	if _, err := os.Stat(filepath.Join(again.Path(), "fill")); err != nil {
		t.Errorf("opened again: %v", err)
	}
	if left := loops(t, dir); len(left) > 0 {
		t.Errorf("it has devices: %s", left)
	}
}

// testPrivateProjectRemoval: an id is free when nothing carries it any more, and not
// before.
func testPrivateProjectRemoval(t *testing.T) {
	dir, staging := privateHome(t)
	home := filepath.Dir(dir)
	d := openPrivate(t, dir, staging)
	id, err := workspace.ProjectOf(filepath.Join(dir, "workspace-x.project"))
	must(t, err)
	if id == 0 {
		t.Fatal("it has no id")
	}
	if free, err := workspace.ProjectIsFree(home, id); free || err != nil {
		t.Errorf("the id of a workspace is free: %v", err)
	}
	deep := filepath.Join(d.Path(), "a", "b", "c") // what is nested is moved on its network
	must(t, os.MkdirAll(deep, 0o700))
	must(t, os.WriteFile(filepath.Join(deep, "f"), []byte("x"), 0o600))
	held, err := os.Open(filepath.Join(deep, "f"))
	must(t, err)
	defer held.Close()
	must(t, d.Close())
	moved := filepath.Join(home, ".gone-sandbox")
	must(t, os.Rename(dir, moved))
	must(t, workspace.RemovePrivate(moved))
	if _, err := os.Lstat(moved); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the removal: %v", err)
	}
	if free, err := workspace.ProjectIsFree(home, id); free || err != nil {
		t.Errorf("an id is free that an open file carries: %v", err)
	}
	must(t, held.Close())
	if free, err := workspace.ProjectIsFree(home, id); !free || err != nil {
		t.Errorf("the id of a workspace that is gone is taken: %v", err)
	}
	must(t, workspace.RemovePrivate(moved)) // as after a crash
}

// testPrivateProjectCrash: whatever step of its making or removal was the last, a removal
// leaves nothing.
func testPrivateProjectCrash(t *testing.T) {
	const id = 0x5000_0001
	for name, left := range map[string]func(t *testing.T, project string) (uint32, error){
		"made":      func(*testing.T, string) (uint32, error) { return 0, nil },
		"has an id": func(_ *testing.T, project string) (uint32, error) { return id, workspace.SetProjectOf(project, id) },
		"half removed": func(t *testing.T, project string) (uint32, error) {
			must(t, os.Remove(project))
			dir := filepath.Dir(project)
			must(t, openPrivate(t, dir, filepath.Join(dir, "staging")).Close())
			must(t, os.Remove(filepath.Join(project, "files")))
			return workspace.ProjectOf(project)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _ := privateHome(t)
			project := filepath.Join(dir, "workspace-x.project")
			must(t, os.Mkdir(project, 0o700))
			took, err := left(t, project)
			must(t, err)
			must(t, workspace.RemovePrivate(dir))
			if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("after the removal: %v", err)
			}
			if free, err := workspace.ProjectIsFree(filepath.Dir(dir), took); took != 0 && (!free || err != nil) {
				t.Errorf("id %d is taken: %v", took, err)
			}
		})
	}
}

// testPrivateInAProject: a file in a project of another owner stays in that project, and
// gets no project of its own, whose files would be out of it. It has a disk.
func testPrivateInAProject(t *testing.T) {
	dir, staging := privateHome(t)
	must(t, workspace.SetProjectOf(dir, 7))
	if workspace.HasProjects(dir) {
		t.Error("a project within a project")
	}
	must(t, openPrivate(t, dir, staging).Close())
	if _, err := os.Lstat(filepath.Join(dir, "workspace-x.ext4")); err != nil {
		t.Error(err)
	}
	must(t, workspace.SetProjectOf(dir, 0)) // it stays what it was made as
	d := openPrivate(t, dir, staging)
	if _, err := os.Lstat(filepath.Join(dir, "workspace-x.project")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it has become a project: %v", err)
	}
	must(t, d.Close())
}
