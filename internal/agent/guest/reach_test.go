//go:build linux

package guest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/test/longtest"
)

// TestWithinWhileItChanges has somebody exchange a directory for a link that leads out, and
// a file for one, as fast as can be. Nothing outside is ever read, changed or removed.
func TestWithinWhileItChanges(t *testing.T) {
	longtest.Skip(t, "it runs against races")
	in := boot(t, nil)
	top := placedTree(t)
	for _, name := range []string{"root/swap", "root/spare"} {
		if err := errors.Join(os.Mkdir(top+"/"+name, 0o755), os.WriteFile(top+"/"+name+"/secret", []byte("inside"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("../out", top+"/root/link"), os.Symlink(top+"/out/secret", top+"/root/leaf-link"), os.WriteFile(top+"/root/leaf", []byte("inside"), 0o644)); err != nil {
		t.Fatal(err)
	}
	stop, swapping := make(chan struct{}), sync.WaitGroup{}
	swapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = unix.Renameat2(unix.AT_FDCWD, top+"/root/swap", unix.AT_FDCWD, top+"/root/link", unix.RENAME_EXCHANGE)
			_ = unix.Renameat2(unix.AT_FDCWD, top+"/root/leaf", unix.AT_FDCWD, top+"/root/leaf-link", unix.RENAME_EXCHANGE)
		}
	})
	ctx := t.Context()
	fs := in.Files(api.FileAccess{Within: []string{top + "/root"}})
	place := func(name string) api.ToolPlace { return api.ToolPlace{Root: top + "/root", Path: name} }
	reads := 0
	for range 300 {
		for _, name := range []string{"swap/secret", "leaf"} {
			if r, _, err := fs.Read(ctx, top+"/root/"+name, 0, -1); err == nil {
				data, rerr := io.ReadAll(r)
				r.Close()
				if rerr == nil && string(data) != "inside" && string(data) != "new" {
					t.Fatalf("%s: %q was read", name, data)
				}
				reads++
			}
			if got, err := in.ReadText(ctx, api.ToolRead{ToolPlace: place(name)}); err == nil && strings.Contains(got.Content, "secret") {
				t.Fatalf("%s: %q was read by a tool", name, got.Content)
			}
			_, _ = in.WriteText(ctx, "", api.ToolWrite{ToolPlace: place(name), Content: "new"})
			_, _ = fs.Write(ctx, top+"/root/"+name, agent.WriteOptions{Parents: true}, strings.NewReader("new"))
		}
		_ = fs.MakeDir(ctx, top+"/root/swap/made/deep", "", api.MakeDirOptions{})
		_ = fs.Move(ctx, top+"/root/swap/made", top+"/root/swap/moved")
		_ = fs.Remove(ctx, top+"/root/swap/moved", api.RemoveFileOptions{Recursive: true})
	}
	close(stop)
	swapping.Wait()
	if reads == 0 {
		t.Error("nothing was ever read")
	}
	left, err := os.ReadDir(top + "/out")
	data, rerr := os.ReadFile(top + "/out/secret")
	if err := errors.Join(err, rerr); err != nil || len(left) != 1 || string(data) != "secret" {
		t.Errorf("outside: %v, %q, %v", left, data, err)
	}
}

