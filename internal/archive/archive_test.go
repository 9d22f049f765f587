package archive

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/cloche-dev/cloche/api"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tarOf makes a tar of headers, each with its size in bytes of content.
func tarOf(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		h.Format = tar.FormatPAX
		must(t, w.WriteHeader(&h))
		_, err := w.Write(bytes.Repeat([]byte("x"), int(h.Size)))
		must(t, err)
	}
	must(t, w.Close())
	return buf.Bytes()
}

type zipped struct {
	name, body string
	mode       fs.FileMode
}

func zipOf(t testing.TB, files ...zipped) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate}
		if f.mode != 0 {
			h.SetMode(f.mode)
		}
		b, err := w.CreateHeader(h)
		must(t, err)
		_, err = io.WriteString(b, f.body)
		must(t, err)
	}
	must(t, w.Close())
	return buf.Bytes()
}

// readAll reads an archive to its end.
func readAll(r *Reader) (list []Entry, contents []string, err error) {
	for {
		e, err := r.Next()
		if err == io.EOF {
			return list, contents, nil
		}
		if err != nil {
			return list, contents, err
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return list, contents, err
		}
		list, contents = append(list, e), append(contents, string(data))
	}
}

func readTar(raw []byte, o TarOptions) ([]Entry, []string, error) {
	r, err := OpenTar(bytes.NewReader(raw), o)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	return readAll(r)
}

func readZip(raw []byte, l Limits) ([]Entry, []string, error) {
	r, err := OpenZip(bytes.NewReader(raw), int64(len(raw)), l)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	return readAll(r)
}

func gz(t testing.TB, raw []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, err := w.Write(raw)
	must(t, errors.Join(err, w.Close()))
	return buf.Bytes()
}

func TestTar(t *testing.T) {
	at := time.Unix(1_600_000_000, 123_456_000)
	raw := tarOf(t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "/d//e/./f", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 70_000, Gid: 5, Size: 3, ModTime: at, PAXRecords: map[string]string{"SCHILY.xattr.user.a": "b"}},
		tar.Header{Name: "empty", Typeflag: tar.TypeReg},
		tar.Header{Name: "s", Typeflag: tar.TypeSymlink, Linkname: "../../x"},
		tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "/d/e/f"},
		tar.Header{Name: "c", Typeflag: tar.TypeChar},
		tar.Header{Name: "p", Typeflag: tar.TypeFifo},
		tar.Header{Name: strings.Repeat("n/", 60) + strings.Repeat("l", 200), Typeflag: tar.TypeReg, Size: 1},
	)
	z, err := zstd.NewWriter(nil)
	must(t, err)
	for what, packed := range map[string][]byte{"plain": raw, "gzip": gz(t, raw), "zstd": z.EncodeAll(raw, nil)} {
		t.Run(what, func(t *testing.T) {
			sum := sha256.New()
			list, contents, err := readTar(packed, TarOptions{Plain: sum})
			must(t, err)
			if want := sha256.Sum256(raw); !bytes.Equal(sum.Sum(nil), want[:]) {
				t.Error("the digest of the uncompressed tar is another")
			}
			if len(list) != 8 || contents[1] != "xxx" || list[0].Path != "." || list[0].Kind != Dir {
				t.Fatalf("%+v %q", list, contents)
			}
			f := list[1]
			if f.Path != "d/e/f" || f.Kind != File || f.Mode != 0o4755 || f.UID != 70_000 || f.GID != 5 || !f.ModTime.Equal(at) || f.Xattrs["user.a"] != "b" {
				t.Errorf("%+v", f)
			}
			if list[3].Target != "../../x" || list[4].Target != "d/e/f" || list[5].Kind != Device || list[6].Kind != FIFO {
				t.Errorf("%+v", list[3:])
			}
		})
	}
	index, err := Index(bytes.NewReader(raw), Limits{})
	must(t, err)
	for _, e := range index {
		if e.Kind == File && e.Size > 0 && raw[e.Offset] != 'x' {
			t.Errorf("%s is not at %d", e.Path, e.Offset)
		}
	}
	if len(index) != 8 {
		t.Errorf("%d entries", len(index))
	}
}

