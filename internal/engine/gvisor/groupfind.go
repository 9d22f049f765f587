//go:build linux

package gvisor

import (
	"os"
	"path/filepath"
	"strings"
)

// findGroupMaker looks which cgroup hierarchies are mounted and usable.
func findGroupMaker(parent string, root bool) groupMaker {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return groupMaker{reason: "the mounts of this process cannot be read"}
	}
	return groupMakerFrom(parseCgroupMounts(string(b)), parent, root)
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

func groupMakerFrom(mounts []cgroupMount, parent string, root bool) groupMaker {
	if !root {
		return groupMaker{reason: "a normal user owns no cgroup in which limits can be set"}
	}
	var m groupMaker
	have := func(name string, h hierarchy) bool {
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
		h.memory = h.memory && !have("memory", h)
		h.cpu = h.cpu && !have("cpu", h)
		if !h.memory && !h.cpu && !(h.usage && h.version == 1) {
			continue
		}
		if err := os.MkdirAll(h.root, 0o755); err != nil {
			m.reason = "no cgroup can be made: " + errText(err)
			continue
		}
		if h.version == 2 {
			if err := write(h.mount, "cgroup.subtree_control", "+memory +cpu"); err != nil {
				m.reason = "the memory and cpu controllers cannot be handed down: " + errText(err)
				os.Remove(h.root)
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
	if pe, ok := err.(*os.PathError); ok {
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
