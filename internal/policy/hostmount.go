package policy

import (
	"path"
	"slices"
	"strings"
)

// A directory has a name for each mount that shows it, and is judged by all of them:
// under every name that a mount of the same filesystem gives to it or to a part of it,
// and, where it is on the filesystem of another machine, under the name that it has there.

// HostMount is one mount of the host, as the mount namespace of the daemon has it.
type HostMount struct {
	// ID is what DirFact.Mount refers to.
	ID int
	// Volume is the same for all mounts of one filesystem.
	Volume string
	// Root is the directory of the filesystem that is mounted at Point.
	Root, Point string
	// Type is the filesystem's, such as "ext4".
	Type string
	// System: the directory at Point looks like the root of a machine. It is found out
	// for the mounts that hold a directory of the request, and for those below one.
	System bool
}

// runtimeStorage are directories in which runtimes mount for their own use what stands
// elsewhere too: what is mounted below one of them is not private for it.
func runtimeStorage() []string {
	return []string{
		"/run", "/var/run", "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet", "/var/lib/cloche",
	}
}

// volumeDirs are patterns of the directories that runtimes keep for volumes. A container
// that is given one sees nothing of the storage around it.
func volumeDirs() []string {
	return []string{
		"/var/lib/docker/volumes/*/_data", "/var/lib/containers/storage/volumes/*/_data",
		"/var/lib/kubelet/pods/*/volumes/*/*", "/var/lib/kubelet/pods/*/volume-subpaths/*/*/*",
	}
}

// kernelDirs are blocked directories that a machine mounts when it starts: on its disk
// they are empty, and a directory of that name is something else.
func kernelDirs() []string { return []string{"/dev", "/run", "/var/run"} }

// blockedDir returns the rule that blocks a directory of the host under any of its names,
// and "" when none does. real is its path without symlinks, fact what is known of it.
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
			if m := &d.facts.Mounts[i]; m.Point != real && within(m.Point, real) {
				if rule := d.blockedMount(m); rule != "" {
					return rule
				}
			}
		}
	}
	return d.blockedElsewhere(real, on, inside)
}

// blockedMount judges what is mounted below a directory, where it is seen with it.
func (d *decision) blockedMount(m *HostMount) string {
	if m.System {
		return "blocked_path:/"
	}
	if m.Type == "devtmpfs" {
		return "blocked_path:/dev"
	}
	return d.blockedOn(m.Volume, m.Root)
}

// mountOf is the mount through which a path is seen: the one that was found, or else the
// nearest above it.
func (d *decision) mountOf(real string, id int) *HostMount {
	nearest := &HostMount{Point: "/", Root: "/"}
	for i := range d.facts.Mounts {
		m := &d.facts.Mounts[i]
		if id != 0 && m.ID == id && within(real, m.Point) {
			return m
		}
		if within(real, m.Point) && len(m.Point) >= len(nearest.Point) {
			nearest = m
		}
	}
	return nearest
}

// blockedOn judges a directory of a filesystem by the names that the mounts of it give to
// that directory and to what is in it.
func (d *decision) blockedOn(volume, inside string) string {
	for i := range d.facts.Mounts {
		m := &d.facts.Mounts[i]
		if m.Volume != volume || d.isCopy(i) {
			continue
		}
		name := m.Point
		if within(inside, m.Root) {
			name = join(m.Point, rest(inside, m.Root))
		} else if !within(m.Root, inside) {
			continue
		}
		if rule := d.blockedBy(name); rule != "" {
			return rule
		}
	}
	return ""
}

// isCopy says whether a mount below the storage of a runtime, or below Cloche's home,
// shows what is mounted elsewhere first. That does not make it the runtime's: a directory
// that a sandbox is being given is mounted so.
func (d *decision) isCopy(i int) bool {
	m := &d.facts.Mounts[i]
	if !d.inStorage(m.Point) {
		return false
	}
	for j := range d.facts.Mounts {
		o := &d.facts.Mounts[j]
		if o.Volume == m.Volume && within(m.Root, o.Root) && (o.Root != m.Root || j < i) && !d.inStorage(o.Point) {
			return true
		}
	}
	return false
}

func (d *decision) inStorage(p string) bool {
	in := func(dir string) bool { return p != dir && within(p, dir) }
	return d.facts.Home != "" && in(d.cleanRule(d.facts.Home)) || slices.ContainsFunc(runtimeStorage(), in)
}

// blockedElsewhere judges a directory as that of another machine, of which the filesystem
// is mounted here: a container that has a part of its host, or a disk with a system on it.
func (d *decision) blockedElsewhere(real string, on *HostMount, inside string) string {
	for i := range d.facts.Mounts {
		m := &d.facts.Mounts[i]
		if m.Point == "/" || !within(real, m.Point) {
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
	if on.Root == "/" || on.Volume == own.Volume && within(inside, own.Root) || isVolume(on.Root) {
		return ""
	}
	return d.without(kernelDirs()).blockedBy(inside)
}

// isVolume says whether a directory is a volume of a runtime, or a part of one.
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

// blockedBelow judges a path of a filesystem that may well hold nothing but data: what
// lies in a blocked directory is refused, what could hold one is not.
func (d *decision) blockedBelow(p string) string {
	builtin := builtinBlocked()
	for i := range builtin {
		b := &builtin[i]
		if !slices.Contains(kernelDirs(), b.path) && (p == b.path || !b.exact && within(p, b.path)) {
			return b.rule
		}
	}
	if path.Dir(p) == "/home" {
		return homeRule
	}
	return ""
}

// without is d for judging paths as if some of the built-in ones were free.
func (d *decision) without(free []string) *decision {
	return &decision{facts: d.facts, rules: d.rules, free: free}
}

// rest is the part of p below dir, which holds it; empty for dir itself.
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
