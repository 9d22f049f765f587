package capture

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/test/tarfile"
)

// TestDiff: which files a step has changed.
func TestDiff(t *testing.T) {
	file := func(ctime int64, ino uint64) Entry { return Entry{mode: typeFile | 0o644, ctime: ctime, ino: ino} }
	dir := Entry{mode: typeDir | 0o755, ino: 1}
	before := Files{"d": dir, "d/a": file(1, 2), "d/b": file(1, 3), "e": dir, "e/f": dir, "e/f/g": file(1, 4), "was": dir, "was/x": file(1, 5), "m": dir, "m/in": file(1, 6), "etc": dir, "etc/hosts": file(1, 7), "tmp/t": file(1, 8)}
	now := Listing{Files: Files{
		"d": dir, "d/a": file(1, 2), "d/b": file(2, 3), "d/link": file(1, 2), "was": file(2, 9), "new": dir, "etc": dir, "etc/hosts": file(9, 7), "m/in": file(1, 6),
	}, Hidden: []string{"m"}}
	changed, removed := before.Diff(now, Entry.Same)
	if got := fmt.Sprint(changed, removed); got != "[d/a d/b d/link new was] [e tmp/t]" {
		t.Error(got)
	}
}

// FuzzLayer copies what a sandbox packs: only entries that were asked for come out, as a tar that can be read.
func FuzzLayer(f *testing.F) {
	for _, m := range [][]tarfile.Member{
		{tarfile.Regular("a", "x"), tarfile.Regular("b", "y")},
		{{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/etc/passwd"}}},
		{{Header: tar.Header{Typeflag: tar.TypeLink, Name: "a", Linkname: "../x"}}},
		{tarfile.Regular("../a", "x")}, {tarfile.Regular("a/../b", "x")}, {tarfile.Regular("c", "x")},
		{{Header: tar.Header{Typeflag: tar.TypeChar, Name: "a"}}},
	} {
		f.Add(tarfile.Pack(f, m...).Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		err := (&Packer{}).copy(bytes.NewReader(data), w, "", []string{"a", "b"})
		if cerr := w.Close(); err == nil && cerr != nil {
			t.Fatal(cerr)
		}
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for r := tar.NewReader(&out); ; { //nolint:forbidigo // what was written here
			h, err := r.Next()
			if err == io.EOF { //nolint:errorlint // the end of a tar
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			name := strings.TrimSuffix(h.Name, "/")
			if !slices.Contains([]string{"a", "b"}, name) || seen[name] {
				t.Fatalf("the entry %q came out", h.Name)
			}
			seen[name] = true
		}
	})
}

// trees is a sandbox with these files and mount points.
type trees struct {
	files  Files
	mounts []string
}

// Tree implements Trees.
func (s trees) Tree(_ context.Context, _ string, fn func(agent.TreeEntry) error) error {
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		e := s.files[name]
		t := agent.TreeEntry{Path: api.Bytes(name), Mode: e.mode, UID: e.uid, GID: e.gid, Size: e.size, Mtime: e.mtime, Ctime: e.ctime, Mount: slices.Contains(s.mounts, name)}
		if err := fn(t); err != nil {
			return err
		}
	}
	return nil
}

// PackOnly implements Trees.
func (s trees) PackOnly(context.Context, string, []string, io.Writer) (api.TarReport, error) {
	return api.TarReport{}, errors.ErrUnsupported
}

// TestChangesOfRoot: what a start has to restore, by the time of change.
func TestChangesOfRoot(t *testing.T) {
	file := func(ctime int64) Entry { return Entry{mode: typeFile | 0o644, mtime: 1, ctime: ctime} }
	dir := Entry{mode: typeDir | 0o755, ctime: 1}
	link := Entry{mode: typeSymlink | 0o777, mtime: 1, ctime: 1}
	image := func() Files {
		return Files{"d": dir, "d/same": file(1), "d/touched": file(1), "d/gone": file(1), "e": dir, "e/f": dir, "e/f/g": file(1), "was": dir, "was/x": file(1), "l": link, "m": dir, "m/in": file(1), "etc": dir, "etc/hosts": file(1), "tmp": dir}
	}
	now := Files{
		"d": dir, "d/same": file(1), "d/touched": file(200), "was": file(200), "l": file(200), "new": {mode: typeDir | 0o755, ctime: 200}, "new/f": file(200),
		"m": dir, "etc": dir, "etc/hosts": file(200), ".cloche-trust": dir, "unpacked": file(50),
	}
	changed, removed, err := changesOf(t.Context(), trees{now, []string{"m"}}, image(), time.Unix(0, 100))
	if got := fmt.Sprint(changed, removed, err); got != "[d/touched l new new/f unpacked was] [d/gone e l was] <nil>" {
		t.Error(got)
	}
	for _, name := range []string{"../x", "/etc/passwd", ".", "a//b", "a/../b"} {
		if _, _, err := changesOf(t.Context(), trees{files: Files{name: file(200)}}, image(), time.Unix(0, 100)); api.CodeOf(err) != api.CodeSandboxLost {
			t.Errorf("a list with %q: %v", name, err)
		}
	}
}
