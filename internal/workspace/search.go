package workspace

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
)

// Search lists directories of a tree, the nearest first, within bounds. It follows no
// symlink, and passes over what it cannot read.
type Search struct {
	// Levels are those below the root that are listed, Dirs the most directories, and
	// Entries the most entries of all of them.
	Levels, Dirs, Entries int
	// Enter says whether a directory of that name is listed; nil is every one.
	Enter func(name string) bool
}

// Run calls look with each directory, relative to root, and its entries.
func (s Search) Run(root *os.Root, look func(dir string, entries []fs.DirEntry)) {
	level := []string{"."}
	for depth := 0; depth <= s.Levels && len(level) > 0; depth++ {
		var next []string
		for _, dir := range level {
			if s.Dirs--; s.Dirs < 0 || s.Entries <= 0 {
				return
			}
			entries := list(root, dir, s.Entries)
			s.Entries -= len(entries)
			look(dir, entries)
			for _, e := range entries {
				if e.IsDir() && (s.Enter == nil || s.Enter(e.Name())) {
					next = append(next, path.Join(dir, e.Name()))
				}
			}
		}
		slices.Sort(next)
		level = next
	}
}

// list is at most so many entries of a directory; none of one that cannot be read.
func list(root *os.Root, dir string, most int) []fs.DirEntry {
	f, err := root.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	entries, err := f.ReadDir(most)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	return entries
}
