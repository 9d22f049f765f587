package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
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

func TestBadArchives(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg} }
	long := tarOf(t, tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 5000})
	for what, c := range map[string]struct {
		tar    []byte
		limits Limits
		code   api.Code
	}{
		"upwards":         {tar: tarOf(t, file("../x")), code: api.CodeInvalid},
		"upwards inside":  {tar: tarOf(t, file("a/../b")), code: api.CodeInvalid},
		"link upwards":    {tar: tarOf(t, tar.Header{Name: "a", Typeflag: tar.TypeLink, Linkname: "../x"}), code: api.CodeInvalid},
		"link to nothing": {tar: tarOf(t, tar.Header{Name: "a", Typeflag: tar.TypeLink}), code: api.CodeInvalid},
		"empty symlink":   {tar: tarOf(t, tar.Header{Name: "a", Typeflag: tar.TypeSymlink}), code: api.CodeInvalid},
		"long symlink":    {tar: tarOf(t, tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("x", 5000)}), code: api.CodeInvalid},
		"root is a file":  {tar: tarOf(t, file("./.")), code: api.CodeInvalid},
		"too many":        {tar: tarOf(t, file("a"), file("b"), file("c")), limits: Limits{Entries: 2}, code: api.CodeTooLarge},
		"too large":       {tar: long, limits: Limits{Bytes: 4999}, code: api.CodeTooLarge},
		"too deep":        {tar: tarOf(t, file("a/b/c")), limits: Limits{Depth: 2}, code: api.CodeTooLarge},
		"long name":       {tar: tarOf(t, file("abc")), limits: Limits{NameLen: 2}, code: api.CodeTooLarge},
		"long path":       {tar: tarOf(t, file(strings.Repeat("abcd/", 900)+"x")), limits: Limits{Depth: 10_000}, code: api.CodeTooLarge},
		"gzip bomb":       {tar: gz(t, tarOf(t, tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 1 << 20})), limits: Limits{Ratio: 20, RatioFrom: 1000}, code: api.CodeTooLarge},
		"truncated":       {tar: long[:2000], code: api.CodeInvalid},
		"truncated gzip":  {tar: gz(t, long)[:50], code: api.CodeInvalid},
		"gzip of nothing": {tar: []byte("\x1f\x8b\x08\x00"), code: api.CodeInvalid},
		"noise":           {tar: bytes.Repeat([]byte("noise"), 1000), code: api.CodeInvalid},
		"unknown kind":    {tar: tarOf(t, tar.Header{Name: "a", Typeflag: 'Z'}), code: api.CodeInvalid},
		"xz":              {tar: []byte("\xfd7zXZ\x00........"), code: api.CodeUnsupported},
	} {
		t.Run(what, func(t *testing.T) {
			_, _, err := readTar(c.tar, TarOptions{Limits: c.limits})
			if api.CodeOf(err) != c.code || err == nil {
				t.Errorf("got %v, want %s", err, c.code)
			}
		})
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

// FuzzTar reads arbitrary archives: every path is clean and within, and no archive is
// larger than allowed.
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
		list, contents, _ := readAll(r)
		size := 0
		for _, c := range contents {
			size += len(c)
		}
		if len(list) > 100 || size > 1<<16 {
			t.Errorf("%d entries and %d bytes are over the limits", len(list), size)
		}
		for _, e := range list {
			if !fs.ValidPath(strings.ToValidUTF8(e.Path, "x")) {
				t.Errorf("path %q is not clean", e.Path)
			}
		}
		_, _ = Index(bytes.NewReader(raw), l)
	})
}
