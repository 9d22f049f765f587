package workspace_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/workspace"
)

func private(t *testing.T, path string) *workspace.Dir {
	t.Helper()
	if err := os.Chmod(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := workspace.Private(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// TestCopyKeepsWhatMatters copies a directory out and in again.
func TestCopyKeepsWhatMatters(t *testing.T) {
	home := t.TempDir()
	d := private(t, filepath.Join(home, "w"))
	at := func(p ...string) string { return filepath.Join(append([]string{home, "w"}, p...)...) }
	past := time.Unix(1_000_000, 123456789)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.MkdirAll(at("d", "e"), 0o750))
	check(os.WriteFile(at("d", "f"), []byte("content"), 0o640))
	check(os.Link(at("d", "f"), at("d", "e", "again")))
	check(os.WriteFile(at("odd \xff\n"), []byte("odd"), 0o600))
	check(os.Symlink("/usr/bin/python3", at("python")))
	check(os.WriteFile(at("script"), []byte("#!/bin/sh\n"), 0o755))
	check(os.Chmod(at("script"), 0o755|os.ModeSetuid))
	check(os.Chmod(at("d", "e"), 0o750|os.ModeSetgid))
	check(unix.Setxattr(at("script"), "user.mine", []byte("\x00yes"), 0))
	sparse, err := os.Create(at("sparse"))
	check(err)
	_, err = sparse.WriteAt([]byte("end"), 1<<30)
	check(err)
	check(sparse.Close())
	check(unix.Mkfifo(at("fifo"), 0o600))
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	check(err)
	check(unix.Bind(sock, &unix.SockaddrUnix{Name: at("sock")}))
	check(unix.Close(sock))
	check(os.Chtimes(at("d", "f"), past, past))
	check(os.Chtimes(at("d"), past, past))
	if os.Geteuid() == 0 {
		check(os.Lchown(at("python"), 12, 34))
		check(os.Chown(at("d"), 56, 78))
	}
	report, err := d.CopyTo(t.Context(), nil, filepath.Join(home, "copy"), workspace.CopyLimits{})
	check(err)
	left := []string{}
	for _, l := range report.Left {
		left = append(left, l.Path+": "+l.Reason)
	}
	slices.Sort(left)
	if want := []string{"fifo: a FIFO", "sock: a socket"}; !slices.Equal(left, want) {
		t.Errorf("left out were %q, want %q", left, want)
	}
	if report.Bytes > 1<<20 {
		t.Errorf("a file with a hole is counted as %d bytes", report.Bytes)
	}
	back := private(t, filepath.Join(home, "back"))
	check(back.FillFrom(t.Context(), filepath.Join(home, "copy"), workspace.CopyLimits{}))
	check(os.Remove(at("fifo")))
	check(os.Remove(at("sock")))
	check(os.Remove(at("sparse")))
	var st unix.Stat_t
	check(unix.Stat(filepath.Join(home, "back", "sparse"), &st))
	if st.Size != 1<<30+3 || st.Blocks > 100 {
		t.Errorf("the file with a hole has size %d and %d blocks", st.Size, st.Blocks)
	}
	check(os.Remove(filepath.Join(home, "back", "sparse")))
	// A program may have changed its content.
	check(os.Chmod(at("script"), 0o755))
	if want, got := tree(t, at()), tree(t, filepath.Join(home, "back")); !maps.Equal(want, got) {
		t.Errorf("copied is\n%q\nwant\n%q", got, want)
	}
	a, err := os.Stat(filepath.Join(home, "back", "d", "f"))
	check(err)
	b, err := os.Stat(filepath.Join(home, "back", "d", "e", "again"))
	check(err)
	dir, err := os.Stat(filepath.Join(home, "back", "d"))
	check(err)
	if !os.SameFile(a, b) || !a.ModTime().Equal(past) || !dir.ModTime().Equal(past) {
		t.Errorf("a hard link is one: %v; times %v and %v", os.SameFile(a, b), a.ModTime(), dir.ModTime())
	}
	value := make([]byte, 16)
	n, err := unix.Getxattr(filepath.Join(home, "back", "script"), "user.mine", value)
	if err != nil || !bytes.Equal(value[:n], []byte("\x00yes")) {
		t.Errorf("the attribute is %q, %v", value[:n], err)
	}
	if err := back.FillFrom(t.Context(), filepath.Join(home, "copy"), workspace.CopyLimits{}); api.CodeOf(err) != api.CodeConflict {
		t.Errorf("into a directory that has files: %v", err)
	}
}

// TestFilesToCopyAreMissing: what cannot be opened is told as that, and nothing is copied.
func TestFilesToCopyAreMissing(t *testing.T) {
	home := t.TempDir()
	d := private(t, filepath.Join(home, "w"))
	if err := d.FillFrom(t.Context(), filepath.Join(home, "missing"), workspace.CopyLimits{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("files that are not there: %v", err)
	}
}

// TestOwnersAreKeptOrTold: a copy that cannot have the owners of its files fails where the
// process is root, which could give them.
func TestOwnersAreKeptOrTold(t *testing.T) {
	needRoot(t)
	for name, put := range map[string]func(path string) error{
		"file":      func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"symlink":   func(path string) error { return os.Symlink("f", path) },
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			d := private(t, filepath.Join(home, "w"))
			path := filepath.Join(home, "w", "owned")
			must(t, put(path))
			must(t, os.Lchown(path, 12, 34))
			_, err := without(t, unix.CAP_CHOWN, func() (workspace.CopyReport, error) {
				return d.CopyTo(t.Context(), nil, filepath.Join(home, "copy"), workspace.CopyLimits{})
			})
			if !errors.Is(err, unix.EPERM) {
				t.Errorf("a copy without its owner: %v", err)
			}
		})
	}
}

func TestCopyIsBounded(t *testing.T) {
	home := t.TempDir()
	d := private(t, filepath.Join(home, "w"))
	for i := range 20 {
		if err := os.WriteFile(filepath.Join(home, "w", fmt.Sprint(i)), make([]byte, 8<<10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, l := range map[string]workspace.CopyLimits{"bytes": {Bytes: 64 << 10}, "entries": {Entries: 10}} {
		if _, err := d.CopyTo(t.Context(), nil, filepath.Join(home, name), l); api.CodeOf(err) != api.CodeTooLarge {
			t.Errorf("over the limit of %s: %v", name, err)
		}
	}
	if _, err := d.CopyTo(t.Context(), nil, filepath.Join(home, "both"), workspace.CopyLimits{Bytes: 160 << 10, Entries: 20}); err != nil {
		t.Errorf("at the limit: %v", err)
	}
}

// TestCopySeesThroughTheLayer: a copy has what is seen, and the two stay as they are.
func TestCopySeesThroughTheLayer(t *testing.T) {
	o := newOver(t, "")
	r := rand.New(rand.NewPCG(5, 5))
	for range 40 {
		fumble(r, o.lower)
	}
	before := tree(t, o.lower)
	o.mount()
	for range 40 {
		fumble(r, o.seen)
	}
	want, diff := tree(t, o.seen), o.diff()
	copied := filepath.Join(filepath.Dir(o.path), "copy")
	if _, err := o.dir.CopyTo(t.Context(), o.layer, copied, workspace.CopyLimits{}); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, copied); !maps.Equal(got, want) {
		t.Errorf("copied is\n%q\nseen is\n%q", got, want)
	}
	if !maps.Equal(o.diff(), diff) || !maps.Equal(tree(t, o.lower), before) {
		t.Error("the copy changed something")
	}
}
