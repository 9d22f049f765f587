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

// TestWithinWhileItChanges has a process exchange a directory for a link that leads out, and
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
