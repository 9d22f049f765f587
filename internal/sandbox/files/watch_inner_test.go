//go:build linux

package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/workspace"
	"golang.org/x/sys/unix"
)

// mounted is a sandbox with a workspace and mounts.
type mounted struct {
	*writes
	info api.Sandbox
	dirs []workspace.Attached
}

func (m mounted) Info() api.Sandbox          { return m.info }
func (m mounted) Dirs() []workspace.Attached { return m.dirs }

// TestHostDir: the directory of the host that is watched in place of a path inside, if the two show the
// same.
func TestHostDir(t *testing.T) {
	s := mounted{
		info: api.Sandbox{
			Workspace: api.Workspace{Path: "/workspace"},
			Mounts:    []api.Mount{{Target: "/data"}, {Target: "/data/below"}, {Target: "/ruled", Rules: []api.PathRule{{}}}},
		},
		dirs: []workspace.Attached{{Target: "/workspace"}, {Target: "/data"}, {Target: "/data/below"}, {Target: "/ruled"}},
	}
	for name, c := range map[string]struct {
		at     api.FilePlace
		target string
		rel    string
	}{
		"the workspace":             {api.FilePlace{Path: "/workspace"}, "/workspace", ""},
		"below it":                  {api.FilePlace{Path: "/workspace/a/../b/"}, "/workspace", "b"},
		"a name that begins alike":  {api.FilePlace{Path: "/workspaces"}, "", ""},
		"the root":                  {api.FilePlace{Path: "/"}, "", ""},
		"a mount with one below":    {api.FilePlace{Path: "/data"}, "", ""},
		"beside that one":           {api.FilePlace{Path: "/data/x"}, "/data", "x"},
		"the one below":             {api.FilePlace{Path: "/data/below/x/y"}, "/data/below", "x/y"},
		"with rules":                {api.FilePlace{Path: "/ruled/x"}, "", ""},
		"with the rights of a user": {api.FilePlace{Path: "/workspace", FileAccess: api.FileAccess{User: "1000"}}, "", ""},
		"within a directory":        {api.FilePlace{Path: "/workspace", FileAccess: api.FileAccess{Within: []string{"/workspace"}}}, "", ""},
		"a relative path":           {api.FilePlace{Path: "workspace"}, "", ""},
	} {
		dir, rel, ok := hostDir(s, c.at)
		if ok != (c.target != "") || ok && (dir.Target != c.target || rel != c.rel) {
			t.Errorf("%s: %q %q %t, want %q %q", name, dir.Target, rel, ok, c.target, c.rel)
		}
	}
	layered := s
	layered.info.Workspace.Layered = true
	if _, _, ok := hostDir(layered, api.FilePlace{Path: "/workspace"}); ok {
		t.Error("a layered workspace is watched below its layer")
	}
}

