//go:build linux

package guest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
)

// otherMount is a directory that is not in the root's mount.
func otherMount(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "mode-")
	if err != nil {
		t.Skipf("needs a directory in /dev/shm: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if f := openPlace(t, dir); inRoot(f) {
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
	if f := openPlace(t, "/"); !inRoot(f) {
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
			if err := setMode(fd, c.ask); err != nil {
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

// TestDropSetID: content that is changed in place takes the bits away, in the root too.
func TestDropSetID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("before"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Chmod(path, 0o6755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := &placedFile{here: f}
	if err := w.empty(); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&0o7777 != 0o755 || st.Size != 0 {
		t.Errorf("mode %o and %d bytes, %v", st.Mode&0o7777, st.Size, err)
	}
}

// TestUndoRestoresSharedDirectories: an import that is taken back leaves a directory
// set-group-ID that was so before.
func TestUndoRestoresSharedDirectories(t *testing.T) {
	dir := otherMount(t)
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := &swap{target: dirWalk{top: f}, meta: map[string]dirEnd{".": {name: ".", mode: 0o6775}}}
	if err := s.undo(false); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil || st.Mode&0o7777 != 0o2775 {
		t.Errorf("mode %o, want 2775 (%v)", st.Mode&0o7777, err)
	}
}

// TestCapabilitiesOfPrograms: the two sets, by their numbers. CAP_SETFCAP is in that of
// the sentry alone, whose kernel gives no file capabilities.
func TestCapabilitiesOfPrograms(t *testing.T) {
	for shared, want := range map[bool]uint64{false: 0xa00405fb, true: 0x200405eb} {
		if got := (identity.Identity{Shared: shared}).Caps(); got != want {
			t.Errorf("on a kernel of the host's, %v: %#x, want %#x", shared, got, want)
		}
	}
}

// TestOneFunctionSetsModes: no other code of the package changes a mode.
func TestOneFunctionSetsModes(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
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
					if name != "mode.go" || fn.Name.Name != "chmodFD" {
						t.Errorf("%s: %s changes a mode by %s; setMode does", name, fn.Name.Name, sel.Sel.Name)
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
