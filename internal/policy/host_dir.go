package policy

import (
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// blockedPath is a path of the host that no sandbox can see, for any caller.
type blockedPath struct {
	rule, path string
	// exact blocks the path and its parents, and not what is below it.
	exact bool
	// element is the index in blocked_paths, if rule is empty. The rule's name is built when it
	// is reported.
	element int
}

func (b blockedPath) name() string {
	if b.rule == "" {
		return rules.ElementAt("blocked_paths", b.element)
	}
	return b.rule
}

// builtinBlocked returns the machine's own directories: kernel interfaces, sockets of daemons that
// give root access, configuration with keys, and the storage of other runtimes.
func builtinBlocked() []blockedPath { return allBuiltinBlocked() }

// allBuiltinBlocked is computed once and never changed.
var allBuiltinBlocked = sync.OnceValue(func() []blockedPath {
	var out []blockedPath
	for _, p := range []string{
		"/proc", "/sys", "/dev", "/run", "/var/run", "/boot", "/etc",
		"/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet", "/var/lib/cloche",
		"/var/spool/cron",
	} {
		out = append(out, blockedPath{rule: "blocked_path:" + p, path: p})
	}
	// Everything below the root must be named itself. Home directories hold keys, but projects in
	// them can be named.
	for _, p := range []string{"/", "/home", "/root"} {
		out = append(out, blockedPath{rule: "blocked_path:" + p, path: p, exact: true})
	}
	return out
})

// homeRule is the rule that blocks home directories themselves.
const homeRule = "blocked_path:home_directory"

// blockedBy returns the rule that blocks p, a clean absolute path, or "" if none does. A directory
// that contains a blocked one is blocked with it.
func (d *decision) blockedBy(p string) string {
	if d.facts.Windows {
		if rule := blockedOnWindows(p); rule != "" {
			return rule
		}
	}
	builtin := builtinBlocked()
	for i := range builtin {
		if builtin[i].blocks(p) && !slices.Contains(d.free, builtin[i].path) {
			return builtin[i].rule
		}
	}
	for _, b := range d.blockedHomes() {
		if b.blocks(p) {
			return b.rule
		}
	}
	for i, blocked := range d.cleanBlocked() {
		if rules.Within(blocked, p) || rules.Within(p, blocked) {
			return rules.ElementAt("blocked_paths", i)
		}
	}
	for _, b := range d.movedBlocked() {
		if b.blocks(p) {
			return b.name()
		}
	}
	if parent := path.Dir(p); parent == "/home" || parent == d.moved()["/home"] {
		return homeRule
	}
	return d.blockedByName(p)
}

func (b *blockedPath) blocks(p string) bool {
	return rules.Within(b.path, p) || !b.exact && rules.Within(p, b.path)
}

// blocked returns all blocked paths.
func (d *decision) blocked() []blockedPath {
	out := slices.Concat(builtinBlocked(), d.blockedHomes())
	for i, p := range d.cleanBlocked() {
		out = append(out, blockedPath{element: i, path: p})
	}
	return append(out, d.movedBlocked()...)
}

// socketRule is the rule that blocks sockets of Cloche and of engine daemons.
const socketRule = "blocked_path:daemon_socket"

// blockedHomes returns the directories of Cloche and of the operator.
func (d *decision) blockedHomes() []blockedPath {
	var out []blockedPath
	if d.facts.Home != "" {
		out = append(out, blockedPath{rule: "blocked_path:cloche_home", path: d.cleanRule(d.facts.Home)})
	}
	if d.facts.UserHome != "" {
		out = append(out, blockedPath{rule: homeRule, path: d.cleanRule(d.facts.UserHome), exact: true})
	}
	for _, dir := range d.facts.SocketDirs {
		// A socket is directly in its directory, and in no other one below it.
		out = append(out, blockedPath{rule: socketRule, path: d.cleanRule(dir), exact: true})
	}
	return out
}

// cleanBlocked returns the operator's blocked paths by their names. It is computed once per
// decision, because there can be thousands.
func (d *decision) cleanBlocked() []string {
	if d.allBlocked == nil {
		d.allBlocked = make([]string, len(d.rules.BlockedPaths))
		for i, p := range d.rules.BlockedPaths {
			d.allBlocked[i] = d.cleanRule(p)
		}
	}
	return d.allBlocked
}

// movedBlocked returns the paths that blocked ones lead to.
func (d *decision) movedBlocked() []blockedPath {
	moved := d.moved()
	if len(moved) == 0 {
		return nil
	}
	var out []blockedPath
	for _, b := range builtinBlocked() {
		if real := moved[b.path]; real != "" {
			b.path = real
			out = append(out, b)
		}
	}
	for i, p := range d.cleanBlocked() {
		if real := moved[p]; real != "" {
			out = append(out, blockedPath{element: i, path: real})
		}
	}
	return out
}

// moved returns the paths among the facts that lead to another path, with that path.
func (d *decision) moved() map[string]string {
	if d.allMoved == nil {
		d.allMoved = map[string]string{}
		for p, f := range d.facts.Dirs {
			if f.Exists && f.Real != "" && f.Real != p {
				d.allMoved[p] = d.cleanRule(f.Real)
			}
		}
	}
	return d.allMoved
}

// clean is path.Clean, but faster for paths that are already clean.
func clean(p string) string {
	if !strings.HasPrefix(p, "/") {
		return path.Clean(p)
	}
	for i := range len(p) {
		if p[i] == '/' && (i+1 == len(p) || p[i+1] == '/' || p[i+1] == '.') {
			return path.Clean(p)
		}
	}
	return p
}

// Paths returns the host paths that Facts.Dirs must cover for this request, as keys: cleaned, each
// once. It omits paths that are refused by name alone, so that a caller cannot make Cloche access a
// path that it may not use.
func Paths(spec api.SandboxSpec, caller Caller, set rules.Rules) []string {
	return paths(&decision{caller: caller, rules: set}, spec)
}

// WindowsPaths is Paths on a Windows host.
func WindowsPaths(spec api.SandboxSpec, caller Caller, set rules.Rules) []string {
	return paths(&decision{facts: Facts{Windows: true}, caller: caller, rules: set}, spec)
}

// FixedPaths returns the paths that are blocked on every host. If a request names any directory,
// Facts.Dirs must say where they lead.
func FixedPaths() []string {
	var out []string
	for _, b := range builtinBlocked() {
		out = append(out, b.path)
	}
	return out
}

func paths(d *decision, spec api.SandboxSpec) []string {
	caller, set := d.caller, d.rules
	var asked []string
	for _, m := range spec.Mounts {
		asked = append(asked, m.Source)
	}
	if spec.Workspace != nil && spec.Workspace.Dir != "" {
		asked = append(asked, spec.Workspace.Dir)
	}
	var out []string
	for _, p := range asked {
		clean, err := d.cleanHost("", p)
		if err == nil && d.blockedBy(clean) == "" && (caller.Operator || d.grantedByName(clean)) {
			out = append(out, clean)
		}
	}
	if len(out) == 0 {
		return nil
	}
	for _, p := range set.BlockedPaths {
		out = append(out, d.cleanRule(p))
	}
	for _, m := range set.Mounts {
		out = append(out, d.cleanRule(m.Root))
	}
	out = slices.DeleteFunc(out, func(p string) bool { return p == "" })
	slices.Sort(out)
	return slices.Compact(out)
}

func checkHostDirs(d *decision) *api.Error {
	for i := range d.spec.Mounts {
		m, field := &d.spec.Mounts[i], rules.ElementAt("mounts", i)+".source"
		dir, set, err := d.hostDir(field, m.Source, m.Target, m.ReadOnly)
		if err != nil {
			return err
		}
		m.Source = dir.Asked
		if m.Rules, err = d.dirRules(rules.ElementAt("mounts", i), dir, m.Rules, set); err != nil {
			return err
		}
		d.mounts = append(d.mounts, dir)
	}
	w := d.spec.Workspace
	if w.Dir == "" {
		return nil
	}
	dir, set, err := d.hostDir("workspace.dir", w.Dir, w.Path, w.ReadOnly)
	if err != nil {
		return err
	}
	w.Dir = dir.Asked
	if w.Rules, err = d.dirRules("workspace", dir, w.Rules, set); err != nil {
		return err
	}
	d.workspace = &dir
	return nil
}

// dirRules returns the rules on paths in a directory: those of the request, those of the operator's
// grants, and those that hide private files found in it.
func (d *decision) dirRules(field string, dir HostDir, asked, granted []api.PathRule) ([]api.PathRule, *api.Error) {
	base, fact := rules.MountAccess(dir.ReadOnly), d.facts.Dirs[dir.Asked]
	return d.cover(field, &fact, base, stricter(base, asked, granted))
}

// hostDir judges one directory of the host: first its name, then what the name leads to. The rules
// are those of the operator's grants for its content.
func (d *decision) hostDir(field, asked, target string, readOnly bool) (HostDir, []api.PathRule, *api.Error) {
	none := HostDir{}
	p, err := d.cleanHost(field, asked)
	if err != nil {
		return none, nil, err
	}
	if rule := d.blockedBy(p); rule != "" {
		return none, nil, blockedError(rule, field, p, "is blocked, or holds something that is")
	}
	if !d.caller.Operator && !d.grantedByName(p) {
		return none, nil, d.notGranted(field, p, readOnly)
	}
	fact := d.facts.Dirs[p]
	if err := missingOrFile(field, p, fact, readOnly); err != nil {
		return none, nil, err
	}
	above := d.cleanRule(fact.Real)
	real := path.Join(above, fact.Missing)
	if !strings.HasPrefix(above, "/") {
		return none, nil, api.Errorf(api.CodeInternal, "the real path of %s is not known", field)
	}
	// Only the operator is told where a symlink or a mount leads.
	if rule := d.blockedDir(real, &fact); rule != "" {
		if !d.caller.Operator {
			return none, nil, d.notGranted(field, p, readOnly)
		}
		return none, nil, blockedError(rule, field, p, "leads to a path that is blocked, or holds something that is")
	}
	by := d.mayUse(real, fact, readOnly)
	switch {
	case by == "" && fact.Missing != "" && d.caller.Operator:
		return none, nil, notMade(field, p, above)
	case by == "":
		return none, nil, d.notGranted(field, p, readOnly)
	}
	d.because(field, by)
	base, set := d.grantedAccess(real)
	if base == api.AccessNone || base == api.AccessRead && !readOnly {
		return none, nil, rules.Denied("mounts", field, "%s %s has the access %q by the rules of its grant", field, rules.Quote(p), base).
			WithHint("ask for no more, or for a directory that they leave; the operator changes `rules` of the grant in `mounts`")
	}
	dir := HostDir{
		Asked: p, Real: real, Target: target, ReadOnly: readOnly,
		OwnerUID: fact.OwnerUID, Dev: fact.Dev, Ino: fact.Ino, Missing: fact.Missing,
	}
	if dir.Missing != "" && d.caller.UID >= 0 {
		dir.OwnerUID = d.caller.UID
	}
	return dir, set, nil
}

// missingOrFile refuses a path that is not a directory and cannot become one.
func missingOrFile(field, p string, fact DirFact, readOnly bool) *api.Error {
	switch {
	case !fact.Exists && fact.Missing != "" && readOnly:
		return api.Invalid(field, "%s %s does not exist on this host", field, rules.Quote(p)).
			WithHint("make it first; only a directory that is to be written is made")
	case !fact.Exists && fact.Missing == "":
		return api.Invalid(field, "%s %s does not exist on this host, or cannot be read", field, rules.Quote(p)).
			WithHint("name a directory that exists")
	case !fact.Dir && fact.Missing != "":
		return api.Invalid(field, "a part of %s %s is not a directory", field, rules.Quote(p)).
			WithHint("name a directory that exists, or one that can be made")
	case !fact.Dir:
		return api.Invalid(field, "%s %s is not a directory", field, rules.Quote(p)).
			WithHint("name the directory that holds it; one file goes in as one of files")
	}
	return nil
}

// notMade refuses a missing directory that the operator may not create. Other callers are told what
// is granted to them, and not what exists.
func notMade(field, p, above string) *api.Error {
	return rules.Denied("mounts", field, "%s %s does not exist on this host, and nothing is made for a mount in %s", field, rules.Quote(p), rules.Quote(above)).
		WithHint("make it first; what is missing is made below a directory that you own, or that a rule in `mounts` grants to write")
}

func blockedError(rule, field, p, what string) *api.Error {
	hint := "no rule allows a blocked path; name a directory outside of it"
	switch {
	case rule == homeRule || rule == "blocked_path:/root":
		hint = "a home directory holds keys; name a directory below it"
	case rule == socketRule:
		hint = "a socket of a daemon lies there; name a directory below it, or have the operator move the socket to a directory of its own"
	case strings.HasPrefix(rule, "blocked_paths["):
		hint = "the operator lists it in blocked_paths; name another directory"
	}
	return rules.Denied(rule, field, "%s %s %s", field, rules.Quote(p), what).WithHint("%s", hint)
}

// mayUse returns the rule that lets the caller use a directory, by ownership or by a grant on the
// real path, or "". A missing directory is created below an existing granted root, or in a
// directory that the operator owns, and never next to the system's own.
func (d *decision) mayUse(real string, fact DirFact, readOnly bool) (rule string) {
	c := d.caller
	own := c.Operator && (c.UID == 0 || c.UID > 0 && c.UID == fact.OwnerUID)
	if own && (fact.Missing == "" || fact.Real != "/" && fact.Real != "/home") {
		return rules.ByOperator
	}
	for i, root := range d.realRoots() {
		if root != "" && (readOnly || d.rules.Mounts[i].Write) && rules.Within(real, root) &&
			(fact.Missing == "" || rules.Within(fact.Real, root)) {
			return rules.ElementAt("mounts", i)
		}
	}
	return ""
}

// grantedByName reports whether a grant for the caller could contain p, by its name alone and in
// any mode.
func (d *decision) grantedByName(p string) bool {
	for _, root := range d.namedRoots() {
		if root != "" && rules.Within(p, root) {
			return true
		}
	}
	return false
}

// namedRoots returns the roots of all grants by name. Those for other callers are empty. It is
// computed once per decision, because there can be thousands.
func (d *decision) namedRoots() []string {
	if d.allNamed == nil {
		d.allNamed = make([]string, len(d.rules.Mounts))
		for i := range d.rules.Mounts {
			if m := &d.rules.Mounts[i]; mountGrants(m, &d.caller) {
				if root := d.cleanRule(m.Root); strings.HasPrefix(root, "/") {
					d.allNamed[i] = root
				}
			}
		}
	}
	return d.allNamed
}

// realRoots returns namedRoots with symlinks resolved according to the facts.
func (d *decision) realRoots() []string {
	moved := d.moved()
	if len(moved) == 0 {
		return d.namedRoots()
	}
	if d.allReal == nil {
		d.allReal = slices.Clone(d.namedRoots())
		for i, root := range d.allReal {
			if real := moved[root]; real != "" {
				d.allReal[i] = real
			}
		}
	}
	return d.allReal
}

func mountGrants(m *rules.MountRule, c *Caller) bool {
	return m.Root != "" && (len(m.Tenants) == 0 || slices.Contains(m.Tenants, c.Tenant))
}

func (d *decision) notGranted(field, p string, readOnly bool) *api.Error {
	rule := "mounts: [{root: " + rules.YamlString(p)
	mode := "to read"
	if !readOnly {
		mode = "to write"
		rule += ", write: true"
	}
	rule += "}]"
	if d.caller.Operator {
		e := rules.Denied("mounts", field, "%s %s belongs to another user, and no rule grants it %s", field, rules.Quote(p), mode)
		return e.WithHint("name a directory that you own; the smallest rule that would allow it is `%s`", rule)
	}
	// There are three reasons, each with its own fix.
	any := slices.ContainsFunc(d.namedRoots(), func(root string) bool { return root != "" })
	e := rules.Denied("mounts", field, "%s %s lies in none of the directories that are granted to this caller %s", field, rules.Quote(p), mode)
	switch {
	case !any:
		e = rules.Denied("mounts", field, "%s %s: no directory of this host is granted to this caller", field, rules.Quote(p))
	case !readOnly && d.grantedByName(p):
		e = rules.Denied("mounts", field, "%s %s is not granted to this caller to write", field, rules.Quote(p))
	}
	return e.WithHint("use a private or named workspace; the smallest rule that would allow it is `%s`", rule)
}
