package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	erofs "github.com/erofs/go-erofs"
	gerofs "gvisor.dev/gvisor/pkg/erofs"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
)

// build makes a root filesystem of tars without a registry.
func build(t testing.TB, s *Store, l archive.Limits, layers ...[]byte) (rootFile, error) {
	t.Helper()
	var sources []layerSource
	for _, raw := range layers {
		sources = append(sources, layerSource{open: opened(raw)})
	}
	return s.assemble(t.Context(), sources, l, func([]string) string { return filepath.Join(t.TempDir(), "root.erofs") }, func() {})
}

// contentOf shows the tree of an image, except for what every image is given.
func contentOf(t testing.TB, fsys fs.FS) map[string]string {
	t.Helper()
	got := map[string]string{}
	must(t, fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := fs.Lstat(fsys, name)
		if err != nil {
			return err
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := fs.ReadLink(fsys, name)
			got[name] = "-> " + target
			return err
		case d.IsDir():
			got[name] = "dir"
		default:
			data, err := fs.ReadFile(fsys, name)
			got[name] = string(data)
			return err
		}
		return nil
	}))
	for _, given := range []string{".", "dev", "proc", "sys", "tmp", "run", "etc", ".cloche", "root", "etc/passwd", "etc/group", "etc/hosts", "etc/hostname", "etc/resolv.conf"} {
		delete(got, given)
	}
	return got
}

