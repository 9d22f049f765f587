//go:build linux

package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// findGroupMaker looks which cgroup hierarchies are mounted and usable.
func findGroupMaker(parent string, root bool) groupMaker {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return groupMaker{reason: "the mounts of this process cannot be read"}
	}
	mounts := parseCgroupMounts(string(b))
	if root {
		return groupMakerFrom(mounts, parent)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return groupMaker{reason: "the cgroup of this process cannot be read"}
	}
	return delegatedGroupMaker(mounts, string(own), parent)
}

// delegatedGroupMaker uses what of the unified hierarchy was handed to this
// user: the highest ancestor of the own group that the user may manage. A
// process can only be started into another group below that.
func delegatedGroupMaker(mounts []cgroupMount, own, parent string) groupMaker {
	const mend = "run cloche as root, as a systemd user service, or by systemd-run --user --scope -p Delegate=yes"
	for _, mount := range mounts {
		if mount.version != 2 {
			continue
		}
		found := ""
		for dir := filepath.Clean("/" + unifiedPath(own)); ; dir = filepath.Dir(dir) {
			if !managed(filepath.Join(mount.path, dir)) {
				break
			}
			found = dir
			if dir == "/" {
				break
			}
		}
		if found == "" {
			return groupMaker{reason: "no cgroup was delegated to this user; " + mend}
		}
		mount.path = filepath.Join(mount.path, found)
		m := groupMakerFrom([]cgroupMount{mount}, parent)
		if len(m.roots) == 0 {
			m.reason += "; " + mend
		}
		return m
	}
	return groupMaker{reason: "a normal user owns no cgroup of version 1 and none of version 2 is mounted; run cloche as root"}
}

// unifiedPath is the path of the unified hierarchy in /proc/self/cgroup.
func unifiedPath(own string) string {
	for line := range strings.Lines(own) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return path
		}
	}
	return "/"
}

// managed reports whether this process may make groups in a directory and move
// processes between them.
func managed(dir string) bool {
	for _, name := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
		if unix.Access(filepath.Join(dir, name), unix.W_OK) != nil {
			return false
		}
	}
	return true
}

// cgroupMount is a mounted cgroup file system.
type cgroupMount struct {
	path        string
	version     int
	controllers []string // version 1 only: from the mount's options
}

// parseCgroupMounts finds the cgroup mounts in a mountinfo file.
func parseCgroupMounts(mountinfo string) []cgroupMount {
	var mounts []cgroupMount
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		pre, post := strings.Fields(before), strings.Fields(after)
		if !ok || len(pre) < 5 || len(post) < 3 {
			continue
		}
		switch post[0] {
		case "cgroup2":
			mounts = append(mounts, cgroupMount{path: pre[4], version: 2})
		case "cgroup":
			mounts = append(mounts, cgroupMount{path: pre[4], version: 1, controllers: strings.Split(post[2], ",")})
		}
	}
	return mounts
}

// groupMakerFrom takes from each mount the controllers that no other has.
func groupMakerFrom(mounts []cgroupMount, parent string) groupMaker {
	var m groupMaker
	have := func(name string) bool {
		for _, r := range m.roots {
			if name == "memory" && r.memory || name == "cpu" && r.cpu {
				return true
			}
		}
		return false
	}
	for _, mount := range mounts {
		h := hierarchy{mount: mount.path, root: filepath.Join(mount.path, parent), version: mount.version}
		if mount.version == 2 {
			b, _ := os.ReadFile(filepath.Join(mount.path, "cgroup.controllers"))
			for _, c := range strings.Fields(string(b)) {
				h.memory = h.memory || c == "memory"
				h.cpu = h.cpu || c == "cpu"
			}
			h.usage = h.cpu
		} else {
			for _, c := range mount.controllers {
				h.memory = h.memory || c == "memory"
				h.cpu = h.cpu || c == "cpu"
				h.usage = h.usage || c == "cpuacct"
			}
		}
		h.memory = h.memory && !have("memory")
		h.cpu = h.cpu && !have("cpu")
		if !h.memory && !h.cpu && (!h.usage || h.version == 2) {
			continue
		}
		if err := os.MkdirAll(h.root, 0o755); err != nil {
			m.reason = "no cgroup can be made: " + errText(err)
			continue
		}
		if h.version == 2 {
			if err := h.delegate(h.mount); err != nil {
				m.reason = "the memory and cpu controllers cannot be handed down: " + errText(err)
				_ = os.Remove(h.root)
				continue
			}
		}
		m.roots = append(m.roots, h)
	}
	if len(m.roots) == 0 && m.reason == "" {
		m.reason = "no cgroup hierarchy with the memory or cpu controller is mounted"
	}
	return m
}

// errText is an error without the path it is about.
func errText(err error) string {
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		return pe.Err.Error()
	}
	return err.Error()
}

// describe says for people which hierarchies are used.
func (m groupMaker) describe() string {
	if len(m.roots) == 0 {
		return "none: " + m.reason
	}
	var parts []string
	for _, h := range m.roots {
		what := h.controller()
		if h.version == 2 {
			what = "v2"
		}
		parts = append(parts, what)
	}
	return strings.Join(parts, ", ")
}
