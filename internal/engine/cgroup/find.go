//go:build linux

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// Maker makes the groups of this machine's kind. The daemon is in none of them, so
// that what happens to its group does not happen to the sandboxes.
type Maker struct {
	// All are the hierarchies that are used; empty when none can be.
	All []Hierarchy
	// Reason is why there are none, or why one of the controllers is missing.
	Reason string

	layout Layout
	// mounts are where there may be groups of earlier daemons, which had another place.
	mounts []Mount
	// scopes matches the directories of what systemd gave to earlier daemons; empty
	// when it gives nothing.
	scopes string
	scope  string // the name of what systemd gave to this process
}

// None makes no groups, and says why.
func None(reason string) Maker { return Maker{Reason: reason} }

// In makes groups in these hierarchies, whatever else there is.
func In(l Layout, all ...Hierarchy) Maker {
	m := Maker{layout: l, All: all}
	for _, h := range all {
		m.mounts = append(m.mounts, h.Mount)
	}
	return m
}

// Find looks which hierarchies are mounted and usable by root, and asks systemd for a
// group if none is. That may take delegationTimeout, and may move this process
// into another cgroup.
func Find(l Layout, root bool) Maker { return find(l, root, true) }

// Look is Find without systemd. It moves no process, except for this one where it is alone in the top
// of a hierarchy of version 2.
func Look(l Layout, root bool) Maker { return find(l, root, false) }

func find(l Layout, root, ask bool) Maker {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return None("the mounts of this process cannot be read")
	}
	// Of this thread: the first one, which stands for the process, may be the spawner of an
	// engine and in the group of a sandbox just now.
	own, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return None("the cgroup of this process cannot be read")
	}
	mounts := ParseMounts(string(b))
	var m Maker
	if root {
		m = l.from(mounts, string(own))
		if len(m.All) == 0 && ask {
			m = newDelegation(l, root).maker(mounts, m)
		}
	} else {
		d := newDelegation(l, root)
		if !ask {
			d.buses = nil
		}
		m = delegated(mounts, string(own), d)
	}
	m.mounts, m.layout = mounts, l
	return m
}

// Mount is a mounted cgroup file system.
type Mount struct {
	Path string
	// Root is what part of the hierarchy is mounted; empty is all.
	Root string
	// Version is 1 or 2.
	Version int
	// Controllers are, of version 1 only, from the mount's options.
	Controllers []string
}

// ParseMounts finds the cgroup mounts in a mountinfo file.
func ParseMounts(mountinfo string) []Mount {
	var mounts []Mount
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		pre, post := strings.Fields(before), strings.Fields(after)
		if !ok || len(pre) < 5 || len(post) < 3 {
			continue
		}
		m := Mount{Path: pre[4], Root: pre[3]}
		switch post[0] {
		case "cgroup2":
			m.Version = 2
		case "cgroup":
			m.Version, m.Controllers = 1, strings.Split(post[2], ",")
		default:
			continue
		}
		mounts = append(mounts, m)
	}
	return mounts
}

// own is the directory of a process's group, from its /proc/…/cgroup. It is
// missing where that is outside of what is mounted.
func (m Mount) own(cgroups string) (string, bool) {
	for line := range strings.Lines(cgroups) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		match := m.Version == 2 && f[0] == "0" && f[1] == ""
		if m.Version == 1 {
			for c := range strings.SplitSeq(f[1], ",") {
				match = match || c != "" && slices.Contains(m.Controllers, c)
			}
		}
		if match {
			return m.dir(f[2])
		}
	}
	return "", false
}

// dir is where a group of the hierarchy is mounted.
func (m Mount) dir(group string) (string, bool) {
	// The kernel writes /.. for what is outside of the cgroup namespace.
	rel, ok := strings.CutPrefix(group, strings.TrimSuffix(m.Root, "/")+"/")
	if !ok && group != m.Root || slices.Contains(strings.Split(rel, "/"), "..") {
		return "", false
	}
	if !ok {
		rel = ""
	}
	return filepath.Join(m.Path, rel), true
}

// hierarchy is what a mount can be used for. The root is not set.
func (l Layout) hierarchy(m Mount) Hierarchy {
	h := Hierarchy{Mount: m}
	controllers := m.Controllers
	if m.Version == 2 {
		b, _ := os.ReadFile(filepath.Join(m.Path, "cgroup.controllers"))
		controllers = strings.Fields(string(b))
	}
	for _, c := range l.Controllers {
		if slices.Contains(controllers, c) {
			h.Uses = append(h.Uses, c)
		}
	}
	return h
}