func TestLayersAreMerged(t *testing.T) {
	dir := func(name string) file { return file{name: name, typ: tar.TypeDir} }
	link := func(name, target string) file { return file{name: name, typ: tar.TypeSymlink, link: target} }
	hard := func(name, target string) file { return file{name: name, typ: tar.TypeLink, link: target} }
	for what, c := range map[string]struct {
		layers [][]file
		want   map[string]string
	}{
		"a file is replaced":                     {[][]file{{{name: "a", body: "1"}}, {{name: "a", body: "22"}}}, map[string]string{"a": "22"}},
		"a directory stays":                      {[][]file{{dir("d"), {name: "d/a", body: "1"}}, {dir("d"), {name: "d/b", body: "2"}}}, map[string]string{"d": "dir", "d/a": "1", "d/b": "2"}},
		"a file replaces a directory":            {[][]file{{{name: "d/a", body: "1"}}, {{name: "d", body: "2"}}}, map[string]string{"d": "2"}},
		"a directory replaces a file":            {[][]file{{{name: "d", body: "1"}}, {dir("d"), {name: "d/a", body: "2"}}}, map[string]string{"d": "dir", "d/a": "2"}},
		"a directory replaces a symlink":         {[][]file{{dir("x"), link("d", "x")}, {dir("d"), {name: "d/a", body: "2"}}}, map[string]string{"d": "dir", "d/a": "2", "x": "dir"}},
		"whiteout":                               {[][]file{{{name: "d/a", body: "1"}, {name: "d/b", body: "1"}}, {{name: "d/.wh.a"}}}, map[string]string{"d": "dir", "d/b": "1"}},
		"whiteout of a directory":                {[][]file{{{name: "d/a/b", body: "1"}}, {{name: "d/.wh.a"}}}, map[string]string{"d": "dir"}},
		"whiteout spares its own layer":          {[][]file{{{name: "a", body: "1"}}, {{name: "a", body: "2"}, {name: ".wh.a"}}}, map[string]string{"a": "2"}},
		"whiteout of nothing":                    {[][]file{{{name: "a", body: "1"}}, {{name: "x/y/.wh.z"}}}, map[string]string{"a": "1"}},
		"whiteout goes through a symlink":        {[][]file{{{name: "usr/lib/a", body: "1"}, link("lib", "usr/lib")}, {{name: "lib/.wh.a"}}}, map[string]string{"usr": "dir", "usr/lib": "dir", "lib": "-> usr/lib"}},
		"opaque":                                 {[][]file{{{name: "d/a", body: "1"}, {name: "d/e/f", body: "1"}}, {{name: "d/b", body: "2"}, {name: "d/.wh..wh..opq"}}}, map[string]string{"d": "dir", "d/b": "2"}},
		"opaque spares its own layer":            {[][]file{{{name: "d/a", body: "1"}}, {{name: "d/.wh..wh..opq"}, {name: "d/a", body: "2"}}}, map[string]string{"d": "dir", "d/a": "2"}},
		"what AUFS kept":                         {[][]file{{{name: "a", body: "1"}, {name: ".wh..wh.aufs"}, {name: ".wh..wh.plnk/x", body: "1"}}}, nil},
		"hard link":                              {[][]file{{{name: "a", body: "1"}, hard("b", "a")}}, map[string]string{"a": "1", "b": "1"}},
		"hard link to a lower layer":             {[][]file{{{name: "a", body: "1"}}, {hard("d/b", "a")}}, map[string]string{"a": "1", "d": "dir", "d/b": "1"}},
		"hard link outlives the first name":      {[][]file{{{name: "a", body: "1"}, hard("b", "a")}, {{name: ".wh.a"}}}, map[string]string{"b": "1"}},
		"hard link to a symlink":                 {[][]file{{link("a", "x"), hard("b", "a")}}, map[string]string{"a": "-> x", "b": "-> x"}},
		"absolute hard link":                     {[][]file{{{name: "d/a", body: "1"}, hard("/b", "/d/a")}}, map[string]string{"d": "dir", "d/a": "1", "b": "1"}},
		"an absolute name is below the root":     {[][]file{{{name: "/a", body: "1"}, {name: "./b", body: "1"}, {name: "//c//d", body: "1"}}}, map[string]string{"a": "1", "b": "1", "c": "dir", "c/d": "1"}},
		"through a symlink":                      {[][]file{{dir("usr/lib"), link("lib", "usr/lib")}, {{name: "lib/a", body: "1"}}}, map[string]string{"usr": "dir", "usr/lib": "dir", "lib": "-> usr/lib", "usr/lib/a": "1"}},
		"through an absolute symlink":            {[][]file{{link("d/lib", "/usr"), {name: "d/lib/a", body: "1"}}}, map[string]string{"d": "dir", "d/lib": "-> /usr", "usr": "dir", "usr/a": "1"}},
		"a symlink does not lead out":            {[][]file{{link("up", "../../../.."), {name: "up/a", body: "1"}}}, map[string]string{"up": "-> ../../../..", "a": "1"}},
		"devices and FIFOs are left out":         {[][]file{{{name: "n", typ: tar.TypeChar}, {name: "b", typ: tar.TypeBlock}, {name: "f", typ: tar.TypeFifo}, {name: "a", body: "1"}}}, map[string]string{"a": "1"}},
		"odd names":                              {[][]file{{{name: "\xff\n", body: "1"}, {name: "a\\b", body: "1"}, {name: " ", body: "1"}, {name: "...", body: "1"}}}, map[string]string{"\xff\n": "1", "a\\b": "1", " ": "1", "...": "1"}},
		"an empty image":                         {[][]file{{}}, nil},
		"a name that begins with .wh in a layer": {[][]file{{{name: "d/a", body: "1"}}, {{name: "d/.what", body: "1"}}}, map[string]string{"d": "dir", "d/a": "1", "d/.what": "1"}},
	} {
		t.Run(what, func(t *testing.T) {
			var raw [][]byte
			for _, l := range c.layers {
				raw = append(raw, layerTar(t, l...))
			}
			root, err := build(t, images(t), archive.Limits{}, raw...)
			must(t, err)
			got := contentOf(t, open(t, root.path))
			if what == "what AUFS kept" {
				c.want = map[string]string{"a": "1", ".wh..wh.plnk": "dir", ".wh..wh.plnk/x": "1"}
			}
			if !maps.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			fsck(t, root.path)
		})
	}
}