// TestHostReader reads a large file of the host in the place of the sandbox's, if it is the same.
func TestHostReader(t *testing.T) {
	top := t.TempDir()
	dir, err := workspace.OpenDir(top)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	s := mounted{info: api.Sandbox{Workspace: api.Workspace{Path: "/workspace"}}, dirs: []workspace.Attached{dir.AttachedAs("/workspace", false)}}
	content := bytes.Repeat([]byte("0123456789"), minHostRead/5)
	if err := os.WriteFile(filepath.Join(top, "large"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("large", filepath.Join(top, "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(top, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(filepath.Join(top, "large"))
	if err != nil {
		t.Fatal(err)
	}
	is := api.FileInfo{Type: api.TypeFile, Size: fi.Size(), ModTime: fi.ModTime()}
	older, longer := is, is
	older.ModTime, longer.Size = is.ModTime.Add(-time.Second), is.Size+1
	at := func(name string) api.FilePlace { return api.FilePlace{Path: "/workspace/" + name} }
	for name, c := range map[string]struct {
		at             api.FilePlace
		info           api.FileInfo
		offset, length int64
		want           []byte
	}{
		"whole":              {at("large"), is, 0, -1, content},
		"from an offset":     {at("large"), is, 7, -1, content[7:]},
		"a part":             {at("large"), is, 7, minHostRead, content[7 : 7+minHostRead]},
		"more than there is": {at("large"), is, 7, 1 << 40, content[7:]},
		"a small part":       {at("large"), is, 7, 100, nil},
		"beyond the end":     {at("large"), is, 1 << 40, -1, nil},
		"an older file":      {at("large"), older, 0, -1, nil},
		"a longer file":      {at("large"), longer, 0, -1, nil},
		"a link":             {at("link"), is, 0, -1, nil},
		"a pipe":             {at("pipe"), is, 0, -1, nil},
		"the directory":      {api.FilePlace{Path: "/workspace"}, is, 0, -1, nil},
		"elsewhere":          {api.FilePlace{Path: "/tmp/large"}, is, 0, -1, nil},
		"a user's":           {api.FilePlace{Path: "/workspace/large", FileAccess: api.FileAccess{User: "1"}}, is, 0, -1, nil},
	} {
		r := hostReader(s, c.at, c.info, c.offset, c.length)
		if (r != nil) != (c.want != nil) {
			t.Errorf("%s: read on the host: %t", name, r != nil)
		}
		if r == nil {
			continue
		}
		got, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%s: %d bytes, %v, want %d", name, len(got), err, len(c.want))
		}
	}
}

// TestHostWriter writes to the empty file that the agent has made, and to no other.
func TestHostWriter(t *testing.T) {
	top := t.TempDir()
	dir, err := workspace.OpenDir(top)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	s := mounted{
		info: api.Sandbox{Workspace: api.Workspace{Path: "/workspace"}, Mounts: []api.Mount{{Target: "/kept", ReadOnly: true}}},
		dirs: []workspace.Attached{dir.AttachedAs("/workspace", false), dir.AttachedAs("/kept", true)},
	}
	name := func(base string) string { return filepath.Join(top, base) }
	write := func(base, content string) error { return os.WriteFile(name(base), []byte(content), 0o600) }
	err = errors.Join(write("new", ""), write("full", "x"), write("twice", ""), os.Link(name("twice"), name("again")), os.Symlink("new", name("link")),
		os.Mkdir(name("dir"), 0o700), os.Symlink(".", name("over")), unix.Mkfifo(name("pipe"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for base, want := range map[string]bool{"new": true, "full": false, "twice": false, "link": false, "over/new": false, "dir": false, "pipe": false, "none": false, "": false, "../x": false} {
		var info api.FileInfo
		if fi, err := os.Stat(name(base)); err == nil {
			info.ModTime = fi.ModTime()
		}
		for _, in := range []string{"/workspace/", "/kept/", "/elsewhere/"} {
			w := hostWriter(s, api.FilePlace{Path: in + base}, info)
			if (w != nil) != (want && in == "/workspace/") {
				t.Errorf("%s%s is written on the host: %t", in, base, w != nil)
			}
			if w != nil {
				_ = w.Close()
			}
		}
		if w := hostWriter(s, api.FilePlace{Path: "/workspace/" + base}, api.FileInfo{ModTime: info.ModTime.Add(1)}); w != nil {
			t.Errorf("%s of another time is written on the host", base)
		}
	}
}

// TestPackHost packs a directory of the host in the place of the sandbox's, if it is the same.
func TestPackHost(t *testing.T) {
	top := t.TempDir()
	dir, err := workspace.OpenDir(top)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	s := mounted{
		info: api.Sandbox{Workspace: api.Workspace{Path: "/workspace"}, Mounts: []api.Mount{{Target: "/ruled", Rules: []api.PathRule{{}}}}},
		dirs: []workspace.Attached{dir.AttachedAs("/workspace", false), dir.AttachedAs("/ruled", false)},
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(top, "dir", "skip"), 0o755))
	must(os.WriteFile(filepath.Join(top, "dir", "file"), []byte("content"), 0o600))
	must(os.Symlink("/workspace/dir/file", filepath.Join(top, "dir", "link")))
	must(os.Symlink("dir", filepath.Join(top, "other")))
	for name, want := range map[string]string{
		"/workspace/dir": "file:0 link>file", "/workspace": "dir/:0 dir/file:0 dir/link>../dir/file other>dir",
		"/ruled": "", "/workspace/other": "", "/workspace/dir/file": "", "/workspace/none": "", "/elsewhere": "", "workspace": "",
	} {
		var b bytes.Buffer
		report, packed, err := packHost(s, name, api.TarOutOptions{Exclude: []string{"skip", "dir/skip"}}, &b)
		if packed != (want != "") || err != nil || !packed && b.Len() > 0 {
			t.Errorf("%s: packed on the host: %t, %d bytes, %v", name, packed, b.Len(), err)
			continue
		}
		var got []string
		for r := tar.NewReader(&b); packed; {
			h, err := r.Next()
			if err != nil {
				break
			}
			what := h.Name + ":" + strconv.Itoa(h.Uid)
			if h.Linkname != "" {
				what = h.Name + ">" + h.Linkname
			}
			got = append(got, what)
		}
		slices.Sort(got)
		if packed && (strings.Join(got, " ") != want || report.Entries != int64(len(got))) {
			t.Errorf("%s: %v of %d, want %s", name, got, report.Entries, want)
		}
	}
	if _, packed, err := packHost(s, "/workspace", api.TarOutOptions{}, brokenWriter{}); !packed || !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("a writer that fails: %t, %v", packed, err)
	}
}

// brokenWriter takes nothing.
type brokenWriter struct{}

// Write implements io.Writer.
func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// TestOpenBelow follows no link and notices a directory that was replaced.
func TestOpenBelow(t *testing.T) {
	top := t.TempDir()
	given := filepath.Join(top, "given")
	for _, dir := range []string{given, filepath.Join(given, "sub"), filepath.Join(top, "private")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(top, "private"), filepath.Join(given, "link")); err != nil {
		t.Fatal(err)
	}
	dir, err := workspace.OpenDir(given)
	if err != nil {
		t.Fatal(err)
	}
	d := dir.AttachedAs("/given", false)
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
	open := func(rel string) error {
		f, err := openBelow(d, rel)
		if err == nil {
			err = f.Close()
		}
		return err
	}
	for rel, ok := range map[string]bool{"": true, "sub": true, "link": false, "link/x": false, "missing": false} {
		if err := open(rel); (err == nil) != ok {
			t.Errorf("%q: %v", rel, err)
		}
	}
	if err := os.Rename(given, given+"-before"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(top, "private"), given); err != nil {
		t.Fatal(err)
	}
	if err := open(""); err == nil {
		t.Error("a link in the place of the directory is opened")
	}
	if err := errors.Join(os.Remove(given), os.Rename(filepath.Join(top, "private"), given)); err != nil {
		t.Fatal(err)
	}
	if err := open(""); api.CodeOf(err) != api.CodeState {
		t.Errorf("another directory in its place: %v", err)
	}
}
