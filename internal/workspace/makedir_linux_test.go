package workspace_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/workspace"
)

func openTest(t *testing.T, path string) *workspace.Dir {
	t.Helper()
	d, err := workspace.OpenDir(path)
	must(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

func TestOpenDirMakeBelow(t *testing.T) {
	dir := tempDir(t)
	above, me := openTest(t, dir), os.Geteuid()
	must(t, os.Mkdir(filepath.Join(dir, "there"), 0o755))
	d, made, err := above.MakeBelow("there/a/b", me)
	must(t, err)
	if d.Path() != filepath.Join(dir, "there/a/b") {
		t.Errorf("opened %s", d.Path())
	}
	for _, p := range []string{"there/a", "there/a/b"} {
		fi, err := os.Lstat(filepath.Join(dir, p))
		must(t, err)
		if fi.Mode() != os.ModeDir|0o700 {
			t.Errorf("%s is %v", p, fi.Mode())
		}
	}
	// What is used by then stays, and so does what was there.
	must(t, os.WriteFile(filepath.Join(dir, "there/a/f"), nil, 0o600))
	must(t, made.Undo())
	made.Close()
	must(t, d.Close())
	if _, err := os.Lstat(filepath.Join(dir, "there/a/b")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the empty one is left: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "there/a/f")); err != nil {
		t.Error(err)
	}
}

func TestOpenDirMakeBelowRefuses(t *testing.T) {
	dir, outside := tempDir(t), tempDir(t)
	above, me := openTest(t, dir), os.Geteuid()
	must(t, os.Symlink(outside, filepath.Join(dir, "link")))
	must(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	for _, c := range []struct {
		rel   string
		owner int
		code  api.Code
	}{
		{"link/x", me, api.CodeInvalid},
		{"new/../../x", me, api.CodeInternal},
		{"dangling", me, api.CodeInvalid},
		{"file/x", me, api.CodeInvalid},
		{"made/here/", me, api.CodeInternal},
		{"x", -1, api.CodeDenied},
	} {
		_, _, err := above.MakeBelow(c.rel, c.owner)
		if api.CodeOf(err) != c.code {
			t.Errorf("%q for %d: %v, want %s", c.rel, c.owner, err, c.code)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
		t.Errorf("made outside: %v, %v", left, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 3 {
		t.Errorf("left inside: %v, %v", left, err)
	}
	if me != 0 {
		if _, _, err := above.MakeBelow("x", 0); api.CodeOf(err) != api.CodeDenied {
			t.Errorf("for root: %v", err)
		}
	}
}

// A directory that root makes for a user belongs to the user when it appears, also where the user
// could not have made it.
func TestMakeBelowForAnother(t *testing.T) {
	needRoot(t)
	dir := tempDir(t)
	above := openTest(t, dir)
	d, made, err := above.MakeBelow("one/two", 4242)
	must(t, err)
	defer made.Close()
	defer d.Close()
	for _, p := range []string{"one", "one/two"} {
		fi, err := os.Lstat(filepath.Join(dir, p))
		must(t, err)
		if st := fi.Sys().(*syscall.Stat_t); st.Uid != 4242 || st.Gid != 4242 || fi.Mode().Perm() != 0o700 {
			t.Errorf("%s: %d:%d %v", p, st.Uid, st.Gid, fi.Mode())
		}
	}
	// It exists and has another owner at the second call.
	if _, _, err := above.MakeBelow("one/two", 4243); api.CodeOf(err) != api.CodeDenied {
		t.Errorf("another owner: %v", err)
	}
	again, none, err := above.MakeBelow("one/two", 4242)
	must(t, err)
	again.Close()
	must(t, none.Undo())
	none.Close()
	if _, err := os.Lstat(filepath.Join(dir, "one/two")); err != nil {
		t.Errorf("what another call made is gone: %v", err)
	}
	// This thread and all others are root as before.
	must(t, os.Mkdir(filepath.Join(dir, "mine"), 0o700))
	fi, err := os.Lstat(filepath.Join(dir, "mine"))
	must(t, err)
	if fi.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Error("a thread stays somebody else")
	}
}
