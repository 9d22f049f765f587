//go:build linux

package gvisor

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// dirs are the directories that the group of an instance has or would have.
func (m groupMaker) dirs(owner, id string) []string {
	var dirs []string
	for _, h := range m.roots {
		dirs = append(dirs, filepath.Join(h.root, owner, id))
	}
	return dirs
}

// open is the group with these directories, as far as this machine has them.
// They may be where an earlier daemon had its place and this one has not: in
// another scope of systemd's, or below another group of version 1.
func (m groupMaker) open(dirs []string) *group {
	g := &group{}
	for _, dir := range dirs {
		if h, ok := m.hierarchyOf(filepath.Clean(dir)); ok {
			g.parts = append(g.parts, part{h, filepath.Clean(dir)})
		}
	}
	return g
}

// hierarchyOf finds where the directory of an instance belongs.
func (m groupMaker) hierarchyOf(dir string) (hierarchy, bool) {
	root := filepath.Dir(filepath.Dir(dir))
	for _, h := range m.roots {
		if h.root == root {
			return h, true
		}
	}
	if m.parent == "" || filepath.Base(root) != m.parent {
		return hierarchy{}, false
	}
	var h hierarchy
	for _, mount := range m.mounts {
		if strings.HasPrefix(root, mount.path+"/") && len(mount.path) > len(h.mount.path) {
			h = mount.hierarchy()
		}
	}
	h.root = root
	h.nested = h.version == 1 && filepath.Dir(root) != h.mount.path
	// Only that hierarchy has the two groups below which limited the memory.
	h.memory = unix.Access(filepath.Join(dir, guestGroup), unix.F_OK) == nil
	return h, h.version != 0
}

// orphans are records of what has a group of the owner's.
func (m groupMaker) orphans(owner string) []record {
	var roots []string
	for _, h := range m.roots {
		roots = append(roots, h.root)
	}
	if m.scopes != "" {
		others, _ := filepath.Glob(filepath.Join(m.scopes, m.parent))
		roots = append(roots, others...)
	}
	var recs []record
	index := map[string]int{}
	seen := map[string]bool{}
	for _, root := range roots {
		entries, err := os.ReadDir(filepath.Join(root, owner))
		if err != nil || seen[root] {
			continue
		}
		seen[root] = true
		for _, entry := range entries {
			if !entry.IsDir() {
				continue
			}
			i, ok := index[entry.Name()]
			if !ok {
				i = len(recs)
				index[entry.Name()] = i
				recs = append(recs, record{ID: entry.Name(), Owner: owner})
			}
			recs[i].Cgroups = append(recs[i].Cgroups, filepath.Join(root, owner, entry.Name()))
		}
	}
	return recs
}
