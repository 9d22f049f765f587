//go:build linux

package changes

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/archive"
	"github.com/cloche-dev/cloche/internal/image"
)

// entry is one of a tar.
type entry struct {
	name, body, link string
	typ              byte
	mode             int64
	uid              int
	opaque           bool
}

func tarOf(t *testing.T, list ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range list {
		h := &tar.Header{Name: e.name, Typeflag: e.typ, Linkname: e.link, Mode: 0o755, Uid: e.uid, Gid: e.uid, Format: tar.FormatPAX}
		if e.mode != 0 {
			h.Mode = e.mode
		}
		if e.typ == 0 {
			h.Typeflag, h.Size = tar.TypeReg, int64(len(e.body))
		}
		if e.opaque {
			h.PAXRecords = map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func treeOf(t *testing.T, list ...entry) *image.Tree {
	t.Helper()
	store, err := image.Open(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.ImportStream(t.Context(), "base", bytes.NewReader(tarOf(t, list...)), image.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	root, err := store.Resolve(t.Context(), "base", image.Need{})
	if err != nil {
		t.Fatal(err)
	}
	tree, err := image.OpenTree(root.Image)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tree.Close() })
	return tree
}

// The layer of a root is compared with the image: what is new, other or gone, also in
// directories that hide what the image has there, and nothing that Cloche put in place.
func TestCompareRoot(t *testing.T) {
	const dir, link = tar.TypeDir, tar.TypeSymlink
	tree := treeOf(t,
		entry{name: "etc/", typ: dir}, entry{name: "etc/motd", body: "four"}, entry{name: "etc/gone", body: "three"},
		entry{name: "opt/", typ: dir}, entry{name: "opt/one", body: "1"}, entry{name: "opt/two", body: "22"}, entry{name: "opt/sub/", typ: dir}, entry{name: "opt/sub/x", body: "333"},
		entry{name: "opt/was-dir/", typ: dir}, entry{name: "opt/was-dir/y", body: "y"}, entry{name: "same/", typ: dir}, entry{name: "moded/", typ: dir}, entry{name: "owned/", typ: dir},
		entry{name: "workspace/", typ: dir}, entry{name: "link", typ: link, link: "etc"})
	layer := tarOf(t,
		entry{name: "./", typ: dir}, entry{name: "etc/", typ: dir}, entry{name: "etc/motd", body: "longer"}, entry{name: "etc/new", body: "n"},
		entry{name: "etc/gone", typ: tar.TypeChar}, entry{name: "etc/never", typ: tar.TypeChar}, entry{name: "etc/ln", typ: link, link: "x"},
		entry{name: "opt/", typ: dir, opaque: true}, entry{name: "opt/one", body: "1"}, entry{name: "opt/sub/", typ: dir}, entry{name: "opt/was-dir", body: "file"},
		entry{name: "same/", typ: dir}, entry{name: "moded/", typ: dir, mode: 0o700}, entry{name: "owned/", typ: dir, uid: 7}, entry{name: "fresh/", typ: dir, opaque: true}, entry{name: "fifo", typ: tar.TypeFifo},
		entry{name: "mnt/", typ: dir}, entry{name: "mnt/a/", typ: dir}, entry{name: "mnt/a/file", body: "x"}, entry{name: "workspace/", typ: dir, mode: 0o700},
	)
	hidden := Hidden("/workspace", "/mnt/a")
	changes, err := Root(t.Context(), bytes.NewReader(layer), tree, hidden)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range changes {
		got = append(got, fmt.Sprintf("%s %s %s %d was %d", c.Path, c.Kind, c.Type, c.Size, c.OldSize))
	}
	want := []string{
		"etc/gone removed file 0 was 5", "etc/ln added symlink 0 was 0", "etc/motd changed file 6 was 4", "etc/new added file 1 was 0",
		"fifo added other 0 was 0", "fresh added dir 0 was 0", "mnt/a/file added file 1 was 0", "moded changed dir 0 was 0", "opt/one changed file 1 was 1",
		"opt/sub/x removed file 0 was 3", "opt/two removed file 0 was 2", "opt/was-dir changed file 4 was 0", "owned changed dir 0 was 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("changes are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	d := Count(api.DiffRoot, changes)
	if d.Added != 5 || d.Changed != 5 || d.Removed != 3 || d.Bytes != 6+1+1+1+4 || d.Scope != api.DiffRoot {
		t.Errorf("counted %+v", d)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Root(ctx, bytes.NewReader(layer), tree, hidden); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who left: %v", err)
	}
	if _, err := Root(t.Context(), bytes.NewReader(layer[:700]), tree, hidden); err == nil {
		t.Error("a layer that is torn is compared")
	}
}

// What is where Cloche puts something is hidden, with the directories above.
func TestHiddenPaths(t *testing.T) {
	got := Hidden("/a/b", "/m/n/")
	for _, p := range []string{".", "a", "a/b", "m", "m/n"} {
		if !got[p] {
			t.Errorf("%s is not hidden", p)
		}
		delete(got, p)
	}
	if len(got) != 0 {
		t.Errorf("%v are hidden", got)
	}
}

// A diff is cut into pages, each after the last path of the one before.
func TestPagesOfADiff(t *testing.T) {
	all := []api.Change{{Path: "a"}, {Path: "b"}, {Path: "d"}}
	for _, c := range []struct {
		after string
		limit int
		want  string
		more  bool
	}{
		{"", 3, "abd", false}, {"", 2, "ab", true}, {"b", 2, "d", false}, {"a", 1, "b", true}, {"c", 5, "d", false}, {"d", 5, "", false}, {"0", 3, "abd", false},
	} {
		got := Page(api.Diff{Changes: slices.Clone(all)}, c.after, c.limit)
		paths := ""
		for _, ch := range got.Changes {
			paths += ch.Path
		}
		if paths != c.want || (got.Next != "") != c.more || got.Changes == nil {
			t.Errorf("%d after %q: %q, next %q", c.limit, c.after, paths, got.Next)
		}
	}
	if got := Page(api.Diff{}, "", 1); got.Changes == nil {
		t.Error("no changes are null in JSON")
	}
}

// A whiteout of what the image never had changes nothing.
func TestRootChange(t *testing.T) {
	if _, ok := rootChange(archive.Entry{Path: "x", Whiteout: true}, image.Stat{}, false); ok {
		t.Error("what was never there is removed")
	}
	c, ok := rootChange(archive.Entry{Path: "x", Whiteout: true}, image.Stat{Type: api.TypeDir, Size: 3}, true)
	if !ok || c.Kind != api.ChangeRemoved || c.Type != api.TypeDir || c.OldSize != 3 {
		t.Errorf("%+v, %v", c, ok)
	}
	same := image.Stat{Type: api.TypeDir, Mode: 0o755, UID: 1, GID: 2}
	for what, c := range map[string]struct {
		e    archive.Entry
		want bool
	}{
		"the same":      {archive.Entry{Kind: archive.Dir, Mode: 0o755, UID: 1, GID: 2}, false},
		"another mode":  {archive.Entry{Kind: archive.Dir, Mode: 0o700, UID: 1, GID: 2}, true},
		"another user":  {archive.Entry{Kind: archive.Dir, Mode: 0o755, UID: 2, GID: 2}, true},
		"another group": {archive.Entry{Kind: archive.Dir, Mode: 0o755, UID: 1, GID: 1}, true},
	} {
		if _, ok := rootChange(c.e, same, true); ok != c.want {
			t.Errorf("%s: changed %v", what, ok)
		}
	}
	file := same
	file.Type = api.TypeFile
	if _, ok := rootChange(archive.Entry{Kind: archive.Dir, Mode: 0o755, UID: 1, GID: 2}, file, true); !ok {
		t.Error("a directory in the place of a file is no change")
	}
}