// Has reports whether a controller is used.
func (m Maker) Has(controller string) bool {
	return slices.ContainsFunc(m.All, func(h Hierarchy) bool { return h.Has(controller) })
}

// Unified is the hierarchy of version 2, with controllers or without; nil if it is not mounted.
func (m Maker) Unified() *Hierarchy {
	i := slices.IndexFunc(m.All, func(h Hierarchy) bool { return h.Mount.Version == 2 })
	if i < 0 {
		return nil
	}
	return &m.All[i]
}

// limits are the controllers of the layout that a limit needs.
func (l Layout) limits() []string {
	return slices.DeleteFunc(slices.Clone(l.Controllers), func(c string) bool { return c == Usage })
}

// missing are the controllers that a limit needs and that no hierarchy has.
func (m Maker) missing() []string { return slices.DeleteFunc(m.layout.limits(), m.Has) }

// from takes from each mount the controllers that no other has.
func (l Layout) from(mounts []Mount, own string) Maker {
	m := Maker{layout: l}
	for _, mount := range mounts {
		h := l.hierarchy(mount)
		h.Uses = slices.DeleteFunc(h.Uses, m.Has)
		if len(h.Uses) == 0 && !(l.Bare && mount.Version == 2 && m.Unified() == nil) {
			continue
		}
		h.place(own, l.Parent)
		if err := os.MkdirAll(h.Root, 0o755); err != nil {
			m.Reason = "no cgroup can be made: " + pidfd.ErrText(err)
			continue
		}
		if err := h.handDownFromTop(); err != nil {
			m.Reason = fmt.Sprintf("no group can be handed these controllers: %s: %s", strings.Join(l.limits(), ", "), pidfd.ErrText(err))
			if !l.Bare || m.Unified() != nil {
				_ = os.Remove(h.Root)
				continue
			}
			h.Uses = nil // groups without controllers can be beside processes
		}
		if h.Nested {
			_ = os.Remove(h.Root)
		}
		m.All = append(m.All, h)
	}
	if missing := m.missing(); len(missing) > 0 && m.Reason == "" {
		m.Reason = fmt.Sprintf("no cgroup hierarchy that is mounted has the %s controller: this kernel has none, or it was not handed down to here", strings.Join(missing, " or the "))
	}
	return m
}

// place chooses where the engine's own directory is. On version 1 that is below
// the group of this process: what limits a container limits its sandboxes too.
// At the top of the hierarchy they would escape that. On version 2 it cannot be:
// there a group has either processes or groups with controllers.
func (h *Hierarchy) place(own, parent string) {
	base := h.Mount.Path
	if h.Mount.Version == 1 {
		dir, ok := h.Mount.own(own)
		if ok && dir != base && unix.Access(dir, unix.W_OK) == nil && unix.Access(filepath.Join(dir, "tasks"), unix.W_OK) == nil {
			base, h.Nested = dir, true
		}
	}
	h.Root = filepath.Join(base, parent)
}

// Enforcement says which limits the hierarchies can enforce: "memory_bytes", "cpus" and
// "pids", each as far as the layout has a use for it.
func (m Maker) Enforcement() map[string]api.Enforcement {
	out := map[string]api.Enforcement{}
	for limit, controller := range map[string]string{"memory_bytes": Memory, "cpus": CPU, "pids": Pids} {
		switch {
		case m.Has(controller):
			out[limit] = api.Enforcement{OK: true}
		case len(m.layout.Controllers) == 0 || slices.Contains(m.layout.Controllers, controller):
			out[limit] = api.Enforcement{Reason: m.Reason}
		}
	}
	return out
}

// Describe says for people which hierarchies are used.
func (m Maker) Describe() string {
	if len(m.All) == 0 {
		return "none: " + m.Reason
	}
	var first []string // controllers of version 1, of which each hierarchy has its own
	second := ""
	for _, h := range m.All {
		what := strings.Join(h.Uses, ", ")
		switch {
		case h.Mount.Version == 1 && h.Nested:
			first = append(first, what+" below the own group")
		case h.Mount.Version == 1:
			first = append(first, what)
		case what == "":
			second = "version 2 without controllers"
		default:
			second = "version 2 (" + what + ")"
		}
	}
	text := second
	if len(first) > 0 {
		text = "version 1 (" + strings.Join(first, ", ") + ")"
		switch {
		case second != "":
			text += " and " + second
		case slices.ContainsFunc(m.mounts, func(mount Mount) bool { return mount.Version == 2 }):
			text += "; version 2 is mounted too, without these"
		}
	}
	if m.scope != "" {
		text += " (" + m.scope + ", by systemd)"
	}
	if len(m.missing()) > 0 {
		text += "; " + m.Reason
	}
	return text
}