func TestZip(t *testing.T) {
	raw := zipOf(t, zipped{name: "d/", mode: fs.ModeDir | 0o755}, zipped{name: "d/a", body: "content", mode: 0o640}, zipped{name: "l", body: "d/a", mode: fs.ModeSymlink | 0o777},
		zipped{name: "p", mode: fs.ModeNamedPipe}, zipped{name: `w\b`, body: "x"}, zipped{name: "/abs", body: "y", mode: 0o600})
	list, contents, err := readZip(raw, Limits{})
	must(t, err)
	var got []string
	for i, e := range list {
		got = append(got, fmt.Sprintf("%s %s %o %s %s", e.Kind, e.Path, e.Mode, e.Target, contents[i]))
	}
	want := []string{"directory d 755  ", "file d/a 640  content", "symlink l 777 d/a ", "FIFO p 0  ", "file w/b 644  x", "file abs 600  y"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestBadArchives(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg} }
	long := tarOf(t, tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 5000})
	damaged := zipOf(t, zipped{name: "a", body: strings.Repeat("some text ", 100), mode: 0o600})
	stored := bytes.Clone(damaged)
	stored[35] ^= 0xff // in the compressed content
	for what, c := range map[string]struct {
		tar, zip []byte
		limits   Limits
		code     api.Code
	}{
		"upwards":            {tar: tarOf(t, file("../x")), code: api.CodeInvalid},
		"upwards in zip":     {zip: zipOf(t, zipped{name: "../x"}), code: api.CodeInvalid},
		"upwards by \\":      {zip: zipOf(t, zipped{name: `..\x`}), code: api.CodeInvalid},
		"upwards inside":     {tar: tarOf(t, file("a/../b")), code: api.CodeInvalid},
		"link upwards":       {tar: tarOf(t, tar.Header{Name: "a", Typeflag: tar.TypeLink, Linkname: "../x"}), code: api.CodeInvalid},
		"link to nothing":    {tar: tarOf(t, tar.Header{Name: "a", Typeflag: tar.TypeLink}), code: api.CodeInvalid},
		"empty symlink":      {tar: tarOf(t, tar.Header{Name: "a", Typeflag: tar.TypeSymlink}), code: api.CodeInvalid},
		"long symlink":       {tar: tarOf(t, tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("x", 5000)}), code: api.CodeInvalid},
		"root is a file":     {tar: tarOf(t, file("./.")), code: api.CodeInvalid},
		"too many":           {tar: tarOf(t, file("a"), file("b"), file("c")), limits: Limits{Entries: 2}, code: api.CodeTooLarge},
		"too many in zip":    {zip: zipOf(t, zipped{name: "a"}, zipped{name: "b"}, zipped{name: "c"}), limits: Limits{Entries: 2}, code: api.CodeTooLarge},
		"too large":          {tar: long, limits: Limits{Bytes: 4999}, code: api.CodeTooLarge},
		"too deep":           {tar: tarOf(t, file("a/b/c")), limits: Limits{Depth: 2}, code: api.CodeTooLarge},
		"long name":          {tar: tarOf(t, file("abc")), limits: Limits{NameLen: 2}, code: api.CodeTooLarge},
		"long path":          {tar: tarOf(t, file(strings.Repeat("abcd/", 900)+"x")), limits: Limits{Depth: 10_000}, code: api.CodeTooLarge},
		"gzip bomb":          {tar: gz(t, tarOf(t, tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 1 << 20})), limits: Limits{Ratio: 20, RatioFrom: 1000}, code: api.CodeTooLarge},
		"zip bomb":           {zip: zipOf(t, zipped{name: "a", body: strings.Repeat("\x00", 1<<20)}), limits: Limits{Ratio: 20, RatioFrom: 1000}, code: api.CodeTooLarge},
		"truncated":          {tar: long[:2000], code: api.CodeInvalid},
		"truncated gzip":     {tar: gz(t, long)[:50], code: api.CodeInvalid},
		"gzip of nothing":    {tar: []byte("\x1f\x8b\x08\x00"), code: api.CodeInvalid},
		"noise":              {tar: bytes.Repeat([]byte("noise"), 1000), code: api.CodeInvalid},
		"noise as zip":       {zip: bytes.Repeat([]byte("noise"), 1000), code: api.CodeInvalid},
		"truncated zip":      {zip: damaged[:len(damaged)-10], code: api.CodeInvalid},
		"damaged zip":        {zip: stored, code: api.CodeInvalid},
		"unknown kind":       {tar: tarOf(t, tar.Header{Name: "a", Typeflag: 'Z'}), code: api.CodeInvalid},
		"xz":                 {tar: []byte("\xfd7zXZ\x00........"), code: api.CodeUnsupported},
		"bytes in all files": {zip: zipOf(t, zipped{name: "a", body: "12345"}, zipped{name: "b", body: "12345"}), limits: Limits{Bytes: 9}, code: api.CodeTooLarge},
	} {
		t.Run(what, func(t *testing.T) {
			var err error
			if c.zip != nil {
				_, _, err = readZip(c.zip, c.limits)
			} else {
				_, _, err = readTar(c.tar, TarOptions{Limits: c.limits})
			}
			if api.CodeOf(err) != c.code || err == nil {
				t.Errorf("got %v, want %s", err, c.code)
			}
		})
	}
}