// TestBindMounts are the places they are mounted at.
func TestBindMounts(t *testing.T) {
	top := placedTree(t)
	if err := os.Mkdir(top+"/root/mnt", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, m := range [][2]string{{top + "/out", top + "/root/mnt"}, {top + "/root/d", top + "/grant/fixed"}} {
		if err := unix.Mount(m[0], m[1], "", unix.MS_BIND, ""); err != nil {
			t.Skipf("needs mounts: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(m[1], unix.MNT_DETACH) })
	}
	in := boot(t, nil) // which sees the mounts that there were when it began
	fs := in.Files(api.FileAccess{Within: []string{top + "/root/d"}})
	if _, err := fs.Stat(t.Context(), top+"/grant/fixed/g", false); !errors.Is(err, api.ErrDenied) {
		t.Errorf("the same directory by another name: %v", err)
	}
	fs = in.Files(api.FileAccess{Within: []string{top + "/root"}})
	if st, err := fs.Stat(t.Context(), top+"/root/mnt/secret", false); err != nil || st.Size != 6 {
		t.Errorf("what is mounted within: %+v, %v", st, err)
	}
	if _, err := fs.Stat(t.Context(), top+"/root/mnt/../../out/secret", false); !errors.Is(err, api.ErrDenied) {
		t.Errorf("above a mount: %v", err)
	}
	if err := fs.Remove(t.Context(), top+"/root/mnt", api.RemoveFileOptions{}); errnoOf(err) != "EBUSY" {
		t.Errorf("remove a mount: %v", err)
	}
}

// FuzzFollow compares where paths lead with what the kernel says, and with what they are within.
func FuzzFollow(f *testing.F) {
	for _, s := range []string{"f", "a/../f", "l/f", "abs/f", "out", "out/secret", "a/./b//f", "loop", "up/../f", "none/../f", "f/", "l/", "../x", strings.Repeat("a/../", 50)} {
		f.Add(s)
	}
	top, err := filepath.EvalSymlinks(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	root := top + "/root"
	if err := errors.Join(os.MkdirAll(root+"/a/b", 0o755), os.WriteFile(root+"/f", nil, 0o644), os.WriteFile(root+"/a/b/f", nil, 0o644), os.WriteFile(top+"/x", nil, 0o644),
		os.Symlink("a/b", root+"/l"), os.Symlink(root+"/a", root+"/abs"), os.Symlink("..", root+"/up"), os.Symlink("../x", root+"/out"), os.Symlink("loop", root+"/loop"),
		os.Symlink("/proc/self/root", root+"/proc")); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if strings.ContainsRune(name, 0) || len(name) > 1000 {
			return
		}
		b, err := findBound(root, false)
		if err != nil {
			t.Fatal(err)
		}
		defer b.close()
		path := root + "/" + name
		s, err := bounds{b}.find(path, true)
		if err != nil {
			return
		}
		defer s.close()
		fd, kerr := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if !s.there {
			if !errors.Is(kerr, unix.ENOENT) {
				t.Fatalf("%q is not there, and the kernel says %v", name, kerr)
			}
			return
		}
		if kerr != nil {
			t.Fatalf("%q is there, and the kernel says %v", name, kerr)
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || idOf(&st) != idOf(&s.st) {
			t.Fatalf("%q leads elsewhere: %v", name, err)
		}
		real, err := os.Readlink(procFD(fd))
		if err != nil || real != root && !strings.HasPrefix(real, root+"/") {
			t.Fatalf("%q leads out, to %q: %v", name, real, err)
		}
		if got := "/" + strings.Join(s.names(), "/"); got != real {
			t.Fatalf("%q is %q, and was found at %q", name, real, got)
		}
	})
}

// TestBoundsAreDirectoriesNotNames: another directory that takes the name of the one that
// was named is outside, and so is all that a path reaches by it.
func TestBoundsAreDirectoriesNotNames(t *testing.T) {
	top := t.TempDir()
	name := filepath.Join(top, "a")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.Mkdir(name, 0o755))
	check(os.WriteFile(filepath.Join(name, "f"), nil, 0o644))
	b, err := findBound(name, false)
	check(err)
	defer b.close()
	s, err := bounds{b}.find(filepath.Join(name, "f"), true)
	check(err)
	s.close()
	check(os.Rename(name, filepath.Join(top, "gone")))
	check(os.Mkdir(name, 0o755))
	check(os.WriteFile(filepath.Join(name, "f"), nil, 0o644))
	for _, path := range []string{"a", "a/f", "a/new", "gone/f"} {
		if s, err := (bounds{b}).find(filepath.Join(top, path), true); !errors.Is(err, errLedOut) {
			t.Errorf("%s: %v", path, err)
			if err == nil {
				s.close()
			}
		}
	}
}

// TestNothingTakesThePlaceOfABound: a directory that a request names stays the one that it
// is, although it is empty and another could be moved onto it.
func TestNothingTakesThePlaceOfABound(t *testing.T) {
	in := boot(t, nil)
	top := t.TempDir()
	for _, dir := range []string{"empty", "other/d"} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	files := in.Files(api.FileAccess{Within: []string{filepath.Join(top, "empty"), filepath.Join(top, "other")}})
	for from, to := range map[string]string{"other/d": "empty", "empty": "other/e", "other": "empty/o"} {
		if err := files.Move(t.Context(), filepath.Join(top, from), filepath.Join(top, to)); api.CodeOf(err) != api.CodeDenied {
			t.Errorf("%s to %s: %v", from, to, err)
		}
	}
}
