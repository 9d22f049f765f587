//go:build linux

package gvisor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// shelf is executables on a home of the test's, and the running one.
func shelf(t *testing.T, dir, path string) *executables {
	t.Helper()
	return &executables{path: path, dir: dir, log: slog.New(slog.NewTextHandler(t.Output(), nil)), everybody: true}
}

func program(t *testing.T, dir, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, "program")
	_ = os.Remove(path)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// content is what a role would be executed from.
func content(t *testing.T, e *executables) (text, hash string) {
	t.Helper()
	x := e.open(t.Context(), false)
	if err := x.wait(); err != nil {
		t.Fatal(err)
	}
	defer x.close()
	b := make([]byte, 100)
	n, _ := x.file.ReadAt(b, 0)
	return string(b[:n]), x.hash
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// TestKeep: the executable is kept under its hash, by a link or by a copy that
// everybody can execute.
func TestKeep(t *testing.T) {
	for name, mode := range map[string]os.FileMode{"link": 0o755, "copy": 0o700} {
		t.Run(name, func(t *testing.T) {
			home, src := filepath.Join(t.TempDir(), "bin"), t.TempDir()
			path := program(t, src, "one", mode)
			text, hash := content(t, shelf(t, home, path))
			if text != "one" || hash != hashOf("one") {
				t.Fatalf("executes %q of hash %s", text, hash)
			}
			kept, err := os.Stat(filepath.Join(home, hash[:hashLetter], keptName))
			if err != nil {
				t.Fatal(err)
			}
			orig, err := os.Stat(path)
			if err != nil || orig.Mode().Perm() != mode {
				t.Errorf("the original's mode is %v, %v", orig.Mode(), err)
			}
			if name == "copy" && kept.Mode().Perm() != 0o555 {
				t.Errorf("the copy's mode is %v", kept.Mode())
			}
			if os.SameFile(kept, orig) != (name == "link") {
				t.Errorf("it is the same file: %v", os.SameFile(kept, orig))
			}
			// A restart reads nothing: it would have to, with a context that is over.
			over, cancel := context.WithCancel(t.Context())
			cancel()
			if k, err := shelf(t, home, path).keep(over); err != nil || k.hash != hash {
				t.Errorf("after a restart: %+v, %v", k, err)
			}
			// The same executable, put there anew, is the same.
			path = program(t, src, "one", mode)
			if _, again := content(t, shelf(t, home, path)); again != hash {
				t.Errorf("the same content has hash %s", again)
			}
			if left, _ := filepath.Glob(filepath.Join(home, "*")); len(left) != 1 {
				t.Errorf("kept %v", left)
			}
			// An upgrade keeps the earlier one, until it is swept.
			e := shelf(t, home, program(t, src, "two", mode))
			if text, _ := content(t, e); text != "two" {
				t.Errorf("after an upgrade executes %q", text)
			}
			if b, err := os.ReadFile(filepath.Join(home, hash[:hashLetter], keptName)); err != nil || string(b) != "one" {
				t.Errorf("the earlier one is %q, %v", b, err)
			}
			if err := os.Mkdir(filepath.Join(home, "new-1"), 0o700); err != nil {
				t.Fatal(err)
			}
			for _, used := range [][]string{{hash}, nil} {
				if err := e.sweep(used); err != nil {
					t.Fatal(err)
				}
				if left, _ := filepath.Glob(filepath.Join(home, "*")); len(left) != 1+len(used) {
					t.Errorf("%d are used, left: %v", len(used), left)
				}
			}
			if text, _ := content(t, e); text != "two" {
				t.Errorf("after the sweep executes %q", text)
			}
		})
	}
}

// TestKeptWasChanged: what is kept is never executed when it is not what it was.
func TestKeptWasChanged(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, kept string){
		"in place": func(t *testing.T, kept string) {
			if err := os.WriteFile(kept, []byte("bad"), 0o755); err != nil {
				t.Fatal(err)
			}
		},
		"removed": func(t *testing.T, kept string) { os.Remove(kept) },
		"no note": func(t *testing.T, kept string) {
			os.Remove(filepath.Join(filepath.Dir(kept), noteName))
			os.Remove(kept)
			if err := os.WriteFile(kept, []byte("bad"), 0o755); err != nil {
				t.Fatal(err)
			}
		},
		"another note": func(t *testing.T, kept string) {
			if err := writeNote(filepath.Dir(kept), note{Hash: hashOf("bad")}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				home := t.TempDir()
				path := program(t, t.TempDir(), "one", 0o700) // a copy
				e := shelf(t, home, path)
				_, hash := content(t, e)
				kept := filepath.Join(home, hash[:hashLetter], keptName)
				if err := os.Chmod(kept, 0o755); err != nil {
					t.Fatal(err)
				}
				spoil(t, kept)
				if restart {
					e = shelf(t, home, path)
				}
				if text, again := content(t, e); text != "one" || again != hash {
					t.Errorf("executes %q of hash %s", text, again)
				}
			})
		}
	}
}

