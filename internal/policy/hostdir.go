package policy

import (
	"path"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche"
)

// blockedPath is one path of the host that no sandbox sees, whoever asks.
type blockedPath struct {
	rule, path string
	// exact blocks the path and what holds it, and leaves free what is below.
	exact bool
}

// builtinBlocked are the machine's own directories: kernel interfaces, sockets
// of daemons that are as good as root, configuration with keys, and the
// storage of other runtimes.
func builtinBlocked() []blockedPath {
	var out []blockedPath
	for _, p := range []string{
		"/proc", "/sys", "/dev", "/run", "/var/run", "/boot", "/etc",
		"/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet", "/var/lib/cloche",
		"/var/spool/cron",
	} {
		out = append(out, blockedPath{rule: "blocked_path:" + p, path: p})
	}
	// Everything below the root is reached by its own name or not at all; home
	// directories hold keys, the projects in them may be named.
	for _, p := range []string{"/", "/home", "/root"} {
		out = append(out, blockedPath{rule: "blocked_path:" + p, path: p, exact: true})
	}
	return out
}

// blockedNames are directories that hold keys wherever they stand. Each is a
// run of path elements.
func blockedNames() []string {
	return []string{
		".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config/gcloud", ".config/gh",
		".password-store", ".local/share/keyrings", ".mozilla", ".config/google-chrome",
	}
}

// homeRule is the rule that keeps home directories themselves out.
const homeRule = "blocked_path:home_directory"

// blockedBy returns the rule that blocks p, a clean absolute path, and "" when
// none does. A directory that holds a blocked one is blocked with it.
func (d *decision) blockedBy(p string) string {
	for _, b := range d.blocked() {
		if within(b.path, p) || !b.exact && within(p, b.path) {
			return b.rule
		}
	}
	if parent := path.Dir(p); parent == "/home" {
		return homeRule
	}
	elements := p + "/"
	for _, name := range blockedNames() {
		if strings.Contains(elements, "/"+name+"/") {
			return "blocked_path:" + name
		}
	}
	return ""
}

func (d *decision) blocked() []blockedPath {
	out := builtinBlocked()
	if d.facts.Home != "" {
		out = append(out, blockedPath{rule: "blocked_path:cloche_home", path: path.Clean(d.facts.Home)})
	}
	if d.facts.UserHome != "" {
		out = append(out, blockedPath{rule: homeRule, path: path.Clean(d.facts.UserHome), exact: true})
	}
	for i, p := range d.rules.BlockedPaths {
		rule := at("blocked_paths", i)
		out = append(out, blockedPath{rule: rule, path: path.Clean(p)})
		if f := d.facts.Dirs[path.Clean(p)]; f.Exists && f.Real != "" {
			out = append(out, blockedPath{rule: rule, path: path.Clean(f.Real)})
		}
	}
	return out
}

