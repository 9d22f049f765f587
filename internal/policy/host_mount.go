package policy

import (
	"path"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// A directory has a name for each mount that shows it, and is judged by all of them: by every name
// that a mount of the same filesystem gives to it or to a part of it, and, if it is on the
// filesystem of another machine, by its name there.

// HostMount is one mount of the host, in the mount namespace of the daemon.
type HostMount struct {
	// ID is what DirFact.Mount refers to.
	ID int
	// Volume is the same for all mounts of one filesystem.
	Volume string
	// Root is the directory of the filesystem that is mounted at Point.
	Root, Point string
	// Type is the filesystem type, such as "ext4".
	Type string
	// System means that the directory at Point looks like the root of a machine. It is set for
	// the mounts that contain a directory of the request, and for those below one.
	System bool
}

// runtimeStorage returns directories in which runtimes mount, for their own use, what is also
// mounted elsewhere. A mount below one of them is not private for that reason alone.
func runtimeStorage() []string {
	return []string{
		"/run", "/var/run", "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet", "/var/lib/cloche",
	}
}

// volumeDirs returns patterns of the directories that runtimes keep for volumes. A container that
// gets one sees nothing of the storage around it.
func volumeDirs() []string {
	return []string{
		"/var/lib/docker/volumes/*/_data", "/var/lib/containers/storage/volumes/*/_data",
		"/var/lib/kubelet/pods/*/volumes/*/*", "/var/lib/kubelet/pods/*/volume-subpaths/*/*/*",
	}
}

// kernelDirs returns blocked directories that a machine mounts when it boots. On its disk they are
// empty, and a directory of that name on another filesystem is something else.
func kernelDirs() []string { return []string{"/dev", "/run", "/var/run"} }

// blockedDir returns the rule that blocks a directory of the host under any of its names, or "" if
// none does. real is its path without symlinks, and fact is what is known about it.
func (d *decision) blockedDir(real string, fact *DirFact) string {
	if rule := d.blockedBy(real); rule != "" || len(d.facts.Mounts) == 0 {
		return rule
	}
	on := d.mountOf(real, fact.Mount)
	if on.Type == "devtmpfs" {
		return "blocked_path:/dev"
	}
	inside := join(on.Root, rest(real, on.Point))
	if rule := d.blockedOn(on.Volume, inside); rule != "" {
		return rule
	}
	if d.facts.Recursive {
		for i := range d.facts.Mounts {
			if m := &d.facts.Mounts[i]; m.Point != real && rules.Within(m.Point, real) {
				if rule := d.blockedMount(m); rule != "" {
					return rule
				}
			}
		}
	}
	return d.blockedElsewhere(real, on, inside)
}

// blockedMount judges a mount below a directory, if it is visible with the directory.
func (d *decision) blockedMount(m *HostMount) string {
	if m.System {
		return "blocked_path:/"
	}
	if m.Type == "devtmpfs" {
		return "blocked_path:/dev"
	}
	return d.blockedOn(m.Volume, m.Root)
}

// mountOf returns the mount through which a path is visible: the one that was found, or otherwise
// the nearest one above it.
func (d *decision) mountOf(real string, id int) *HostMount {
	nearest := &HostMount{Point: "/", Root: "/"}
	for i := range d.facts.Mounts {
		m := &d.facts.Mounts[i]
		if id != 0 && m.ID == id && rules.Within(real, m.Point) {
			return m
		}
		if rules.Within(real, m.Point) && len(m.Point) >= len(nearest.Point) {
			nearest = m
		}
	}
	return nearest
}

// blockedOn judges a directory of a filesystem by the names that its mounts give to that directory
// and to what is in it.
func (d *decision) blockedOn(volume, inside string) string {
	for i := range d.facts.Mounts {
		m := &d.facts.Mounts[i]
		if m.Volume != volume || d.isCopy(i) {
			continue
		}
		name := m.Point
		if rules.Within(inside, m.Root) {
			name = join(m.Point, rest(inside, m.Root))
		} else if !rules.Within(m.Root, inside) {
			continue
		}
		if rule := d.blockedBy(name); rule != "" {
			return rule
		}
	}
	return ""
}

// isCopy reports whether a mount below the storage of a runtime, or below Cloche's home, shows what
// was mounted elsewhere first. Such a mount does not belong to the runtime: a directory that is
// given to a sandbox is mounted in this way.
func (d *decision) isCopy(i int) bool {
	m := &d.facts.Mounts[i]
	if !d.inStorage(m.Point) {
		return false
	}
	for j := range d.facts.Mounts {
		o := &d.facts.Mounts[j]
		if o.Volume == m.Volume && rules.Within(m.Root, o.Root) && (o.Root != m.Root || j < i) && !d.inStorage(o.Point) {
			return true
		}
	}
	return false
}

func (d *decision) inStorage(p string) bool {
	in := func(dir string) bool { return p != dir && rules.Within(p, dir) }
	return d.facts.Home != "" && in(d.cleanRule(d.facts.Home)) || slices.ContainsFunc(runtimeStorage(), in)
}

// blockedElsewhere judges a directory as one of another machine whose filesystem is mounted here: a
// container that has a part of its host, or a disk with a system on it.
func (d *decision) blockedElsewhere(real string, on *HostMount, inside string) string {
	for i := range d.facts.Mounts {
		m := &d.facts.Mounts[i]
		if m.Point == "/" || !rules.Within(real, m.Point) {
			continue
		}
		name := join("/", rest(real, m.Point))
		if m.System {
			if rule := d.blockedBy(name); rule != "" {
				return rule
			}
		} else if m.Root == "/" && name != "/" {
			if rule := d.blockedBelow(name); rule != "" {
				return rule
			}
		}
	}
	own := d.mountOf("/", 0)
	if on.Root == "/" || on.Volume == own.Volume && rules.Within(inside, own.Root) || isVolume(on.Root) {
		return ""
	}
	return d.without(kernelDirs()).blockedBy(inside)
}

// isVolume reports whether a directory is a volume of a runtime, or a part of one.
func isVolume(dir string) bool {
	for _, pattern := range volumeDirs() {
		elements := strings.Split(dir, "/")
		if n := strings.Count(pattern, "/") + 1; len(elements) >= n {
			if ok, _ := path.Match(pattern, strings.Join(elements[:n], "/")); ok {
				return true
			}
		}
	}
	return false
}

// blockedBelow judges a path of a filesystem that may contain only data: it refuses what is in a
// blocked directory, and not what could contain one.
func (d *decision) blockedBelow(p string) string {
	builtin := builtinBlocked()
	for i := range builtin {
		b := &builtin[i]
		if !slices.Contains(kernelDirs(), b.path) && (p == b.path || !b.exact && rules.Within(p, b.path)) {
			return b.rule
		}
	}
	if path.Dir(p) == "/home" {
		return homeRule
	}
	return ""
}

// without returns d for judging paths as if some of the built-in blocked paths were not blocked.
func (d *decision) without(free []string) *decision {
	return &decision{facts: d.facts, rules: d.rules, free: free}
}

// rest returns the part of p below dir, which contains it. It is empty for dir itself.
func rest(p, dir string) string {
	return strings.Trim(strings.TrimPrefix(p, dir), "/")
}

// join adds a path below to an absolute one.
func join(dir, below string) string {
	if below == "" {
		return dir
	}
	return strings.TrimSuffix(dir, "/") + "/" + below
}
