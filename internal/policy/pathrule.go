package policy

import (
	"path"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// Limits of the rules of one mount. Each rule becomes a mount, and needs another mount for every
// directory above it.
const (
	maxPathRules = 64
	maxRuleDepth = 32
)

// strength orders access levels, weakest first.
func strength(a api.PathAccess) int {
	switch a {
	case api.AccessRead:
		return 1
	case api.AccessWrite:
		return 2
	}
	return 0
}

func weaker(a, b api.PathAccess) api.PathAccess {
	if strength(a) < strength(b) {
		return a
	}
	return b
}

// accessOf returns the access of a mount without rules.
func accessOf(readOnly bool) api.PathAccess {
	if readOnly {
		return api.AccessRead
	}
	return api.AccessWrite
}

func wireRules(rules []PathRule) []api.PathRule {
	var out []api.PathRule
	for _, r := range rules {
		out = append(out, api.PathRule{Path: r.Path, Access: r.Access})
	}
	return out
}

// cleanPathRules checks the rules of a mount whose access is base. It returns them sorted, with
// parents first, and without rules that have no effect.
func cleanPathRules(field string, base api.PathAccess, rules []api.PathRule) ([]api.PathRule, *api.Error) {
	if n := len(rules); n > maxPathRules {
		return nil, tooLarge(field, "%s has %d rules", field, n).WithHint("at most %d", maxPathRules)
	}
	out := make([]api.PathRule, 0, len(rules))
	for i, r := range rules {
		one := at(field, i)
		p, err := cleanRelative(one+".path", r.Path)
		if err != nil {
			return nil, err
		}
		switch r.Access {
		case api.AccessNone, api.AccessRead, api.AccessWrite:
		default:
			return nil, api.Invalid(one+".access", "%s.access %s is not known", one, show(string(r.Access))).
				WithHint("write %s, %s or %s", api.AccessNone, api.AccessRead, api.AccessWrite)
		}
		if strength(r.Access) > strength(base) {
			return nil, api.Invalid(one+".access", "%s gives %s, and the mount itself is %s", one, r.Access, base).
				WithHint("rules only narrow what the mount gives")
		}
		if slices.ContainsFunc(out, func(o api.PathRule) bool { return o.Path == p }) {
			return nil, api.Invalid(one+".path", "%s.path %s has a rule already", one, show(p)).WithHint("give each path one rule")
		}
		out = append(out, api.PathRule{Path: p, Access: r.Access})
	}
	for i, r := range out {
		for _, above := range out {
			if above.Access == api.AccessNone && below(r.Path, above.Path) && r.Access != api.AccessNone {
				return nil, api.Invalid(at(field, i)+".path", "%s cannot be reached: there is no access to %s above it", show(r.Path), show(above.Path)).
					WithHint("deny what is beside it instead")
			}
		}
	}
	return simplify(base, out), nil
}

// cleanRelative checks a path below a mount.
func cleanRelative(field, p string) (string, *api.Error) {
	const hint = `write a path below the mount, such as "secrets" or "src/generated"`
	switch {
	case len(p) > maxPath:
		return "", api.Invalid(field, "%s is a path of %d bytes", field, len(p)).WithHint("at most %d", maxPath)
	case strings.HasPrefix(p, "/") || windowsPath(p):
		return "", api.Invalid(field, "%s %s is absolute", field, show(p)).WithHint(hint)
	case strings.ContainsRune(p, 0):
		return "", api.Invalid(field, "%s %s holds a NUL byte", field, show(p)).WithHint(hint)
	case slices.Contains(strings.Split(p, "/"), ".."):
		return "", api.Invalid(field, `%s %s has an element ".."`, field, show(p)).WithHint(hint)
	case path.Clean(p) == ".":
		return "", api.Invalid(field, "%s %s is the whole mount", field, show(p)).WithHint(hint + "; the access of the mount itself is read_only")
	}
	if depth := strings.Count(path.Clean(p), "/") + 1; depth > maxRuleDepth {
		return "", tooLarge(field, "%s is a path of %d parts", field, depth).WithHint("at most %d; mount a directory that is nearer to it", maxRuleDepth)
	}
	return path.Clean(p), nil
}

// below reports whether p is below dir. Both are relative and clean.
func below(p, dir string) bool { return strings.HasPrefix(p, dir+"/") }

// accessAt returns the access to p, relative and clean. The longest rule that contains it decides.
func accessAt(base api.PathAccess, rules []api.PathRule, p string) api.PathAccess {
	longest := -1
	for _, r := range rules {
		if (r.Path == p || below(p, r.Path)) && len(r.Path) > longest {
			base, longest = r.Access, len(r.Path)
		}
	}
	return base
}

// simplify sorts rules and removes those without effect.
func simplify(base api.PathAccess, rules []api.PathRule) []api.PathRule {
	slices.SortFunc(rules, func(a, b api.PathRule) int { return strings.Compare(a.Path, b.Path) })
	var out []api.PathRule
	for _, r := range rules { // parents come first
		if accessAt(base, out, path.Dir(r.Path)) != r.Access {
			out = append(out, r)
		}
	}
	return out
}

// stricter combines two sets of rules on one mount. The weaker access applies at every path.
func stricter(base api.PathAccess, a, b []api.PathRule) []api.PathRule {
	var all []api.PathRule
	seen := map[string]bool{}
	for _, r := range slices.Concat(a, b) {
		if !seen[r.Path] {
			seen[r.Path] = true
			access := weaker(accessAt(base, a, r.Path), accessAt(base, b, r.Path))
			all = append(all, api.PathRule{Path: r.Path, Access: access})
		}
	}
	return simplify(base, all)
}

// grantedAccess returns what the rules of the operator's grants allow for real: the access to the
// directory itself and the rules below it.
func (d *decision) grantedAccess(real string) (api.PathAccess, []api.PathRule) {
	type grant struct {
		base  api.PathAccess
		rules []api.PathRule
	}
	var grants []grant
	for i, root := range d.realRoots() {
		if root == "" || !within(real, root) {
			continue
		}
		m := d.rules.Mounts[i]
		g := grant{base: accessOf(!m.Write && !d.caller.Operator)}
		rel := strings.Trim(strings.TrimPrefix(real, root), "/")
		if rel != "" {
			g.base = accessAt(g.base, wireRules(m.Rules), rel)
		}
		for _, r := range m.Rules {
			p := path.Clean(r.Path)
			if rel == "" {
				g.rules = append(g.rules, api.PathRule{Path: p, Access: r.Access})
			} else if rest, ok := strings.CutPrefix(p, rel+"/"); ok {
				g.rules = append(g.rules, api.PathRule{Path: rest, Access: r.Access})
			}
		}
		grants = append(grants, g)
	}
	widest := func(access func(grant) api.PathAccess) api.PathAccess {
		most := api.AccessNone
		for _, g := range grants {
			if a := access(g); strength(a) > strength(most) {
				most = a
			}
		}
		return most
	}
	if len(grants) == 0 {
		if d.caller.Operator {
			return api.AccessWrite, nil
		}
		return api.AccessNone, nil
	}
	base := widest(func(g grant) api.PathAccess { return g.base })
	var rules []api.PathRule
	for _, g := range grants {
		for _, r := range g.rules {
			a := widest(func(g grant) api.PathAccess { return accessAt(g.base, g.rules, r.Path) })
			if !slices.ContainsFunc(rules, func(o api.PathRule) bool { return o.Path == r.Path }) {
				rules = append(rules, api.PathRule{Path: r.Path, Access: a})
			}
		}
	}
	return base, simplify(base, rules)
}

// checkPathRules judges the syntax of the request's path rules.
func checkPathRules(d *decision) *api.Error {
	w := d.spec.Workspace
	var err *api.Error
	if w.Rules, err = cleanPathRules("workspace.rules", accessOf(w.ReadOnly), w.Rules); err != nil {
		return err
	}
	for i := range d.spec.Mounts {
		m := &d.spec.Mounts[i]
		if m.Rules, err = cleanPathRules(at("mounts", i)+".rules", accessOf(m.ReadOnly), m.Rules); err != nil {
			return err
		}
	}
	return nil
}

// checkReach refuses a mount at a path where a rule denies access, because nothing can be mounted
// there. It runs when all rules are known.
func checkReach(d *decision) *api.Error {
	w := d.spec.Workspace
	if err := d.reach("workspace.path", w.Path); err != nil {
		return err
	}
	for i, m := range d.spec.Mounts {
		if err := d.reach(at("mounts", i)+".target", m.Target); err != nil {
			return err
		}
	}
	for i, f := range d.spec.Files {
		if err := d.reach(at("files", i)+".path", f.Path); err != nil {
			return err
		}
	}
	return nil
}

func (d *decision) reach(field, target string) *api.Error {
	refuse := func(of, at string, rules []api.PathRule) *api.Error {
		rel, ok := strings.CutPrefix(target, at+"/")
		if !ok || accessAt(api.AccessWrite, rules, rel) != api.AccessNone {
			return nil
		}
		return api.Invalid(field, "%s %s lies where %s allows no access", field, show(target), of).
			WithHint("choose another path, or leave the rule out")
	}
	if err := refuse("workspace.rules", d.spec.Workspace.Path, d.spec.Workspace.Rules); err != nil {
		return err
	}
	for i, m := range d.spec.Mounts {
		if err := refuse(at("mounts", i)+".rules", m.Target, m.Rules); err != nil {
			return err
		}
	}
	return nil
}

// checkGlobs refuses patterns. No engine can enforce one while a process runs, and a pattern that
// only some access paths enforce would give no protection.
func checkGlobs(d *decision) *api.Error {
	for i, m := range d.spec.Mounts {
		if len(m.Globs) > 0 {
			return d.noGlobs(at("mounts", i) + ".globs")
		}
	}
	if len(d.spec.Workspace.Globs) > 0 {
		return d.noGlobs("workspace.globs")
	}
	return nil
}

func (d *decision) noGlobs(field string) *api.Error {
	return unsupported(field, "%s were asked for, and engine %s cannot hold a program to patterns of paths", field, d.engine.Name).
		WithHint("name directories or files in %s.rules, which it enforces", strings.TrimSuffix(field, ".globs"))
}
