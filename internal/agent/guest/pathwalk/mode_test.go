//go:build linux

package pathwalk

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// otherMount is a directory that is not in the root's mount.
func otherMount(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "mode-")
	if err != nil {
		t.Skipf("needs a directory in /dev/shm: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if f := openPlace(t, dir); InRoot(f) {
		t.Skip("needs /dev/shm to be a mount of its own")
	}
	return dir
}

// openPlace opens a path as a place only.
func openPlace(t *testing.T, name string) int {
	t.Helper()
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// TestSetMode: no mode leaves a set-id file in a mount, whatever the descriptor is.
func TestSetMode(t *testing.T) {
	if f := openPlace(t, "/"); !InRoot(f) {
		t.Error("the root is not in the root")
	}
	dir := otherMount(t)
	for _, c := range []struct {
		name              string
		dir               bool
		before, ask, want uint32
	}{
		{"plain", false, 0o600, 0o755, 0o755},
		{"set-user-ID", false, 0o600, 0o4755, 0o755},
		{"set-group-ID", false, 0o600, 0o2755, 0o755},
		{"all bits", false, 0o600, 0o7777, 0o1777},
		{"set-id already", false, 0o4755, 0o4711, 0o711},
		{"set-group-ID file already", false, 0o2755, 0o2755, 0o755},
		{"directory", true, 0o700, 0o6775, 0o775},
		{"sticky directory", true, 0o700, 0o1777, 0o1777},
		{"shared directory", true, 0o2755, 0o6770, 0o2770},
		{"shared directory as it is", true, 0o2755, 0o2755, 0o2755},
		{"shared no more", true, 0o2755, 0o755, 0o755},
	} {
		for flag, as := range map[int]string{unix.O_PATH: "place", unix.O_RDONLY: "open"} {
			path := filepath.Join(dir, c.name+" "+as)
			var err error
			if c.dir {
				err = os.Mkdir(path, 0o700)
			} else {
				err = os.WriteFile(path, nil, 0o600)
			}
			if err == nil {
				err = unix.Chmod(path, c.before)
			}
			if err != nil {
				t.Fatal(err)
			}
			fd, err := unix.Open(path, flag|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := SetMode(fd, c.ask); err != nil {
				t.Errorf("%s, %s: %v", c.name, as, err)
			}
			_ = unix.Close(fd)
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil || st.Mode&0o7777 != c.want {
				t.Errorf("%s, %s: mode %o, want %o (%v)", c.name, as, st.Mode&0o7777, c.want, err)
			}
		}
	}
}

// TestOneFunctionSetsModes: no other code of the agent changes a mode.
func TestOneFunctionSetsModes(t *testing.T) {
	var files []string
	err := filepath.WalkDir("..", func(name string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if ok && strings.Contains(strings.ToLower(sel.Sel.Name), "chmod") {
					found++
					if name != "../pathwalk/mode.go" || fn.Name.Name != "chmodFD" {
						t.Errorf("%s: %s changes a mode by %s; pathwalk.SetMode does", name, fn.Name.Name, sel.Sel.Name)
					}
				}
				return true
			})
		}
	}
	if found != 2 {
		t.Errorf("%d calls that change a mode, want the two of chmodFD", found)
	}
}
