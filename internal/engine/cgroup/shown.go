//go:build linux

package cgroup

import (
	"os"
	"path/filepath"
	"slices"
)

// Shown is a directory of a group, or a file in one, that the sandbox's programs may read.
type Shown struct {
	// Name is its path below the place where programs look; empty is that place.
	Name string
	// Path is where it is on the host.
	Path string
	// File says that it is a file.
	File bool
}

const (
	cpuset     = "cpuset"
	cpusetCPUs = "cpuset.cpus"
)

// Shown are the directories that have the limits of the sandbox's own processes, and what
// they use: of version 1 one for each hierarchy with limits, or the one of version 2. Without
// controllers there are no such directories.
func (m Maker) Shown(g *Group) []Shown {
	var first, second []Shown
	for _, p := range g.Parts {
		switch {
		case len(p.Uses) == 0:
		case p.Mount.Version == 2:
			second = []Shown{{Path: p.Dir}}
		case p.split:
			first = append(first, Shown{Name: filepath.Base(p.Mount.Path), Path: filepath.Join(p.Dir, guestGroup)})
		default:
			first = append(first, Shown{Name: filepath.Base(p.Mount.Path), Path: p.Dir})
		}
	}
	if len(first) == 0 {
		return second
	}
	if path := m.processors(); path != "" {
		first = append(first, Shown{Name: filepath.Join(cpuset, cpusetCPUs), Path: path, File: true})
	}
	return first
}

// processors is the file of version 1 that lists the processors of this process, and so of
// the sandboxes, which have no group of their own for that; empty if it is not mounted. The JVM reads no
// limits of version 1 where nothing of this hierarchy is mounted.
func (m Maker) processors() string {
	own, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return ""
	}
	for _, mount := range m.mounts {
		if mount.Version != 1 || !slices.Contains(mount.Controllers, cpuset) {
			continue
		}
		if dir, ok := mount.own(string(own)); ok {
			path := filepath.Join(dir, cpusetCPUs)
			if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
				return path
			}
		}
	}
	return ""
}