// TestCannotKeep: a home that nothing can be executed in, or that is no
// directory, costs the kept executable and no sandbox.
func TestCannotKeep(t *testing.T) {
	path := program(t, t.TempDir(), "one", 0o755)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	homes := []string{file}
	if dir := t.TempDir(); os.Geteuid() == 0 {
		if err := unix.Mount("none", dir, "tmpfs", unix.MS_NOEXEC, ""); err == nil {
			t.Cleanup(func() { unix.Unmount(dir, 0) })
			homes = append(homes, dir)
		}
	}
	for _, home := range homes {
		var log bytes.Buffer
		e := shelf(t, home, path)
		e.log = slog.New(slog.NewTextHandler(&log, nil))
		for range 2 {
			if text, hash := content(t, e); text != "one" || hash != "" {
				t.Errorf("executes %q of hash %q", text, hash)
			}
		}
		if n := bytes.Count(log.Bytes(), []byte("\n")); n != 1 {
			t.Errorf("%d lines in the log:\n%s", n, log.Bytes())
		}
	}
	e := shelf(t, t.TempDir(), filepath.Join(t.TempDir(), "nothing"))
	x := e.open(t.Context(), false)
	if x.wait() == nil {
		t.Error("what is not there was opened")
	}
	x.close()
}

// TestCarried: the executable that the build carries is unpacked once, and again when what is kept was changed.
func TestCarried(t *testing.T) {
	home, src := filepath.Join(t.TempDir(), "bin"), t.TempDir()
	unpacked := 0
	carry := func(text string) *executables {
		e := shelf(t, home, program(t, src, "the running one, of "+text, 0o755))
		e.carried = func() (io.ReadCloser, error) {
			unpacked++
			return io.NopCloser(strings.NewReader(text)), nil
		}
		return e
	}
	check := func(what string, e *executables, text string, times int) {
		t.Helper()
		unpacked = 0
		got, hash := content(t, e)
		if got != text || hash != hashOf(text) || unpacked != times {
			t.Errorf("%s: %q of %s, unpacked %d times, want %q and %d", what, got, hash, unpacked, text, times)
		}
	}
	first := carry("one")
	check("first", first, "one", 1)
	check("again", first, "one", 0)
	path := filepath.Join(home, hashOf("one")[:hashLetter], keptName)
	if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o555 {
		t.Errorf("it is kept as %v, %v", fi, err)
	}
	again := &executables{path: first.path, dir: home, log: first.log, carried: first.carried}
	check("in another process", again, "one", 0)
	other := carry("one")
	check("by another build", other, "one", 1)
	if err := errors.Join(os.Chmod(path, 0o755), os.WriteFile(path, []byte("changed"), 0o755)); err != nil {
		t.Fatal(err)
	}
	second := carry("two")
	check("of another build", second, "two", 1)
	if all, err := os.ReadDir(home); err != nil || len(all) != 2 {
		t.Errorf("the directory holds %v, %v", all, err)
	}
	if err := second.sweep(nil); err != nil {
		t.Fatal(err)
	}
	if all, err := os.ReadDir(home); err != nil || len(all) != 1 {
		t.Errorf("after the sweep the directory holds %v, %v", all, err)
	}
	if err := os.Remove(filepath.Join(home, hashOf("two")[:hashLetter], keptName)); err != nil {
		t.Fatal(err)
	}
	check("removed", second, "two", 1)

	// Without a directory it is in memory, and cannot be written to.
	nowhere := carry("three")
	nowhere.dir = ""
	unpacked = 0
	x := nowhere.open(t.Context(), true)
	if err := x.wait(); err != nil {
		t.Fatal(err)
	}
	defer x.close()
	if b, err := io.ReadAll(x.file); err != nil || string(b) != "three" || x.hash != "" {
		t.Errorf("in memory: %q, %q, %v", b, x.hash, err)
	}
	if _, err := x.file.Write([]byte("x")); err == nil {
		t.Error("the one in memory is written to")
	}
}