func TestBadLayers(t *testing.T) {
	var deep, long strings.Builder
	for range 300 {
		deep.WriteString("d/")
	}
	long.WriteString(strings.Repeat("n", 256))
	var nested []file // each symlink twice as deep as the one before
	nested = append(nested, file{name: strings.Repeat("d/", 200), typ: tar.TypeDir}, file{name: "l0", typ: tar.TypeSymlink, link: strings.Repeat("d/", 200)})
	for i := range 12 {
		nested = append(nested, file{name: fmt.Sprintf("l%d/%s", i, strings.Repeat("e/", 200)), typ: tar.TypeDir},
			file{name: fmt.Sprintf("l%d", i+1), typ: tar.TypeSymlink, link: fmt.Sprintf("l%d/%s", i, strings.Repeat("e/", 200))})
	}
	for what, c := range map[string]struct {
		files  []file
		limits archive.Limits
		code   api.Code
	}{
		"upwards":                {[]file{{name: "../etc/passwd", body: "x"}}, archive.Limits{}, api.CodeInvalid},
		"upwards inside":         {[]file{{name: "a/../../b", body: "x"}}, archive.Limits{}, api.CodeInvalid},
		"hard link upwards":      {[]file{{name: "a", typ: tar.TypeLink, link: "../../etc/shadow"}}, archive.Limits{}, api.CodeInvalid},
		"hard link to nothing":   {[]file{{name: "a", typ: tar.TypeLink, link: "etc/shadow"}}, archive.Limits{}, api.CodeInvalid},
		"hard link to directory": {[]file{{name: "d", typ: tar.TypeDir}, {name: "a", typ: tar.TypeLink, link: "d"}}, archive.Limits{}, api.CodeInvalid},
		"symlink loop":           {[]file{{name: "a", typ: tar.TypeSymlink, link: "b"}, {name: "b", typ: tar.TypeSymlink, link: "a"}, {name: "a/x", body: "x"}}, archive.Limits{}, api.CodeInvalid},
		"below a file":           {[]file{{name: "a", body: "x"}, {name: "a/b", body: "x"}}, archive.Limits{}, api.CodeInvalid},
		"whiteout of the parent": {[]file{{name: "d/.wh..", body: ""}}, archive.Limits{}, api.CodeInvalid},
		"whiteout of nothing":    {[]file{{name: "d/.wh.", body: ""}}, archive.Limits{}, api.CodeInvalid},
		"too deep":               {[]file{{name: deep.String() + "x", body: "x"}}, archive.Limits{}, api.CodeTooLarge},
		"too deep by symlinks":   {nested, archive.Limits{}, api.CodeTooLarge},
		"long name":              {[]file{{name: long.String(), body: "x"}}, archive.Limits{}, api.CodeTooLarge},
		"too many":               {[]file{{name: "a"}, {name: "b"}, {name: "c"}}, archive.Limits{Entries: 2}, api.CodeTooLarge},
		"too large":              {[]file{{name: "a", body: "four"}, {name: "b", body: "four"}}, archive.Limits{Bytes: 7}, api.CodeTooLarge},
		"the root is a file":     {[]file{{name: ".", body: "x"}}, archive.Limits{}, api.CodeInvalid},
		"the root is a link":     {[]file{{name: "./", typ: tar.TypeSymlink, link: "/etc"}}, archive.Limits{}, api.CodeInvalid},
	} {
		t.Run(what, func(t *testing.T) {
			s := images(t)
			_, err := build(t, s, c.limits, layerTar(t, c.files...))
			wantError(t, err, c.code, false)
			nothingVisible(t, s)
		})
	}
	whole := layerTar(t, file{name: "a", body: strings.Repeat("x", 5000)})
	for what, raw := range map[string][]byte{"truncated": whole[:3000], "noise": bytes.Repeat([]byte("noise"), 1000), "no gzip": []byte("\x1f\x8bnonsense"), "no zstd": []byte("\x28\xb5\x2f\xfdnonsense")} {
		t.Run(what, func(t *testing.T) {
			s := images(t)
			_, err := build(t, s, archive.Limits{}, raw)
			wantError(t, err, api.CodeInvalid, false)
			nothingVisible(t, s)
		})
	}
}