// Paths returns the host paths that Facts.Dirs must cover for this request, as
// keys: cleaned, each once. A path that is refused by its name alone is not
// among them, so that nobody makes Cloche touch what he may not have.
func Paths(spec cloche.SandboxSpec, caller Caller, rules Rules) []string {
	d := &decision{caller: caller, rules: rules}
	var asked []string
	for _, m := range spec.Mounts {
		asked = append(asked, m.Source)
	}
	if spec.Workspace != nil && spec.Workspace.Dir != "" {
		asked = append(asked, spec.Workspace.Dir)
	}
	var out []string
	for _, p := range asked {
		clean, err := cleanAbs("", p)
		if err == nil && d.blockedBy(clean) == "" && (caller.Operator || d.grantedByName(clean)) {
			out = append(out, clean)
		}
	}
	if len(out) == 0 {
		return nil
	}
	for _, p := range rules.BlockedPaths {
		out = append(out, path.Clean(p))
	}
	for _, m := range rules.Mounts {
		out = append(out, path.Clean(m.Root))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func checkHostDirs(d *decision) *cloche.Error {
	for i := range d.spec.Mounts {
		m, field := &d.spec.Mounts[i], at("mounts", i)+".source"
		dir, err := d.hostDir(field, m.Source, m.Target, m.ReadOnly)
		if err != nil {
			return err
		}
		m.Source = dir.Asked
		d.mounts = append(d.mounts, dir)
	}
	w := d.spec.Workspace
	if w.Dir == "" {
		return nil
	}
	dir, err := d.hostDir("workspace.dir", w.Dir, w.Path, w.ReadOnly)
	if err != nil {
		return err
	}
	w.Dir = dir.Asked
	d.workspace = &dir
	return nil
}

// hostDir judges one directory of the host: its name first, then what the name
// leads to.
func (d *decision) hostDir(field, asked, target string, readOnly bool) (HostDir, *cloche.Error) {
	p, err := cleanAbs(field, asked)
	if err != nil {
		return HostDir{}, err
	}
	if rule := d.blockedBy(p); rule != "" {
		return HostDir{}, blockedError(rule, field, p, "is blocked, or holds something that is")
	}
	if !d.caller.Operator && !d.grantedByName(p) {
		return HostDir{}, d.notGranted(field, p, readOnly)
	}
	fact := d.facts.Dirs[p]
	switch {
	case !fact.Exists:
		return HostDir{}, cloche.Invalid(field, "%s %s does not exist on this host, or cannot be read", field, show(p)).
			WithHint("name a directory that exists")
	case !fact.Dir:
		return HostDir{}, cloche.Invalid(field, "%s %s is not a directory", field, show(p)).
			WithHint("name the directory that holds it; one file goes in as one of files")
	}
	real := path.Clean(fact.Real)
	if !strings.HasPrefix(fact.Real, "/") {
		return HostDir{}, cloche.Errorf(cloche.CodeInternal, "the real path of %s is not known", field)
	}
	// Where a symlink leads is told to the operator only.
	if rule := d.blockedBy(real); rule != "" {
		if !d.caller.Operator {
			return HostDir{}, d.notGranted(field, p, readOnly)
		}
		return HostDir{}, blockedError(rule, field, p, "leads to a path that is blocked, or holds something that is")
	}
	if !d.mayUse(real, fact.OwnerUID, readOnly) {
		return HostDir{}, d.notGranted(field, p, readOnly)
	}
	return HostDir{
		Asked: p, Real: real, Target: target, ReadOnly: readOnly,
		OwnerUID: fact.OwnerUID, Dev: fact.Dev, Ino: fact.Ino,
	}, nil
}

func blockedError(rule, field, p, what string) *cloche.Error {
	hint := "no rule allows a blocked path; name a directory outside of it"
	switch {
	case rule == homeRule || rule == "blocked_path:/root":
		hint = "a home directory holds keys; name a directory below it"
	case strings.HasPrefix(rule, "blocked_paths["):
		hint = "the operator lists it in blocked_paths; name another directory"
	}
	return denied(rule, field, "%s %s %s", field, show(p), what).WithHint("%s", hint)
}

// mayUse is the ownership rule and the grants, on the real path.
func (d *decision) mayUse(real string, owner int, readOnly bool) bool {
	c := d.caller
	if c.Operator && (c.UID == 0 || c.UID > 0 && c.UID == owner) {
		return true
	}
	for _, m := range d.rules.Mounts {
		if m.grants(c) && (readOnly || m.Write) && within(real, d.realRoot(m)) {
			return true
		}
	}
	return false
}

// grantedByName says whether any grant of the caller's could hold p, by its
// name alone and whatever its mode.
func (d *decision) grantedByName(p string) bool {
	return slices.ContainsFunc(d.rules.Mounts, func(m MountRule) bool {
		return m.grants(d.caller) && within(p, path.Clean(m.Root))
	})
}

// realRoot is the root with symlinks resolved, as its facts say.
func (d *decision) realRoot(m MountRule) string {
	root := path.Clean(m.Root)
	if f := d.facts.Dirs[root]; f.Exists && f.Real != "" {
		return path.Clean(f.Real)
	}
	return root
}

func (m MountRule) grants(c Caller) bool {
	return strings.HasPrefix(m.Root, "/") && (len(m.Tenants) == 0 || slices.Contains(m.Tenants, c.Tenant))
}

func (d *decision) notGranted(field, p string, readOnly bool) *cloche.Error {
	rule := "mounts: [{root: " + yamlString(p)
	mode := "to read"
	if !readOnly {
		mode = "to write"
		rule += ", write: true"
	}
	rule += "}]"
	if d.caller.Operator {
		e := denied("mounts", field, "%s %s belongs to another user, and no rule grants it %s", field, show(p), mode)
		return e.WithHint("name a directory that you own; the smallest rule that would allow it is `%s`", rule)
	}
	e := denied("mounts", field, "%s %s is not granted to this caller %s", field, show(p), mode)
	return e.WithHint("use a private or named workspace; the smallest rule that would allow it is `%s`", rule)
}
