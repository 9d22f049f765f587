package policy

import (
	"path"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

func weaker(a, b api.PathAccess) api.PathAccess {
	if rules.AccessStrength(a) < rules.AccessStrength(b) {
		return a
	}
	return b
}

// stricter combines two sets of rules on one mount. The weaker access applies at every path.
func stricter(base api.PathAccess, a, b []api.PathRule) []api.PathRule {
	var all []api.PathRule
	seen := map[string]bool{}
	for _, r := range slices.Concat(a, b) {
		if !seen[r.Path] {
			seen[r.Path] = true
			access := weaker(rules.AccessAt(base, a, r.Path), rules.AccessAt(base, b, r.Path))
			all = append(all, api.PathRule{Path: r.Path, Access: access})
		}
	}
	return rules.SimplifyPathRules(base, all)
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
		if root == "" || !rules.Within(real, root) {
			continue
		}
		m := d.rules.Mounts[i]
		g := grant{base: rules.MountAccess(!m.Write && !d.caller.Operator)}
		rel := strings.Trim(strings.TrimPrefix(real, root), "/")
		if rel != "" {
			g.base = rules.AccessAt(g.base, rules.APIPathRules(m.Rules), rel)
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
			if a := access(g); rules.AccessStrength(a) > rules.AccessStrength(most) {
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
	var set []api.PathRule
	for _, g := range grants {
		for _, r := range g.rules {
			a := widest(func(g grant) api.PathAccess { return rules.AccessAt(g.base, g.rules, r.Path) })
			if !slices.ContainsFunc(set, func(o api.PathRule) bool { return o.Path == r.Path }) {
				set = append(set, api.PathRule{Path: r.Path, Access: a})
			}
		}
	}
	return base, rules.SimplifyPathRules(base, set)
}

// checkPathRules judges the syntax of the request's path rules.
func checkPathRules(d *decision) *api.Error {
	w := d.spec.Workspace
	var err *api.Error
	if w.Rules, err = rules.CleanPathRules("workspace.rules", rules.MountAccess(w.ReadOnly), w.Rules); err != nil {
		return err
	}
	for i := range d.spec.Mounts {
		m := &d.spec.Mounts[i]
		if m.Rules, err = rules.CleanPathRules(rules.ElementAt("mounts", i)+".rules", rules.MountAccess(m.ReadOnly), m.Rules); err != nil {
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
		if err := d.reach(rules.ElementAt("mounts", i)+".target", m.Target); err != nil {
			return err
		}
	}
	for i, f := range d.spec.Files {
		if err := d.reach(rules.ElementAt("files", i)+".path", f.Path); err != nil {
			return err
		}
	}
	return nil
}

func (d *decision) reach(field, target string) *api.Error {
	refuse := func(of, at string, set []api.PathRule) *api.Error {
		rel, ok := strings.CutPrefix(target, at+"/")
		if !ok || rules.AccessAt(api.AccessWrite, set, rel) != api.AccessNone {
			return nil
		}
		return api.Invalid(field, "%s %s lies where %s allows no access", field, rules.Quote(target), of).
			WithHint("choose another path, or leave the rule out")
	}
	if err := refuse("workspace.rules", d.spec.Workspace.Path, d.spec.Workspace.Rules); err != nil {
		return err
	}
	for i, m := range d.spec.Mounts {
		if err := refuse(rules.ElementAt("mounts", i)+".rules", m.Target, m.Rules); err != nil {
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
			return d.noGlobs(rules.ElementAt("mounts", i) + ".globs")
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
