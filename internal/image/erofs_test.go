package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	erofs "github.com/erofs/go-erofs"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// encode writes t and reads it back.
func encode(tb testing.TB, tr *tree) (fs.FS, []byte) {
	tb.Helper()
	var buf bytes.Buffer
	must(tb, tr.write(&buf))
	if buf.Len()%blockSize != 0 {
		tb.Fatalf("image of %d bytes is not whole blocks", buf.Len())
	}
	fsys, err := erofs.Open(bytes.NewReader(buf.Bytes()))
	must(tb, err)
	return fsys, buf.Bytes()
}

// fsck has Debian's checker look at an image, where it is installed.
func fsck(t *testing.T, path string) {
	t.Helper()
	program, err := exec.LookPath("fsck.erofs")
	if err != nil {
		t.Log("fsck.erofs (erofs-utils) is not installed: its check is left out")
		return
	}
	if out, err := exec.CommandContext(t.Context(), program, "--extract", path).CombinedOutput(); err != nil {
		t.Errorf("fsck.erofs: %v\n%s", err, out)
	}
}

// sample has one of everything that the format treats differently.
func sample(t testing.TB) (*tree, map[string][]byte) {
	tr := newTree()
	files := map[string][]byte{}
	for _, size := range []int{0, 1, 5, 63, 64, 4031, 4032, 4033, 4095, 4096, 4097, 8192, 1<<20 + 1} {
		name := fmt.Sprintf("sizes/%d", size)
		files[name] = bytes.Repeat([]byte{byte(size), 'x', 0, 0xff}, size/4+1)[:size]
	}
	for i := range 2000 {
		files[fmt.Sprintf("many/%s-%d", strings.Repeat("n", i%200), i)] = fmt.Appendf(nil, "%d", i)
	}
	files["names/\xff\xfe\n"] = []byte("bytes")
	files["names/"+strings.Repeat("l", 255)] = []byte("long")
	files["names/!before-dot"] = []byte("sorts before .")
	files[strings.Repeat("deep/", 60)+"end"] = []byte("end")
	for name, data := range files {
		must(t, tr.text(name, 0o640, data))
	}
	must(t, tr.dir("empty", 0o1777))
	must(t, tr.ownedDir("owned", 0o700, 100_000, 65_536))
	return tr, files
}

func sampleLinks() []string {
	links := []string{"x", "/usr/bin", "../\xff"}
	for _, n := range []int{31, 32, 33, 4000, 4031, 4032, 4033, 4094, 4095} {
		links = append(links, strings.Repeat("t", n))
	}
	return links
}

func TestImageHoldsWhatWasPutIn(t *testing.T) {
	tr, files := sample(t)
	for i, target := range sampleLinks() {
		must(t, tr.symlink(fmt.Sprint("links/", i), target))
	}
	fsys, raw := encode(t, tr)
	for name, want := range files {
		got, err := fs.ReadFile(fsys, name)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%.40q: %d bytes, error %v; want %d bytes", name, len(got), err, len(want))
		}
		fi, err := fs.Stat(fsys, name)
		must(t, err)
		st := fi.Sys().(*erofs.Stat)
		if !fi.Mode().IsRegular() || fi.Mode().Perm() != 0o640 || st.UID != 0 || st.Nlink != 1 || st.InodeLayout != 0 || len(st.Xattrs) != 0 {
			t.Fatalf("%.40q: mode %v, %+v; want a plain file of root", name, fi.Mode(), st)
		}
	}
	if entries, err := fs.ReadDir(fsys, "many"); err != nil || len(entries) != 2000 {
		t.Errorf("%d entries in many (%v), want 2000", len(entries), err)
	}
	for i, want := range sampleLinks() {
		if got, err := fs.ReadLink(fsys, fmt.Sprint("links/", i)); err != nil || got != want {
			t.Errorf("link %d has %d bytes (%v), want %d", i, len(got), err, len(want))
		}
	}
	fi, err := fs.Stat(fsys, "owned")
	must(t, err)
	if st := fi.Sys().(*erofs.Stat); st.UID != 100_000 || st.GID != 65_536 || fi.Mode().Perm() != 0o700 {
		t.Errorf("owned is %+v", st)
	}
	if fi, err := fs.Stat(fsys, "empty"); err != nil || !fi.IsDir() || fi.Mode().Perm() != 0o777 {
		t.Errorf("empty has mode %v (%v)", fi.Mode(), err)
	}
	path := filepath.Join(t.TempDir(), "i.erofs")
	must(t, os.WriteFile(path, raw, 0o600))
	fsck(t, path)
}

func TestEqualTreesGiveEqualImages(t *testing.T) {
	one, _ := sample(t)
	two, _ := sample(t)
	_, a := encode(t, one)
	_, b := encode(t, two)
	if !bytes.Equal(a, b) {
		t.Error("two images of the same content differ")
	}
}

func TestTreeRefusals(t *testing.T) {
	tr := newTree()
	must(t, tr.text("file", 0o644, nil))
	must(t, tr.dir("dir", 0o755))
	for name, err := range map[string]error{
		"root":          tr.text("/", 0o644, nil),
		"below a file":  tr.text("file/below", 0o644, nil),
		"twice":         tr.text("file", 0o644, nil),
		"file on dir":   tr.text("dir", 0o644, nil),
		"dir on file":   tr.dir("file", 0o755),
		"long name":     tr.dir(strings.Repeat("x", 256), 0o755),
		"empty target":  tr.symlink("l", ""),
		"long target":   tr.symlink("l", strings.Repeat("x", 4096)),
		"NUL in name":   tr.dir("a\x00b", 0o755),
		"NUL in target": tr.symlink("l", "a\x00b"),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestShortSourceIsAnError(t *testing.T) {
	tr := newTree()
	must(t, tr.file("f", 0o644, 10, func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("short")), nil }))
	if err := tr.write(io.Discard); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error %v, want unexpected EOF", err)
	}
}

func FuzzImage(f *testing.F) {
	f.Add("a\nb/c\nb/d", "content", uint16(7))
	f.Add("x/y/z\nx\x00", "", uint16(0))
	f.Add("..\n.\n//\n-", strings.Repeat("z", 5000), uint16(0xffff))
	f.Fuzz(func(t *testing.T, names, content string, perm uint16) {
		if len(names) > 4096 || len(content) > 1<<16 {
			return
		}
		tr := newTree()
		want := map[string]string{}
		for i, name := range strings.Split(names, "\n") {
			clean := strings.Trim(filepath.Clean("/"+name), "/")
			if strings.ContainsRune(name, 0) {
				if tr.text(name, perm&0o7777, nil) == nil {
					t.Errorf("%q was taken", name)
				}
				continue
			}
			data := content + fmt.Sprint(i)
			if tr.text(name, perm&0o7777, []byte(data)) == nil {
				want[clean] = data
			}
		}
		fsys, _ := encode(t, tr)
		for name, data := range want {
			if !fs.ValidPath(name) {
				continue // not a name for io/fs
			}
			if got, err := fs.ReadFile(fsys, name); err != nil || string(got) != data {
				t.Errorf("%q: %q, %v; want %q", name, got, err, data)
			}
		}
	})
}
