//go:build linux

package filesync_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/archive/localdir"
	"github.com/cloche-dev/cloche/internal/sandbox/filesync"
)

// guest is an agent whose sandbox is a directory. Real agents are used by the tests of the engine.
type guest struct {
	top string
	// during is called in the middle of a call, as a program inside could act then.
	during func(op string)
}

func (g *guest) at(op string) {
	if g.during != nil {
		g.during(op)
	}
}

// Tree implements filesync.Agent.
func (g *guest) Tree(_ context.Context, top string, fn func(agent.TreeEntry) error) error {
	defer g.at("tree")
	return filepath.WalkDir(g.top+top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(g.top+top, p)
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		return fn(agent.TreeEntry{
			Path: api.Bytes(rel), Mode: st.Mode, Ino: st.Ino, Size: st.Size, Mtime: info.ModTime().UnixNano(),
			Ctime: st.Ctim.Nano(),
		})
	})
}

// PackOnly implements filesync.Agent.
func (g *guest) PackOnly(_ context.Context, top string, names []string, w io.Writer) (rep api.TarReport, err error) {
	g.at("pack")
	root, err := os.OpenRoot(g.top + top)
	if err != nil {
		return rep, err
	}
	defer root.Close()
	return rep, localdir.PackOnly(w, root, func(p string) bool { return slices.Contains(names, p) }, &rep)
}

// TarIn implements filesync.Agent.
func (g *guest) TarIn(_ context.Context, top string, o api.TarInOptions, r io.Reader) (api.TarReport, error) {
	g.at("unpack")
	if o.Clear {
		entries, err := os.ReadDir(g.top + top)
		if err != nil {
			return api.TarReport{}, err
		}
		for _, e := range entries {
			if err := os.RemoveAll(filepath.Join(g.top+top, e.Name())); err != nil {
				return api.TarReport{}, err
			}
		}
	}
	root, err := os.OpenRoot(g.top + top)
	if err != nil {
		return api.TarReport{}, err
	}
	defer root.Close()
	u := &localdir.Unpacker{Root: root, MaxBytes: 1 << 40}
	err = u.Unpack(r)
	return u.Report, err
}

// Remove implements filesync.Agent.
func (g *guest) Remove(_ context.Context, p string, _ bool) error {
	g.at("remove")
	return os.RemoveAll(g.top + p)
}

// sides are a directory, its copy and what keeps them alike.
type sides struct {
	*testing.T
	host, inside string
	state        string
	readOnly     bool
	g            *guest
	c            *filesync.Copy
}

const target = "/workspace"

func newSides(t *testing.T, readOnly bool) *sides {
	t.Helper()
	top := t.TempDir()
	s := &sides{T: t, host: t.TempDir(), inside: top + target, state: filepath.Join(t.TempDir(), "copy.json"), readOnly: readOnly, g: &guest{top: top}}
	if err := os.Mkdir(s.inside, 0o755); err != nil {
		t.Fatal(err)
	}
	s.open()
	return s
}

// open begins with what the last sync kept, as a later daemon does.
func (s *sides) open() {
	s.Helper()
	root, err := os.OpenRoot(s.host)
	if err != nil {
		s.Fatal(err)
	}
	s.c, err = filesync.New(filesync.Options{Root: root, Target: target, ReadOnly: s.readOnly, UID: -1, GID: -1, Path: s.state})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { root.Close() })
}

func (s *sides) sync() filesync.Report {
	s.Helper()
	rep, err := s.c.Sync(s.Context(), s.g)
	if err != nil {
		s.Fatal(err)
	}
	return rep
}

// list shows a directory, contents and modes included.
func list(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		fmt.Fprintf(&out, "%s %v", rel, info.Mode())
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&out, " %q", data)
		case info.Mode()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(p)
			fmt.Fprintf(&out, " -> %s", to)
		}
		out.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func (s *sides) alike() {
	s.Helper()
	if h, g := list(s.T, s.host), list(s.T, s.inside); h != g {
		s.Fatalf("the host has\n%s\nand the sandbox\n%s", h, g)
	}
}

