package image

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

// TestPathsOfLayersAreBounded: a path of a layer may be as deep, lead through as many
// symlinks and have names as long as the bounds say, and no more.
func TestPathsOfLayersAreBounded(t *testing.T) {
	links := func(n int) *tree {
		tr := newTree()
		must(t, tr.dir("l0", 0o755))
		for i := range n {
			must(t, tr.symlink(fmt.Sprintf("l%d", i+1), fmt.Sprintf("l%d", i)))
		}
		return tr
	}
	walked := func(steps int) *tree {
		tr := newTree()
		tr.steps = steps
		return tr
	}
	linked := walked(maxSteps - 3)
	must(t, linked.dir("real", 0o755))
	must(t, linked.symlink("link", "real"))
	tooLong := strings.Repeat("n", maxNameLen+1)
	for what, c := range map[string]struct {
		tree *tree
		name string
		code api.Code
	}{
		"40 symlinks":         {tree: links(maxLinks), name: fmt.Sprintf("l%d", maxLinks)},
		"41 symlinks":         {links(maxLinks + 1), fmt.Sprintf("l%d", maxLinks+1), api.CodeInvalid},
		"the deepest":         {tree: newTree(), name: strings.Repeat("d/", maxTreeDepth-1)},
		"deeper":              {newTree(), strings.Repeat("d/", maxTreeDepth), api.CodeTooLarge},
		"the last step":       {tree: walked(maxSteps - 2), name: "a/b"},
		"a step more":         {walked(maxSteps - 1), "a/b", api.CodeTooLarge},
		"a step of a symlink": {linked, "link/x/y/z", api.CodeTooLarge},
		"the longest name":    {tree: newTree(), name: tooLong[1:] + "/x"},
		"a longer name":       {newTree(), tooLong + "/x", api.CodeInvalid},
	} {
		t.Run(what, func(t *testing.T) {
			got, err := c.tree.find(c.name, true)
			if c.code != "" {
				wantError(t, err, c.code, false)
			} else if err != nil || got == nil {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	if n, err := newTree().find(tooLong, false); n != nil || err != nil {
		t.Errorf("a name that is too long to exist is found as %v, %v", n, err)
	}
}

// TestCopiesOfEtcAreBounded: the host image takes as many files, levels and bytes of /etc
// as the bounds say.
func TestCopiesOfEtcAreBounded(t *testing.T) {
	root := t.TempDir()
	put(t, root, "etc/one", "four", 0o644)
	put(t, root, "etc/large", strings.Repeat("x", maxCopyFile), 0o644)
	put(t, root, "etc/larger", strings.Repeat("x", maxCopyFile+1), 0o644)
	put(t, root, "etc/program", "x", 0o755)
	put(t, root, "etc/closed", "x", 0o750)
	put(t, root, "etc/dir/x", "x", 0o644)
	must(t, os.MkdirAll(filepath.Join(root, "etc/listed"), 0o755))
	must(t, os.Chmod(filepath.Join(root, "etc/listed"), 0o754))
	must(t, os.Symlink("one", filepath.Join(root, "etc/link")))
	for what, c := range map[string]struct {
		name  string
		depth int
		count int
		total int64
		fails bool
		mode  uint16 // 0 is left out
	}{
		"a file":        {name: "one", mode: modeFile | 0o444},
		"a program":     {name: "program", mode: modeFile | 0o555},
		"closed":        {name: "closed"},
		"listed":        {name: "listed"},
		"large":         {name: "large", mode: modeFile | 0o444},
		"larger":        {name: "larger"},
		"missing":       {name: "missing", count: maxCopyCount},
		"the last":      {name: "one", count: maxCopyCount - 1, mode: modeFile | 0o444},
		"one more":      {name: "one", count: maxCopyCount, fails: true},
		"the deepest":   {name: "one", depth: maxCopyDepth, mode: modeFile | 0o444},
		"deeper":        {name: "one", depth: maxCopyDepth + 1, fails: true},
		"deeper below":  {name: "dir", depth: maxCopyDepth, fails: true},
		"all bytes":     {name: "one", total: maxCopyTotal - 4, mode: modeFile | 0o444},
		"a byte more":   {name: "one", total: maxCopyTotal - 3, fails: true},
		"a link":        {name: "link", mode: modeSymlink | 0o777},
		"a link inside": {name: "link", depth: 1, mode: modeSymlink | 0o777},
	} {
		t.Run(what, func(t *testing.T) {
			cp := &copier{ctx: t.Context(), host: hostView{root: root}, tree: newTree(), count: c.count, total: c.total}
			if err := cp.copy("etc/"+c.name, c.depth); (err != nil) != c.fails {
				t.Fatal(err)
			}
			n := cp.tree.lookup("etc/" + c.name)
			if c.mode == 0 && n != nil && !c.fails || c.mode != 0 && (n == nil || n.mode != c.mode) {
				t.Errorf("the image has %+v", n)
			}
			// A link in a directory changes with its directory, which is looked at.
			if noted := len(cp.sources) > 0; noted == (what == "a link inside") {
				t.Errorf("looked at %v", cp.sources)
			}
		})
	}
}

// TestFilesThatChangeAreLeftOut: a file that changed after it was looked at is left
// out of the host image, which is made again at the next look.
func TestFilesThatChangeAreLeftOut(t *testing.T) {
	root := t.TempDir()
	put(t, root, "etc/file", "x", 0o644)
	info, err := os.Lstat(filepath.Join(root, "etc/file"))
	must(t, err)
	must(t, os.Symlink("file", filepath.Join(root, "etc/link")))
	must(t, unix.Mkfifo(filepath.Join(root, "etc/fifo"), 0o644))
	c := &copier{ctx: t.Context(), host: hostView{root: root}, tree: newTree()}
	for _, name := range []string{"etc/gone", "etc/link", "etc/fifo"} {
		if err := c.copyFile(name, info); err != nil || c.tree.lookup(name) != nil {
			t.Errorf("%s that was a file: %v", name, err)
		}
	}
	for _, name := range []string{"etc/gone", "etc/file"} {
		if err := c.link(name); err != nil || c.tree.lookup(name) != nil {
			t.Errorf("%s that was a link: %v", name, err)
		}
	}
	dir, err := os.Lstat(root)
	must(t, err)
	if err := c.copyDir("etc/gone", dirInfo{dir}, 0); err != nil {
		t.Error(err)
	}
	if _, err := readSmall(filepath.Join(root, "etc")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory is read: %v", err)
	}
	put(t, root, "grown", strings.Repeat("x", maxCopyFile+1), 0o644)
	if _, err := readSmall(filepath.Join(root, "grown")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that grew is read: %v", err)
	}
	put(t, root, "large", strings.Repeat("x", maxCopyFile), 0o644)
	if data, err := readSmall(filepath.Join(root, "large")); err != nil || len(data) != maxCopyFile {
		t.Errorf("%d bytes are read: %v", len(data), err)
	}
}

// dirInfo is a directory that all may read.
type dirInfo struct{ fs.FileInfo }

func (dirInfo) Mode() fs.FileMode { return fs.ModeDir | 0o755 }

// packBase packs paths as BuildBase does, and returns the entries of the tar.
func packBase(t *testing.T, pack func(b *baseBuilder) error) ([]tar.Header, error) {
	t.Helper()
	root, err := os.OpenRoot("/")
	must(t, err)
	defer root.Close()
	var raw bytes.Buffer
	w := tar.NewWriter(&raw)
	b := &baseBuilder{packer: packer{ctx: t.Context(), tar: w, root: root, first: map[[2]uint64]string{}}, done: map[string]bool{}, libraries: libraryDirs()}
	if err := pack(b); err != nil {
		return nil, err
	}
	must(t, w.Close())
	return entriesOf(t, &raw), nil
}

func entriesOf(t *testing.T, r io.Reader) (all []tar.Header) {
	t.Helper()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		must(t, err)
		all = append(all, *h)
	}
}

// TestBuildBaseIsBounded: a base image follows as many symlinks and takes as many levels
// as the bounds say, and has each entry once.
func TestBuildBaseIsBounded(t *testing.T) {
	dir := realDir(t)
	put(t, dir, "l0/file", "x", 0o644)
	for i := range maxLinks + 1 {
		must(t, os.Symlink(fmt.Sprintf("l%d", i), filepath.Join(dir, fmt.Sprintf("l%d", i+1))))
	}
	put(t, dir, "bad", "\x7fELF, and no more", 0o755)
	put(t, dir, "script", "#!"+dir+"/l1/file -x\n", 0o755)
	put(t, dir, "relative", "#!l0/file\n", 0o755)
	put(t, dir, "blank", "#! \n", 0o755)
	inside := func(name string) string { return strings.TrimPrefix(dir, "/") + "/" + name }
	for n, fails := range map[int]bool{maxLinks: false, maxLinks + 1: true} {
		entries, err := packBase(t, func(b *baseBuilder) error { return b.add(inside(fmt.Sprintf("l%d/file", n))) })
		if (err != nil) != fails || !fails && !slices.ContainsFunc(entries, func(h tar.Header) bool { return h.Name == inside("l0/file") }) {
			t.Errorf("through %d symlinks: %v", n, err)
		}
	}
	for depth, fails := range map[int]bool{maxDirDepth: false, maxDirDepth + 1: true} {
		if _, err := packBase(t, func(b *baseBuilder) error { return b.addDir(inside("l0"), depth) }); (err != nil) != fails {
			t.Errorf("at %d levels: %v", depth, err)
		}
	}
	entries, err := packBase(t, func(b *baseBuilder) error {
		for _, name := range []string{"script", "l2/file", "l0", "", "script", "relative", "blank", "bad"} {
			if err := b.add(inside(name)); err != nil {
				return err
			}
		}
		return nil
	})
	must(t, err)
	seen := map[string]int{}
	for _, h := range entries {
		seen[strings.TrimSuffix(h.Name, "/")]++
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s is packed %d times", name, n)
		}
	}
	for _, name := range []string{"script", "l1", "l2", "l0", "l0/file", "relative", "blank", "bad", "l41"} {
		if seen[inside(name)] != 1 {
			t.Errorf("%s is not packed", name)
		}
	}
	for _, h := range entries {
		if strings.HasSuffix(h.Name, "/l2") && (h.Typeflag != tar.TypeSymlink || h.Linkname != "l1") {
			t.Errorf("l2 is %+v", h)
		}
	}
}

// TestInterpretersAreBounded: the name of an interpreter is shorter than a page.
func TestInterpretersAreBounded(t *testing.T) {
	dir := realDir(t)
	for length, taken := range map[int]bool{4094: true, 4095: false} { // and a zero
		put(t, dir, "program", dynamic(t, elf.EM_X86_64, "/"+strings.Repeat("i", length-1)), 0o755)
		var needs []string
		_, err := packBase(t, func(b *baseBuilder) (err error) {
			needs, err = b.needs(strings.TrimPrefix(dir, "/") + "/program")
			return err
		})
		must(t, err)
		if taken != (len(needs) == 1 && len(needs[0]) == length) || !taken && len(needs) != 0 {
			t.Errorf("with an interpreter of %d bytes it needs %d things", length, len(needs))
		}
	}
	// A segment of another type names no interpreter.
	raw := []byte(dynamic(t, elf.EM_X86_64, "/ld.so"))
	binary.LittleEndian.PutUint32(raw[64:], uint32(elf.PT_NOTE))
	put(t, dir, "note", string(raw), 0o755)
	_, err := packBase(t, func(b *baseBuilder) error {
		needs, err := b.needs(strings.TrimPrefix(dir, "/") + "/note")
		if len(needs) != 0 {
			t.Errorf("it needs %q", needs)
		}
		return err
	})
	must(t, err)
}

// TestFindLibrary: a library is of the program's class and processor.
func TestFindLibrary(t *testing.T) {
	dir := realDir(t)
	put(t, dir, "text/lib.so", "text", 0o644)
	put(t, dir, "arm/lib.so", dynamic(t, elf.EM_AARCH64, ""), 0o644)
	put(t, dir, "x86/lib.so", dynamic(t, elf.EM_X86_64, ""), 0o644)
	all := []string{dir + "/none", dir + "/text", dir + "/arm", dir + "/x86"}
	for what, c := range map[string]struct {
		lib     string
		class   elf.Class
		machine elf.Machine
		want    string
	}{
		"x86":             {"lib.so", elf.ELFCLASS64, elf.EM_X86_64, dir + "/x86/lib.so"},
		"arm":             {"lib.so", elf.ELFCLASS64, elf.EM_AARCH64, dir + "/arm/lib.so"},
		"another class":   {"lib.so", elf.ELFCLASS32, elf.EM_X86_64, ""},
		"another machine": {"lib.so", elf.ELFCLASS64, elf.EM_RISCV, ""},
		"missing":         {"other.so", elf.ELFCLASS64, elf.EM_X86_64, ""},
		"by its path":     {"/a/lib.so", elf.ELFCLASS64, elf.EM_X86_64, "/a/lib.so"},
	} {
		if got, ok := findLibrary(c.lib, all, c.class, c.machine); got != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q, %v", what, got, ok)
		}
	}
	if _, ok := findLibrary("a/lib.so", all, elf.ELFCLASS64, elf.EM_X86_64); ok {
		t.Error("a relative path of a library is followed")
	}
	if dirs := libraryDirs(); !slices.Contains(dirs, "/usr/lib") || !slices.Contains(dirs, "/lib") || slices.ContainsFunc(dirs, func(d string) bool { return !filepath.IsAbs(d) }) {
		t.Errorf("libraries are looked for in %q", dirs)
	}
}

// TestPackedEntries: a directory is packed with the kinds, owners and bits of what is in
// it, names in order, and nothing of another filesystem.
func TestPackedEntries(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "b/file", "text", 0o644)
	put(t, dir, "a", "text", 0o640)
	put(t, dir, "c", "text", 0o755)
	for name, mode := range map[string]fs.FileMode{"a": fs.ModeSetuid | 0o755, "c": fs.ModeSetgid | 0o750, "b": fs.ModeSticky | 0o711} {
		must(t, os.Chmod(filepath.Join(dir, name), mode))
	}
	must(t, os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "d")))
	must(t, os.Symlink("a", filepath.Join(dir, "e")))
	must(t, unix.Mkfifo(filepath.Join(dir, "f"), 0o600))
	l, err := net.Listen("unix", filepath.Join(dir, "g"))
	must(t, err)
	defer l.Close()
	want := "./ dir 711, a file 4755, b/ dir 1711, b/file file 644, c file 2750, d of a 4755, e to a 777, f FIFO 600"
	want = strings.Replace(want, "./ dir 711", "./ dir 755", 1)
	if err := unix.Mknod(filepath.Join(dir, "h"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err == nil {
		want += ", h device 600"
	}
	must(t, os.Mkdir(filepath.Join(dir, "i"), 0o755))
	if err := unix.Mount("tmpfs", filepath.Join(dir, "i"), "tmpfs", 0, "mode=700"); err == nil {
		defer func() { must(t, unix.Unmount(filepath.Join(dir, "i"), unix.MNT_DETACH)) }()
		put(t, dir, "i/hidden", "x", 0o644)
		want += ", i/ dir 700"
	} else {
		want += ", i/ dir 755"
	}
	must(t, os.Chmod(dir, 0o755))
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	stream := packDir(t.Context(), root)
	entries := entriesOf(t, stream)
	must(t, stream.Close())
	var got []string
	kinds := map[byte]string{tar.TypeDir: "dir", tar.TypeReg: "file", tar.TypeFifo: "FIFO", tar.TypeChar: "device"}
	for _, h := range entries {
		kind := kinds[h.Typeflag]
		switch h.Typeflag {
		case tar.TypeLink:
			kind = "of " + h.Linkname
		case tar.TypeSymlink:
			kind = "to " + h.Linkname
		}
		got = append(got, fmt.Sprintf("%s %s %o", h.Name, kind, h.Mode))
		if h.Uid != 0 || h.Gid != 0 && os.Geteuid() != 0 {
			t.Errorf("%s is of %d:%d", h.Name, h.Uid, h.Gid)
		}
	}
	if got := strings.Join(got, ", "); got != want {
		t.Errorf("packed are\n%s, want\n%s", got, want)
	}

	// A normal user's own files become root's, and no others.
	info, err := os.Lstat(dir)
	must(t, err)
	for _, c := range []struct{ self, uid, want uint32 }{{1000, 1000, 0}, {1000, 1001, 1001}, {0, 1000, 1000}} {
		st := statOf(info)
		st.Uid, st.Gid = c.uid, c.uid
		if h := (&packer{self: c.self}).header("x", info, st); h.Uid != int(c.want) || h.Gid != int(c.want) {
			t.Errorf("a file of %d that %d packs is of %d:%d", c.uid, c.self, h.Uid, h.Gid)
		}
	}
	// What is no file any more is refused.
	pack := func(change func(p *packer) error) error {
		return change(&packer{ctx: t.Context(), tar: tar.NewWriter(io.Discard), root: root, first: map[[2]uint64]string{}})
	}
	err = pack(func(p *packer) error { return p.packFile(&tar.Header{Name: "f"}, "f", statOf(info)) })
	if err == nil || !strings.Contains(err.Error(), "changed meanwhile") {
		t.Errorf("a FIFO in the place of a file: %v", err)
	}
	for depth, fails := range map[int]bool{maxDirDepth: false, maxDirDepth + 1: true} {
		file, err := root.Lstat("c")
		must(t, err)
		if err := pack(func(p *packer) error { return p.pack("c", file, depth) }); (err != nil) != fails {
			t.Errorf("at %d levels: %v", depth, err)
		}
	}
}

// TestImagesOfTooManyBlocks: an image has fewer blocks than the format can count.
func TestImagesOfTooManyBlocks(t *testing.T) {
	for first, fails := range map[int64]bool{1<<32 - 3: false, 1<<32 - 2: true} {
		if l, err := newTree().layOut(first); (err != nil) != fails || !fails && l.end != 1<<32-1 {
			t.Errorf("from block %d: %v, %v", first, l, err)
		}
	}
}

// TestSegmentTables: a table of segments lies in the head, behind the header.
func TestSegmentTables(t *testing.T) {
	head := func(size int, off uint64, each, n uint16) []byte {
		b := make([]byte, size)
		copy(b, "\x7fELF\x02\x01")
		binary.LittleEndian.PutUint64(b[32:], off)
		binary.LittleEndian.PutUint16(b[54:], each)
		binary.LittleEndian.PutUint16(b[56:], n)
		return b
	}
	for what, c := range map[string]struct {
		head []byte
		want int
	}{
		"one":              {head(elfHead, 64, elfSegment, 1), 1},
		"at the end":       {head(200, 200-2*elfSegment, elfSegment, 2), 2},
		"past the end":     {head(200, 200-2*elfSegment+1, elfSegment, 2), 0},
		"longer than all":  {head(64, 64, elfSegment, 2), 0},
		"as many as may":   {head(elfHead, 64, elfSegment, maxSegments), maxSegments},
		"more":             {head(elfHead, 64, elfSegment, maxSegments+1), 0},
		"none":             {head(elfHead, 64, elfSegment, 0), 0},
		"in the header":    {head(elfHead, 63, elfSegment, 1), 0},
		"of another size":  {head(elfHead, 64, elfSegment+1, 1), 0},
		"a far one":        {head(elfHead, 1<<63, elfSegment, 1), 0},
		"no header":        {head(elfHead, 64, elfSegment, 1)[:63], 0},
		"of another class": {append([]byte("\x7fELF\x01\x01"), head(elfHead, 64, elfSegment, 1)[6:]...), 0},
	} {
		if got := len(segmentTable(c.head)); got != c.want*elfSegment {
			t.Errorf("%s: %d bytes", what, got)
		}
	}
	if p := part(brokenFile{}, 100); p.length() != 100 {
		t.Errorf("a program that cannot be read has %d bytes", p.length())
	}
}

type brokenFile struct{}

func (brokenFile) ReadAt([]byte, int64) (int, error) { return 0, errors.New("it cannot be read") }