// The size in a zip's directory is what somebody wrote there.
func TestZipThatLies(t *testing.T) {
	raw := zipOf(t, zipped{name: "a", body: strings.Repeat("x", 1000), mode: 0o600})
	i := bytes.LastIndex(raw, []byte("PK\x01\x02"))
	raw[i+24], raw[i+25] = 10, 0
	if _, _, err := readZip(raw, Limits{}); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func TestBudgetIsShared(t *testing.T) {
	b := NewBudget(Limits{Entries: 3})
	raw := tarOf(t, tar.Header{Name: "a", Typeflag: tar.TypeReg}, tar.Header{Name: "b", Typeflag: tar.TypeReg})
	if _, _, err := readTar(raw, TarOptions{Budget: b}); err != nil {
		t.Error(err)
	}
	if _, _, err := readTar(raw, TarOptions{Budget: b}); api.CodeOf(err) != api.CodeTooLarge {
		t.Errorf("got %v", err)
	}
}

func extract(t *testing.T, dir string, x Extractor, raw []byte) (Report, error) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	x.Root = root
	r, err := OpenTar(bytes.NewReader(raw), TarOptions{})
	must(t, err)
	defer r.Close()
	return x.Extract(t.Context(), r)
}

func TestExtract(t *testing.T) {
	at := time.Unix(1_600_000_000, 0)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "old"), []byte("old"), 0o600))
	rep, err := extract(t, dir, Extractor{}, tarOf(t,
		tar.Header{Name: "d", Typeflag: tar.TypeDir, Mode: 0o500, ModTime: at},
		tar.Header{Name: "d/a", Typeflag: tar.TypeReg, Mode: 0o4640, Size: 3, ModTime: at},
		tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "d/a"},
		tar.Header{Name: "s", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		tar.Header{Name: "x/y/z", Typeflag: tar.TypeReg, Mode: 0o600, Size: 1},
		tar.Header{Name: "old", Typeflag: tar.TypeReg, Mode: 0o600, Size: 1},
		tar.Header{Name: "p", Typeflag: tar.TypeFifo},
		tar.Header{Name: "c", Typeflag: tar.TypeChar},
	))
	must(t, err)
	if rep.Entries != 6 || rep.Bytes != 5 || len(rep.Skipped) != 2 {
		t.Errorf("%+v", rep)
	}
	a, err := os.Stat(filepath.Join(dir, "d/a"))
	must(t, err)
	h, err := os.Stat(filepath.Join(dir, "h"))
	must(t, err)
	d, err := os.Stat(filepath.Join(dir, "d"))
	must(t, err)
	if !os.SameFile(a, h) || a.Mode() != 0o640 || !a.ModTime().Equal(at) || d.Mode().Perm() != 0o500 || !d.ModTime().Equal(at) {
		t.Errorf("%v %v %v %v", a.Mode(), a.ModTime(), d.Mode(), d.ModTime())
	}
	if data, _ := os.ReadFile(filepath.Join(dir, "old")); string(data) != "x" {
		t.Errorf("old is %q", data)
	}
	if target, err := os.Readlink(filepath.Join(dir, "s")); err != nil || target != "/etc/passwd" {
		t.Errorf("%q %v", target, err)
	}
	must(t, os.Chmod(filepath.Join(dir, "d"), 0o700))
}

