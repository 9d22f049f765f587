package image

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// below is what an image holds below a directory of this machine, by names that are
// relative to it.
func below(t *testing.T, root Rootfs, dir string) map[string]string {
	t.Helper()
	sub, err := fs.Sub(open(t, root.Image), strings.TrimPrefix(dir, "/"))
	must(t, err)
	return contentOf(t, sub)
}

// realDir is a directory for the test whose path has no symlink.
func realDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return dir
}

// TestBuildBaseTakesWhatProgramsNeed: a base image holds the interpreters of its scripts,
// the symlinks that lead to them, and nothing else of their directories.
func TestBuildBaseTakesWhatProgramsNeed(t *testing.T) {
	dir := realDir(t)
	script := "#!" + dir + "/link/interpreter\n"
	orphan := "#!" + dir + "/missing\n"
	put(t, dir, "real/script", script, 0o755)
	put(t, dir, "real/orphan", orphan, 0o755)
	put(t, dir, "real/interpreter", "text", 0o755)
	put(t, dir, "real/unused", "text", 0o755)
	put(t, dir, "whole/below/orphan", orphan, 0o644)
	must(t, os.Symlink("real", filepath.Join(dir, "link")))
	must(t, os.Symlink(dir+"/link", filepath.Join(dir, "absolute")))
	must(t, os.Symlink("nowhere", filepath.Join(dir, "whole/dangling")))
	s := images(t)
	_, err := s.BuildBase(t.Context(), "base", []string{dir + "/absolute/script", dir + "/link/orphan", dir + "/whole"}, ImportOptions{})
	must(t, err)
	root, err := s.Resolve(t.Context(), "base", Need{})
	must(t, err)
	want := map[string]string{
		"absolute": "-> " + dir + "/link", "link": "-> real", "real": "dir", "real/script": script, "real/interpreter": "text", "real/orphan": orphan,
		"whole": "dir", "whole/below": "dir", "whole/below/orphan": orphan, "whole/dangling": "-> nowhere",
	}
	if got := below(t, root, dir); !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