func TestAttributesOfFiles(t *testing.T) {
	at := time.Date(2020, 2, 29, 1, 2, 3, 456789000, time.UTC)
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range []*tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o711, Uid: 7},
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777, ModTime: at},
		{Name: "su", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 100_000, Gid: 65_537, ModTime: at},
		{Name: "ping", Typeflag: tar.TypeReg, Mode: 0o755, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "\x01"}},
		{Name: "ping2", Typeflag: tar.TypeReg, Mode: 0o755, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "\x01"}},
		{Name: "null", Typeflag: tar.TypeChar, Mode: 0o666},
		{Name: "su2", Typeflag: tar.TypeLink, Linkname: "su"},
		{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "su", Uid: 5, ModTime: at},
	} {
		h.Format = tar.FormatPAX
		must(t, w.WriteHeader(h))
	}
	must(t, w.Close())
	root, err := build(t, images(t), archive.Limits{}, buf.Bytes())
	must(t, err)
	fsys := open(t, root.path)
	for name, want := range map[string]struct {
		mode     fs.FileMode
		uid, gid uint32
		links    int
		at       time.Time
	}{
		".":    {fs.ModeDir | 0o711, 7, 0, 0, time.Unix(0, 0)},
		"tmp":  {fs.ModeDir | fs.ModeSticky | 0o777, 0, 0, 0, at},
		"su":   {fs.ModeSetuid | 0o755, 100_000, 65_537, 2, at},
		"su2":  {fs.ModeSetuid | 0o755, 100_000, 65_537, 2, at},
		"ping": {0o755, 0, 0, 1, time.Unix(0, 0)},
		"link": {fs.ModeSymlink | 0o777, 5, 0, 1, at},
	} {
		info, err := fs.Lstat(fsys, name)
		must(t, err)
		st := info.Sys().(*erofs.Stat)
		if info.Mode().Perm() != want.mode.Perm() || info.Mode().Type() != want.mode.Type() || st.UID != want.uid || st.GID != want.gid || want.links > 0 && int(st.Nlink) != want.links {
			t.Errorf("%s: mode %v, %+v; want %+v", name, info.Mode(), st, want)
		}
		if name != "." && !info.ModTime().Equal(want.at) {
			t.Errorf("%s: time %v, want %v", name, info.ModTime(), want.at)
		}
	}
	if want := []string{"the attribute security.capability of /ping is left out, and of 1 more", "the device of /null is left out"}; !slices.Equal(root.notes, want) {
		t.Errorf("notes %q, want %q", root.notes, want)
	}
	f, err := os.Open(root.path)
	must(t, err)
	img, err := gerofs.OpenImage(f)
	must(t, err)
	defer img.Close()
	one, two := lookUp(t, img, "su"), lookUp(t, img, "su2")
	if one.Nid() != two.Nid() || one.Mode() != modeFile|0o4755 || one.Mtime() != uint64(at.Unix()) || one.MtimeNsec() != 456789000 {
		t.Errorf("su is %d and %d, mode %o, time %d.%d", one.Nid(), two.Nid(), one.Mode(), one.Mtime(), one.MtimeNsec())
	}
}

// TestEntriesWithoutATime have the time 0, as everything that an image adds.
func TestEntriesWithoutATime(t *testing.T) {
	if n := entryNode(archive.Entry{Kind: archive.File}); n.sec != 0 || n.nsec != 0 {
		t.Errorf("the time is %d.%d", n.sec, n.nsec)
	}
	if n := entryNode(archive.Entry{Kind: archive.File, ModTime: time.Unix(7, 9)}); n.sec != 7 || n.nsec != 9 {
		t.Errorf("the time is %d.%d, want 7.9", n.sec, n.nsec)
	}
}