func TestExtractFollowsNoSymlink(t *testing.T) {
	for what, headers := range map[string][]tar.Header{
		"its own symlink":            {{Name: "s", Typeflag: tar.TypeSymlink, Linkname: "TARGET"}, {Name: "s/x", Typeflag: tar.TypeReg, Size: 1}},
		"one that is there":          {{Name: "there/x", Typeflag: tar.TypeReg, Size: 1}},
		"one in the directory":       {{Name: "d", Typeflag: tar.TypeDir}, {Name: "s", Typeflag: tar.TypeSymlink, Linkname: "d"}, {Name: "s/x", Typeflag: tar.TypeReg, Size: 1}},
		"a directory over a symlink": {{Name: "there", Typeflag: tar.TypeDir, Mode: 0o777}},
		"a hard link through one":    {{Name: "h", Typeflag: tar.TypeLink, Linkname: "there/secret"}},
		"a hard link to nothing":     {{Name: "h", Typeflag: tar.TypeLink, Linkname: "nothing"}},
		"a file over a directory":    {{Name: "dir", Typeflag: tar.TypeReg}},
	} {
		t.Run(what, func(t *testing.T) {
			dir, outside := t.TempDir(), t.TempDir()
			must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600))
			must(t, os.Symlink(outside, filepath.Join(dir, "there")))
			must(t, os.Mkdir(filepath.Join(dir, "dir"), 0o700))
			for i := range headers {
				headers[i].Linkname = strings.Replace(headers[i].Linkname, "TARGET", outside, 1)
			}
			_, err := extract(t, dir, Extractor{}, tarOf(t, headers...))
			if !errors.Is(err, api.ErrInvalid) {
				t.Errorf("got %v", err)
			}
			left, err := os.ReadDir(outside)
			must(t, err)
			info, err := os.Stat(outside)
			must(t, err)
			if len(left) != 1 || runtime.GOOS != "windows" && info.Mode().Perm()&0o022 != 0 {
				t.Errorf("outside there are %v, mode %v", left, info.Mode())
			}
		})
	}
	// A symlink in the way of a file is replaced, and where it leads stays.
	dir, outside := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "f"), []byte("secret"), 0o600))
	must(t, os.Symlink(filepath.Join(outside, "f"), filepath.Join(dir, "f")))
	_, err := extract(t, dir, Extractor{}, tarOf(t, tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: 1, Mode: 0o600}))
	must(t, err)
	if data, _ := os.ReadFile(filepath.Join(outside, "f")); string(data) != "secret" {
		t.Errorf("outside it is %q", data)
	}
}

// FuzzTar extracts what anybody may have written: nothing may appear outside, and
// nothing may be larger than allowed.
func FuzzTar(f *testing.F) {
	f.Add(tarOf(f, tar.Header{Name: "a/b", Typeflag: tar.TypeReg, Size: 5}, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, tar.Header{Name: "l/x", Typeflag: tar.TypeReg}))
	f.Add(gz(f, tarOf(f, tar.Header{Name: "../x", Typeflag: tar.TypeReg, Size: 5}, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "a"})))
	f.Add([]byte("\x28\xb5\x2f\xfd"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		l := Limits{Entries: 100, Bytes: 1 << 16, Ratio: 50, RatioFrom: 1 << 12, Depth: 8, NameLen: 50}
		r, err := OpenTar(bytes.NewReader(raw), TarOptions{Limits: l})
		if err != nil {
			return
		}
		defer r.Close()
		extractAll(t, r)
		_, _ = Index(bytes.NewReader(raw), l)
	})
}

// FuzzZip is FuzzTar for zip.
func FuzzZip(f *testing.F) {
	f.Add(zipOf(f, zipped{name: "a/b", body: "content"}, zipped{name: "l", body: "..", mode: fs.ModeSymlink | 0o777}, zipped{name: "l/x"}))
	f.Add([]byte("PK\x05\x06"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := OpenZip(bytes.NewReader(raw), int64(len(raw)), Limits{Entries: 100, Bytes: 1 << 16, Ratio: 50, RatioFrom: 1 << 12, Depth: 8, NameLen: 50})
		if err != nil {
			return
		}
		defer r.Close()
		extractAll(t, r)
	})
}

func extractAll(t *testing.T, r *Reader) {
	t.Helper()
	dir := t.TempDir()
	inside := filepath.Join(dir, "in", "side")
	must(t, os.MkdirAll(inside, 0o700))
	root, err := os.OpenRoot(inside)
	must(t, err)
	defer root.Close()
	rep, _ := Extractor{Root: root}.Extract(t.Context(), r)
	if rep.Entries > 100 || rep.Bytes > 1<<16 {
		t.Errorf("%+v is over the limits", rep)
	}
	for _, d := range []string{dir, filepath.Join(dir, "in")} {
		if left, _ := os.ReadDir(d); len(left) != 1 {
			t.Errorf("%s holds %v", d, left)
		}
	}
	_ = filepath.WalkDir(inside, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(p, 0o700) // so that it can be removed
		}
		return nil
	})
}
