//go:build linux

package cgroup

import (
	"os"
	"path/filepath"
	"strings"
)

// Dirs are the directories that the group of an instance has or would have.
func (m Maker) Dirs(owner, id string) []string {
	var dirs []string
	for _, h := range m.All {
		dirs = append(dirs, filepath.Join(h.Root, owner, id))
	}
	return dirs
}

// Open is the group with these directories, as far as this machine has them.
// They may be where an earlier daemon had its place and this one has not: in
// another scope of systemd's, or below another group of version 1. It can be read,
// frozen and removed; nothing is born in it.
func (m Maker) Open(dirs []string) *Group {
	g := &Group{}
	for _, dir := range dirs {
		if h, ok := m.hierarchyOf(filepath.Clean(dir)); ok {
			g.Parts = append(g.Parts, Part{Hierarchy: h, Dir: filepath.Clean(dir)})
		}
	}
	return g
}

// OpenRecorded is the group of an instance with all that is known of it: the directories
// that were written down, or without any those that it would have.
func (m Maker) OpenRecorded(owner, id string, dirs []string) *Group {
	if len(dirs) == 0 {
		dirs = m.Dirs(owner, id)
	}
	return m.Open(dirs)
}

// hierarchyOf finds where the directory of an instance belongs.
func (m Maker) hierarchyOf(dir string) (Hierarchy, bool) {
	root := filepath.Dir(filepath.Dir(dir))
	for _, h := range m.All {
		if h.Root == root {
			return h, true
		}
	}
	if m.layout.Parent == "" || filepath.Base(root) != m.layout.Parent {
		return Hierarchy{}, false
	}
	var h Hierarchy
	for _, mount := range m.mounts {
		if strings.HasPrefix(root, mount.Path+"/") && len(mount.Path) > len(h.Mount.Path) {
			h = m.layout.hierarchy(mount)
		}
	}
	h.Root = root
	h.Nested = h.Mount.Version == 1 && filepath.Dir(root) != h.Mount.Path
	return h, h.Mount.Version != 0
}

// Orphans are the directories of each instance's group that an owner has, whatever is on
// record.
func (m Maker) Orphans(owner string) map[string][]string {
	var roots []string
	for _, h := range m.All {
		roots = append(roots, h.Root)
	}
	if m.scopes != "" {
		others, _ := filepath.Glob(filepath.Join(m.scopes, m.layout.Parent))
		roots = append(roots, others...)
	}
	found := map[string][]string{}
	seen := map[string]bool{}
	for _, root := range roots {
		entries, err := os.ReadDir(filepath.Join(root, owner))
		if err != nil || seen[root] {
			continue
		}
		seen[root] = true
		for _, entry := range entries {
			if entry.IsDir() {
				found[entry.Name()] = append(found[entry.Name()], filepath.Join(root, owner, entry.Name()))
			}
		}
	}
	return found
}