func write(t *testing.T, dir, name, content string, mode fs.FileMode) {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(p, mode); err != nil {
		t.Fatal(err)
	}
}

func TestBothWays(t *testing.T) {
	s := newSides(t, false)
	write(t, s.inside, "of-the-template", "x", 0o644)
	write(t, s.host, "a", "1", 0o644)
	write(t, s.host, "run.sh", "#!/bin/sh", 0o755)
	write(t, s.host, "deep/er/b", "2", 0o600)
	if err := os.Symlink("deep/er/b", filepath.Join(s.host, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.Fill(t.Context(), s.g); err != nil {
		t.Fatal(err)
	}
	s.alike()

	write(t, s.inside, "made/inside", "3", 0o640)
	if err := os.Chmod(filepath.Join(s.inside, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(s.inside, "deep")); err != nil {
		t.Fatal(err)
	}
	write(t, s.host, "made-on-host", "4", 0o644)
	if err := os.Remove(filepath.Join(s.host, "link")); err != nil {
		t.Fatal(err)
	}
	s.sync()
	s.alike()
	if rep := s.sync(); rep.In+rep.Out > 0 {
		t.Errorf("a second sync did %+v", rep)
	}

	// A file becomes a directory and the other way round.
	if err := os.Remove(filepath.Join(s.inside, "a")); err != nil {
		t.Fatal(err)
	}
	write(t, s.inside, "a/in", "5", 0o644)
	if err := os.RemoveAll(filepath.Join(s.host, "made")); err != nil {
		t.Fatal(err)
	}
	write(t, s.host, "made", "6", 0o644)
	s.sync()
	s.alike()
}

// TestRefresh: before a program starts, the sandbox is asked only if this machine has changed something.
func TestRefresh(t *testing.T) {
	s := newSides(t, false)
	write(t, s.host, "a", "1", 0o644)
	write(t, s.host, "b", "1", 0o644)
	if _, err := s.c.Fill(t.Context(), s.g); err != nil {
		t.Fatal(err)
	}
	calls := 0
	s.g.during = func(string) { calls++ }
	refresh := func(want bool) {
		t.Helper()
		calls = 0
		if _, err := s.c.Refresh(t.Context(), s.g); err != nil {
			t.Fatal(err)
		}
		if (calls > 0) != want {
			t.Errorf("%d calls", calls)
		}
	}
	write(t, s.inside, "by-the-sandbox", "2", 0o644)
	refresh(false)
	write(t, s.host, "a", "three", 0o644)
	refresh(true)
	s.alike()
	refresh(false)
	if err := os.Remove(filepath.Join(s.host, "b")); err != nil {
		t.Fatal(err)
	}
	refresh(true)
	s.alike()
}

// TestConflict: of a file that changed on both sides, the host's stays, and it is told.
func TestConflict(t *testing.T) {
	s := newSides(t, false)
	write(t, s.host, "a", "1", 0o644)
	if _, err := s.c.Fill(t.Context(), s.g); err != nil {
		t.Fatal(err)
	}
	write(t, s.host, "a", "of the host", 0o644)
	write(t, s.inside, "a", "of the sandbox", 0o644)
	if rep := s.sync(); len(rep.Conflicts) != 1 || rep.Conflicts[0] != "a" {
		t.Errorf("told of %q", rep.Conflicts)
	}
	s.alike()
	if data, _ := os.ReadFile(filepath.Join(s.inside, "a")); string(data) != "of the host" {
		t.Errorf("the sandbox has %q", data)
	}
}

// TestReadOnly: nothing comes to the host, and the copy becomes what it was.
func TestReadOnly(t *testing.T) {
	s := newSides(t, true)
	write(t, s.host, "a", "1", 0o644)
	write(t, s.host, "b", "2", 0o644)
	if _, err := s.c.Fill(t.Context(), s.g); err != nil {
		t.Fatal(err)
	}
	before := list(t, s.host)
	write(t, s.inside, "a", "changed", 0o644)
	write(t, s.inside, "new", "x", 0o644)
	if err := os.Remove(filepath.Join(s.inside, "b")); err != nil {
		t.Fatal(err)
	}
	s.sync()
	s.alike()
	if after := list(t, s.host); after != before {
		t.Errorf("the host has\n%s", after)
	}
}

// TestLeadsOut: what the sandbox says can write nowhere else.
func TestLeadsOut(t *testing.T) {
	s := newSides(t, false)
	outside := t.TempDir()
	write(t, outside, "precious", "1", 0o644)
	if err := os.Symlink(outside, filepath.Join(s.host, "way")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.Fill(t.Context(), s.g); err != nil {
		t.Fatal(err)
	}
	// Inside, the link becomes a directory with a file of that name.
	_ = os.Remove(filepath.Join(s.inside, "way"))
	write(t, s.inside, "way/precious", "overwritten", 0o644)
	if err := os.Symlink("/etc", filepath.Join(s.inside, "abs")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../etc", filepath.Join(s.inside, "up")); err != nil {
		t.Fatal(err)
	}
	rep := s.sync()
	if len(rep.Skipped) != 2 {
		t.Errorf("skipped %v", rep.Skipped)
	}
	for _, name := range []string{"abs", "up"} {
		if _, err := os.Lstat(filepath.Join(s.host, name)); err == nil {
			t.Errorf("%s came to the host", name)
		}
	}
	if data, _ := os.ReadFile(filepath.Join(outside, "precious")); string(data) != "1" {
		t.Errorf("a file outside has %q", data)
	}
	if rep := s.sync(); rep.In+rep.Out+len(rep.Skipped) > 0 {
		t.Errorf("what was skipped is tried again: %+v", rep)
	}
}

// TestWhileProgramsWrite: what a program writes during a sync comes with the next one.
func TestWhileProgramsWrite(t *testing.T) {
	for _, op := range []string{"tree", "pack", "unpack"} {
		t.Run(op, func(t *testing.T) {
			s := newSides(t, false)
			write(t, s.host, "a", "1", 0o644)
			write(t, s.host, "b", "1", 0o644)
			if _, err := s.c.Fill(t.Context(), s.g); err != nil {
				t.Fatal(err)
			}
			write(t, s.host, "b", "two", 0o644)
			write(t, s.inside, "a", "two", 0o644)
			once := false
			s.g.during = func(at string) {
				if at == op && !once {
					once = true
					write(t, s.inside, "a", "three of it", 0o644)
				}
			}
			s.sync()
			s.g.during = nil
			s.sync()
			s.alike()
			if data, _ := os.ReadFile(filepath.Join(s.host, "a")); string(data) != "three of it" {
				t.Errorf("the host has %q", data)
			}
		})
	}
}

// TestClosedDirectory: a directory that the daemon's user cannot read is left on both sides, and the rest is
// synchronized.
func TestClosedDirectory(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("needs a normal user: root reads every directory")
	}
	s := newSides(t, false)
	write(t, s.host, "a", "1", 0o644)
	write(t, s.host, "closed/b", "1", 0o644)
	if _, err := s.c.Fill(t.Context(), s.g); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []fs.FileMode{0, 0o600, 0o300} {
		closed := filepath.Join(s.host, "closed")
		if err := os.Chmod(closed, mode); err != nil {
			t.Fatal(err)
		}
		// Of a size of its own: two writes can have one time.
		content := strings.Repeat("x", int(mode)+2)
		write(t, s.host, "a", content, 0o644)
		write(t, s.inside, "c", content, 0o644)
		write(t, s.inside, "closed/new", "x", 0o644)
		if rep := s.sync(); len(rep.Skipped) == 0 {
			t.Errorf("%v: nothing is told", mode)
		}
		if err := os.Chmod(closed, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{s.host, s.inside} {
			for _, name := range []string{"a", "c"} {
				if data, _ := os.ReadFile(filepath.Join(dir, name)); string(data) != content {
					t.Errorf("%v: %s has %d bytes", mode, name, len(data))
				}
			}
		}
		if _, err := os.Stat(filepath.Join(s.inside, "closed/b")); err != nil {
			t.Errorf("%v: what is below is removed: %v", mode, err)
		}
		s.sync()
		s.alike()
	}
}

// TestWhileTheHostWrites: a file that shrinks while it is carried is carried again.
func TestWhileTheHostWrites(t *testing.T) {
	s := newSides(t, false)
	if _, err := s.c.Fill(t.Context(), s.g); err != nil {
		t.Fatal(err)
	}
	write(t, s.host, "large", strings.Repeat("x", 4<<20), 0o644)
	left := 2
	s.g.during = func(at string) {
		if at == "unpack" && left > 0 {
			left--
			write(t, s.host, "large", strings.Repeat("y", 1000*left), 0o644)
		}
	}
	s.sync()
	s.g.during = nil
	s.sync()
	s.alike()
}

// TestTooMany: a directory that is too large is refused before anything is carried.
func TestTooMany(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: it makes 100,000 files")
	}
	s := newSides(t, false)
	for n := range filesync.MaxEntries/1000 + 1 {
		dir := filepath.Join(s.host, fmt.Sprint(n))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for k := range 1000 {
			if err := os.Symlink("x", filepath.Join(dir, fmt.Sprint(k))); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err := s.c.Fill(t.Context(), s.g)
	if api.CodeOf(err) != api.CodeTooLarge {
		t.Errorf("fill: %v", err)
	}
	if entries, _ := os.ReadDir(s.inside); len(entries) > 0 {
		t.Errorf("%d entries were carried", len(entries))
	}
}

// TestRandomChanges makes changes on both sides, never of the same file, and compares after each sync.
// Sometimes another daemon goes on.
func TestRandomChanges(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	s := newSides(t, false)
	if _, err := s.c.Fill(t.Context(), s.g); err != nil {
		t.Fatal(err)
	}
	writes := 0
	for round := range 60 {
		var did []string
		for range 1 + r.IntN(6) {
			side, name := s.host, "h"
			if r.IntN(2) == 0 {
				side, name = s.inside, "g"
			}
			// Each side changes its own files only: these have its letter.
			p := path.Join(fmt.Sprint(name, r.IntN(4)), fmt.Sprint(r.IntN(3)))
			if r.IntN(4) == 0 {
				p = fmt.Sprint(name, r.IntN(4))
			}
			writes++
			did = append(did, mutate(r, side, p, writes))
		}
		rep := s.sync()
		if len(rep.Conflicts) > 0 {
			t.Fatalf("round %d: conflicts %q after %q", round, rep.Conflicts, did)
		}
		if h, g := list(t, s.host), list(t, s.inside); h != g {
			t.Fatalf("round %d: after %q the host has\n%s\nand the sandbox\n%s", round, did, h, g)
		}
		if r.IntN(5) == 0 {
			s.open()
		}
	}
}

// mutate changes one file and says how. What cannot be done is not done. No two writes have one size: they
// can have one time.
func mutate(r *rand.Rand, dir, name string, size int) string {
	p := filepath.Join(dir, name)
	switch r.IntN(5) {
	case 0:
		_ = os.RemoveAll(p)
		return "remove " + name
	case 1:
		// A user who is not root needs all rights on a directory.
		_ = os.Chmod(p, fs.FileMode(0o700|r.IntN(64)))
		return "chmod " + name
	case 2:
		_ = os.MkdirAll(filepath.Dir(p), 0o755)
		_ = os.Symlink(path.Base(name)+"x", p)
		return "link " + name
	case 3:
		_ = os.MkdirAll(p, 0o755)
		return "mkdir " + name
	}
	_ = os.MkdirAll(filepath.Dir(p), 0o755)
	_ = os.WriteFile(p, bytes.Repeat([]byte{byte('a' + r.IntN(26))}, size), 0o644)
	return "write " + name
}