func TestWhatProgramsExpectIsAdded(t *testing.T) {
	root, err := build(t, images(t), archive.Limits{}, layerTar(t, file{name: "app", body: "x"}))
	must(t, err)
	fsys := open(t, root.path)
	for _, name := range []string{"etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf", "etc/hostname"} {
		if data, err := fs.ReadFile(fsys, name); err != nil || len(data) == 0 {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if info, err := fs.Stat(fsys, "tmp"); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("tmp: %v", err)
	}
	root, err = build(t, images(t), archive.Limits{}, layerTar(t, file{name: "etc/passwd", body: "me"}, file{name: "etc/hosts"}, file{name: "etc/hostname", body: "mine"},
		file{name: "etc/resolv.conf", typ: tar.TypeSymlink, link: "/run/x"}, file{name: "tmp", typ: tar.TypeDir, mode: 0o700}))
	must(t, err)
	fsys = open(t, root.path)
	for name, want := range map[string]string{"etc/passwd": "me", "etc/hostname": "mine"} {
		if data, _ := fs.ReadFile(fsys, name); string(data) != want {
			t.Errorf("%s was changed to %q", name, data)
		}
	}
	if data, _ := fs.ReadFile(fsys, "etc/hosts"); !strings.Contains(string(data), "localhost") {
		t.Errorf("an empty etc/hosts stayed %q", data)
	}
	if target, err := fs.ReadLink(fsys, "etc/resolv.conf"); err != nil || target != "/run/x" {
		t.Errorf("etc/resolv.conf: %q, %v", target, err)
	}
	if _, err := fs.Stat(fsys, "etc/group"); err == nil {
		t.Error("an image with users of its own was given groups")
	}
	if _, err := build(t, images(t), archive.Limits{}, layerTar(t, file{name: "etc", typ: tar.TypeSymlink, link: "nowhere"})); err != nil {
		t.Error(err)
	}
}

// What an upper layer replaced occupies nothing.
func TestDeadContentIsFreed(t *testing.T) {
	big := strings.Repeat("content ", 1<<20)
	root, err := build(t, images(t), archive.Limits{}, layerTar(t, file{name: "a", body: big}, file{name: "b", body: big}),
		layerTar(t, file{name: "a", body: "small"}), layerTar(t, file{name: ".wh.b"}, file{name: "z", body: strings.Repeat("\x00", 10<<20)}))
	must(t, err)
	if root.disk > 1<<20 {
		t.Errorf("the image occupies %d bytes", root.disk)
	}
	fsys := open(t, root.path)
	if data, err := fs.ReadFile(fsys, "z"); err != nil || len(data) != 10<<20 || len(bytes.Trim(data, "\x00")) != 0 {
		t.Errorf("zeros: %d bytes, %v", len(data), err)
	}
	if data, _ := fs.ReadFile(fsys, "a"); string(data) != "small" {
		t.Errorf("a is %.20q", data)
	}
	fsck(t, root.path)
}

func TestAMillionEmptyFiles(t *testing.T) {
	r, w := io.Pipe()
	go func() {
		buf := bufio.NewWriterSize(w, 1<<20)
		tw := tar.NewWriter(buf)
		for i := range 1_000_000 {
			if tw.WriteHeader(&tar.Header{Name: fmt.Sprintf("d%d/f%d", i%100, i), Typeflag: tar.TypeReg}) != nil {
				return
			}
		}
		_ = tw.Close()
		_ = buf.Flush()
		_ = w.Close()
	}()
	s := images(t)
	_, err := s.assemble(t.Context(), []layerSource{{open: openedReader(r)}}, archive.Limits{}, nil, func() {})
	r.Close()
	wantError(t, err, api.CodeTooLarge, false, "more than 500000 entries")
	nothingVisible(t, s)
}

// FuzzMerge makes an image of layers that mean something only by chance, and has
// gVisor's reader walk what comes of it.
func FuzzMerge(f *testing.F) {
	f.Add("fa\nda/b\nla/b/c=/x\nha/d=a", "fa/.wh.b\nfd/.wh..wh..opq\nf../x")
	f.Add("la=b\nlb=a\nfa/x", "da\nfa/y\nha/z=a/y")
	f.Add("ddddd\nl.=x\nf.", "f/\nd..\nf.wh.\nf.wh..")
	f.Fuzz(func(t *testing.T, one, two string) {
		if len(one)+len(two) > 4096 {
			return
		}
		var layers [][]layerEntry
		for _, text := range []string{one, two} {
			var buf bytes.Buffer
			w := tar.NewWriter(&buf)
			for line := range strings.Lines(text) {
				line = strings.TrimSuffix(line, "\n")
				if line == "" {
					continue
				}
				name, target, _ := strings.Cut(line[1:], "=")
				h := &tar.Header{Name: name, Linkname: target, Mode: 0o7777, Format: tar.FormatPAX}
				h.Typeflag = map[byte]byte{'f': tar.TypeReg, 'd': tar.TypeDir, 'l': tar.TypeSymlink, 'h': tar.TypeLink, 'c': tar.TypeChar}[line[0]]
				if h.Typeflag == 0 || w.WriteHeader(h) != nil {
					return
				}
			}
			if w.Close() != nil {
				return
			}
			var lost dropped
			entries, _, err := readLayer(t.Context(), &buf, "", archive.NewBudget(archive.Limits{}), &contents{}, &lost)
			if err != nil {
				return
			}
			layers = append(layers, entries)
		}
		tr := newTree()
		for _, l := range layers {
			if tr.merge(l) != nil {
				return
			}
		}
		if _, err := tr.complete(); err != nil {
			t.Fatal(err)
		}
		fsys, _ := encode(t, tr)
		for name := range contentOf(t, fsys) {
			if name = path.Clean(name); name == ".." || strings.HasPrefix(name, "../") || path.IsAbs(name) {
				t.Errorf("%q leads out", name)
			}
		}
	})
}
