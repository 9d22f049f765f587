//go:build linux

package hostrootfs

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	erofs "github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"
)

// writeImage writes an image with one file of that content and mode.
func writeImage(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := erofs.Create(f)
	if err := w.Mkdir("/dir", 0o750); err != nil {
		t.Fatal(err)
	}
	in, err := w.Create("/dir/file")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := in.Chmod(mode); err != nil {
		t.Fatal(err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// unpackedDir is where an image is unpacked.
func unpackedDir(t *testing.T, im *Images, path string) string {
	t.Helper()
	fd, dir, err := im.Mount(path)
	if err != nil || fd >= 0 || dir == "" {
		t.Fatalf("mount %s: %d, %q, %v", path, fd, dir, err)
	}
	return dir
}

// TestUnpack: an image that the kernel does not mount is unpacked once, with its modes, and
// anew when its file is another one. What is unpacked of a file that is there stays, and goes
// with the file.
func TestUnpack(t *testing.T) {
	im := NewImages(filepath.Join(t.TempDir(), "roots"), false)
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	writeImage(t, first, "one", 0o640)
	a := unpackedDir(t, im, first)
	for name, want := range map[string]fs.FileMode{"dir/file": 0o640, "dir": fs.ModeDir | 0o750} {
		if info, err := os.Stat(filepath.Join(a, name)); err != nil || info.Mode() != want {
			t.Errorf("%s is %v, %v, and %v in the image", name, info, err, want)
		}
	}
	if again := unpackedDir(t, im, first); again != a {
		t.Errorf("one image is unpacked at %s and %s", a, again)
	}
	// Of another one nothing is touched.
	writeImage(t, second, "two", 0o600)
	b := unpackedDir(t, im, second)
	if _, err := os.Stat(filepath.Join(a, "dir/file")); err != nil || a == b {
		t.Errorf("the first image is at %s, %v, the second at %s", a, err, b)
	}
	// The same name and size, and another time.
	if err := os.Chtimes(first, time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	c := unpackedDir(t, im, first)
	if c == a {
		t.Error("a file that was changed has what was unpacked before")
	}
	if _, err := os.Stat(a); !os.IsNotExist(err) {
		t.Errorf("what nobody has any more is there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(b, "dir/file")); err != nil {
		t.Errorf("what is unpacked of a file that is there is gone: %v", err)
	}
}

// TestMountImages: the kernel's mount of an image is read-only and opens no devices, and no
// more superblocks are kept than there may be.
func TestMountImages(t *testing.T) {
	dir := t.TempDir()
	im := NewImages(filepath.Join(dir, "roots"), os.Geteuid() == 0)
	if !im.Mounted() {
		t.Skip("needs root and a kernel that mounts files of EROFS")
	}
	t.Cleanup(im.Close)
	for n := range maxImageMounts + 2 {
		path := filepath.Join(dir, string(rune('a'+n)))
		writeImage(t, path, path, 0o600)
		fd, unpacked, err := im.Mount(path)
		if err != nil {
			t.Fatal(err)
		}
		if fd < 0 {
			t.Skipf("needs a filesystem whose files the kernel mounts: unpacked at %s", unpacked)
		}
		var st unix.Statfs_t
		err = unix.Fstatfs(fd, &st)
		_ = unix.Close(fd)
		if err != nil || st.Flags&unix.ST_RDONLY == 0 || st.Flags&unix.ST_NODEV == 0 {
			t.Errorf("the mount has the flags %#x, %v", st.Flags, err)
		}
	}
	if len(im.mounts) != maxImageMounts {
		t.Errorf("%d superblocks are kept, of %d", len(im.mounts), maxImageMounts)
	}
}
