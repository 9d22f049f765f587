package workspace_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// named takes a workspace without bounds, gives it up again, and opens it.
func named(s *workspace.Store, tenant, name string) (*workspace.Dir, error) {
	if _, err := s.Attach(workspace.Wish{Tenant: tenant, Name: name}, workspace.Holder{Owner: "d-1", Sandbox: "sb-1"}); err != nil {
		return nil, err
	}
	if err := s.Detach(tenant, name, "d-1", "sb-1", false); err != nil {
		return nil, err
	}
	return s.Open(tenant, name, "")
}

func TestNamedIsMadeOnceAndKept(t *testing.T) {
	home := tempDir(t)
	s, err := workspace.Open(home)
	must(t, err)
	first, err := named(s, "local", "notes")
	must(t, err)
	defer first.Close()
	if want := filepath.Join(home, "workspaces", "local", "notes"); first.Path() != want {
		t.Errorf("path is %s, want %s", first.Path(), want)
	}
	must(t, os.WriteFile(filepath.Join(first.Path(), "kept"), nil, 0o600))
	again, err := workspace.Open(home)
	must(t, err)
	second, err := named(again, "local", "notes")
	must(t, err)
	defer second.Close()
	if _, err := os.Stat(filepath.Join(second.Path(), "kept")); err != nil {
		t.Error(err)
	}
	other, err := named(s, "tenant2", "notes")
	must(t, err)
	defer other.Close()
	if entries, _ := os.ReadDir(other.Path()); len(entries) != 0 {
		t.Error("a tenant sees the workspace of another")
	}
	for _, dir := range []string{"workspaces", "workspaces/local"} {
		if fi, err := os.Stat(filepath.Join(home, dir)); err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("%s: mode %v, error %v; others could enter", dir, fi.Mode(), err)
		}
	}
}

func TestNamedRefusesNames(t *testing.T) {
	s, err := workspace.Open(tempDir(t))
	must(t, err)
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/etc", "a\x00b", "UPPER", "ünï", "-x", strings.Repeat("a", 64)} {
		if _, err := named(s, "local", name); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("workspace %q: error %v, want invalid_argument", name, err)
		}
		if _, err := named(s, name, "notes"); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("tenant %q: error %v, want invalid_argument", name, err)
		}
	}
}

func TestNamedFollowsNoSymlink(t *testing.T) {
	home, target := tempDir(t), tempDir(t)
	s, err := workspace.Open(home)
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(home, "workspaces", "local"), 0o700))
	must(t, os.Symlink("/etc", filepath.Join(home, "workspaces", "local", "evil")))
	must(t, os.WriteFile(filepath.Join(home, "workspaces", "local", "file"), nil, 0o600))
	for _, name := range []string{"evil", "file"} {
		_, err := named(s, "local", name)
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Code != api.CodeInvalid || e.Field != "workspace.name" || e.Hint == "" {
			t.Errorf("workspace %s: error %#v, want invalid_argument for workspace.name with a hint", name, err)
		}
	}
	must(t, os.Symlink(target, filepath.Join(home, "workspaces", "mallory")))
	if d, err := named(s, "mallory", "notes"); err == nil {
		t.Errorf("a tenant's directory that is a symlink was followed to %s", d.Path())
	}
}

func TestPrivateNeedsAPrivateParent(t *testing.T) {
	dir := tempDir(t)
	d, err := workspace.Private(filepath.Join(dir, "workspace"))
	must(t, err)
	defer d.Close()
	if d.Path() != filepath.Join(dir, "workspace") {
		t.Errorf("path is %s", d.Path())
	}
	must(t, os.Chmod(dir, 0o755))
	if _, err := workspace.Private(filepath.Join(dir, "two")); err == nil {
		t.Error("a parent that others can enter was taken")
	}
}

func TestRootlessStagesThePathItself(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("needs a normal user: root stages a mount; TestAsNormalUser runs this")
	}
	dir := tempDir(t)
	src := filepath.Join(dir, "src")
	must(t, os.Mkdir(src, 0o755))
	d, err := workspace.OpenDir(src)
	must(t, err)
	defer d.Close()
	staged, err := d.Stage(dir, true)
	must(t, err)
	if staged.Path != src {
		t.Errorf("staged at %s, want %s", staged.Path, src)
	}
	must(t, staged.Close())
	must(t, os.Rename(src, src+"-old"))
	must(t, os.Symlink("/etc", src))
	if _, err := d.Stage(dir, true); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("replaced by a symlink: error %v, want invalid_argument", err)
	}
}

func TestOpenDirRefusals(t *testing.T) {
	dir := tempDir(t)
	must(t, os.Mkdir(filepath.Join(dir, "real"), 0o755))
	must(t, os.Mkdir(filepath.Join(dir, "real", "sub"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	must(t, os.Symlink("real", filepath.Join(dir, "link")))
	must(t, os.Symlink("/etc", filepath.Join(dir, "etc")))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	for _, path := range []string{
		"", "relative", "./x", "~/x", `C:\Users\x`, "c:/users", `\\server\share`, "/a/../b", "/a//b", "/a/", "/a\x00b",
		"/" + strings.Repeat("a/", 3000) + "a", filepath.Join(dir, "missing"), filepath.Join(dir, "file"),
		filepath.Join(dir, "file", "below"), filepath.Join(dir, "link"), filepath.Join(dir, "link", "sub"),
		filepath.Join(dir, "etc"), filepath.Join(dir, "fifo"), "/" + strings.Repeat("n", 300),
		"/proc", "/proc/self/fd", "/sys/kernel", "/dev/pts",
	} {
		d, err := workspace.OpenDir(path)
		if err == nil {
			t.Errorf("%.60q was opened as %s", path, d.Path())
			d.Close()
			continue
		}
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeInvalid || e.Message == "" {
			t.Errorf("%.60q: error %v, want invalid_argument with a message", path, err)
		}
	}
	d, err := workspace.OpenDir(filepath.Join(dir, "real"))
	must(t, err)
	defer d.Close()
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(dir, "real"), &st))
	if dev, ino := d.ID(); dev != st.Dev || ino != st.Ino {
		t.Errorf("id is %d:%d, want %d:%d", dev, ino, st.Dev, st.Ino)
	}
	if uid, gid := d.Owner(); int(uid) != os.Geteuid() || int(gid) != os.Getegid() {
		t.Errorf("owner is %d:%d", uid, gid)
	}
}

func FuzzNamed(f *testing.F) {
	for _, s := range []string{"a", "notes", "..", "a/../..", "\x00", ".hidden", "x.y-z_1", "A"} {
		f.Add(s, s)
	}
	home := f.TempDir()
	if err := os.Chmod(home, 0o700); err != nil {
		f.Fatal(err)
	}
	s, err := workspace.Open(home)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, tenant, name string) {
		d, err := named(s, tenant, name)
		if err != nil {
			return
		}
		defer d.Close()
		if want := home + "/workspaces/" + tenant + "/" + name; d.Path() != want || filepath.Clean(want) != want {
			t.Errorf("Named(%q, %q) is %s", tenant, name, d.Path())
		}
	})
}
