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

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/vmtest"
	"github.com/cloche-dev/cloche/internal/vmtest/plan"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// TestUnderAnotherKernel runs the tests of this package, and those of projects among
// them, on a filesystem with project quotas: in a virtual machine where this kernel
// has none.
func TestUnderAnotherKernel(t *testing.T) {
	if why := vmtest.Missing(vmtest.EnvKernel, 6, 1); why != "" {
		t.Skip(why)
	}
	needRoot(t)
	self, err := os.Executable()
	must(t, err)
	passed := vmtest.Test(t, vmtest.Machine{
		Modules: []string{"loop", "overlay"},
		Files:   map[string]string{"/test": self},
		DiskMB:  1024, MemoryMB: 1024,
		Commands: []plan.Command{{
			Name: "root", Argv: []string{"/test", "-test.v", "-test.timeout=8m", "-test.run=^Test(Project|Named|LayerWithin|Rollback|Fill)"},
			Env: []string{"PATH=/bin", "HOME=/root"},
		}},
	})
	for _, ran := range []string{"TestProject/bounds", "TestProject/layer", "TestProject/fill", "TestProject/removal", "TestProject/moved", "TestNamedCreateListRemove"} {
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
}

// openNew makes a workspace with bounds and opens its files.
func openNew(t *testing.T, s *workspace.Store, name string) *workspace.Dir {
	t.Helper()
	info, err := s.Create(workspace.Wish{Tenant: "acme", Name: name, Bounds: workspace.Bounds{SizeBytes: projectBytes, Inodes: projectInodes}})
	must(t, err)
	if info.Enforced != cloche.HeldByKernel {
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
		data[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
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
	if _, err := s.Get("acme", "one"); !errors.Is(err, cloche.ErrNotFound) {
		t.Errorf("after the removal: %v", err)
	}
}

// testProjectMoved: files that were copied to where nobody bounds them are not taken
// for bounded.
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
	if _, err := s.Open("acme", "one", t.TempDir()); cloche.CodeOf(err) != cloche.CodeUnsupported {
		t.Errorf("opened without its bounds: %v", err)
	}
}
