//go:build linux

package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// findGroupMaker looks which cgroup hierarchies are mounted and usable, and asks
// systemd for a place where there is none. That may take delegationTimeout, and
// may move this process into another cgroup.
func findGroupMaker(parent string, root bool) groupMaker {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return groupMaker{reason: "the mounts of this process cannot be read"}
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return groupMaker{reason: "the cgroup of this process cannot be read"}
	}
	mounts := parseCgroupMounts(string(b))
	var m groupMaker
	if root {
		m = groupMakerFrom(mounts, string(own), parent)
		if len(m.roots) == 0 {
			m = newDelegation(parent, root).groupMaker(mounts, m)
		}
	} else {
		m = delegatedGroupMaker(mounts, string(own), parent, newDelegation(parent, root))
	}
	m.mounts, m.parent = mounts, parent
	return m
}

// cgroupMount is a mounted cgroup file system.
type cgroupMount struct {
	path        string
	root        string // what part of the hierarchy is mounted; empty is all
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
		m := cgroupMount{path: pre[4], root: pre[3]}
		switch post[0] {
		case "cgroup2":
			m.version = 2
		case "cgroup":
			m.version, m.controllers = 1, strings.Split(post[2], ",")
		default:
			continue
		}
		mounts = append(mounts, m)
	}
	return mounts
}

// own is the directory of a process's group, from its /proc/…/cgroup. There is
// none where that is outside of what is mounted.
func (m cgroupMount) own(cgroups string) (string, bool) {
	for line := range strings.Lines(cgroups) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		match := m.version == 2 && f[0] == "0" && f[1] == ""
		if m.version == 1 {
			for c := range strings.SplitSeq(f[1], ",") {
				match = match || c != "" && slices.Contains(m.controllers, c)
			}
		}
		if match {
			return m.dir(f[2])
		}
	}
	return "", false
}

// dir is where a group of the hierarchy is mounted.
func (m cgroupMount) dir(group string) (string, bool) {
	// The kernel writes /.. for what is outside of the cgroup namespace.
	rel, ok := strings.CutPrefix(group, strings.TrimSuffix(m.root, "/")+"/")
	if !ok && group != m.root || slices.Contains(strings.Split(rel, "/"), "..") {
		return "", false
	}
	if !ok {
		rel = ""
	}
	return filepath.Join(m.path, rel), true
}

// hierarchy is what a mount can be used for. The root is not set.
func (m cgroupMount) hierarchy() hierarchy {
	h := hierarchy{mount: m, version: m.version}
	controllers := m.controllers
	if m.version == 2 {
		b, _ := os.ReadFile(filepath.Join(m.path, "cgroup.controllers"))
		controllers = strings.Fields(string(b))
	}
	h.memory = slices.Contains(controllers, "memory")
	h.cpu = slices.Contains(controllers, "cpu")
	h.usage = slices.Contains(controllers, "cpuacct") || m.version == 2 && h.cpu
	return h
}

// has reports whether a controller is used that a limit needs.
func (m groupMaker) has(controller string) bool {
	return slices.ContainsFunc(m.roots, func(h hierarchy) bool {
		return controller == "memory" && h.memory || controller == "cpu" && h.cpu
	})
}

// missing are the controllers that a limit needs and that no hierarchy has.
func (m groupMaker) missing() []string {
	return slices.DeleteFunc([]string{"memory", "cpu"}, m.has)
}

// groupMakerFrom takes from each mount the controllers that no other has.
func groupMakerFrom(mounts []cgroupMount, own, parent string) groupMaker {
	var m groupMaker
	for _, mount := range mounts {
		h := mount.hierarchy()
		h.memory = h.memory && !m.has("memory")
		h.cpu = h.cpu && !m.has("cpu")
		if !h.memory && !h.cpu && (!h.usage || h.version == 2) {
			continue
		}
		h.place(own, parent)
		if err := os.MkdirAll(h.root, 0o755); err != nil {
			m.reason = "no cgroup can be made: " + errText(err)
			continue
		}
		if h.version == 2 {
			if err := h.handDown(); err != nil {
				m.reason = "the memory and cpu controllers cannot be handed down: " + errText(err)
				_ = os.Remove(h.root)
				continue
			}
		}
		if h.nested {
			_ = os.Remove(h.root)
		}
		m.roots = append(m.roots, h)
	}
	if missing := m.missing(); len(missing) > 0 && m.reason == "" {
		m.reason = fmt.Sprintf("no cgroup hierarchy with the %s controller is mounted", strings.Join(missing, " or the "))
	}
	return m
}

// place chooses where the engine's own directory is. On version 1 that is below
// the group of this process: what limits a container limits its sandboxes too.
// At the top of the hierarchy they would escape that. On version 2 it cannot be:
// there a group has either processes or groups with controllers.
func (h *hierarchy) place(own, parent string) {
	base := h.mount.path
	if h.version == 1 {
		dir, ok := h.mount.own(own)
		if ok && dir != base && unix.Access(dir, unix.W_OK) == nil && unix.Access(filepath.Join(dir, "tasks"), unix.W_OK) == nil {
			base, h.nested = dir, true
		}
	}
	h.root = filepath.Join(base, parent)
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
		if h.nested {
			what += " (below the own group)"
		}
		parts = append(parts, what)
	}
	text := strings.Join(parts, ", ")
	if m.scope != "" {
		text += " (" + m.scope + ", by systemd)"
	}
	if len(m.missing()) > 0 {
		text += "; " + m.reason
	}
	return text
}
