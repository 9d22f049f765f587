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
