package policy

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/internal/policy/egress"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// shadowed warns of rules without effect: another rule, or a built-in one of the daemon, takes
// precedence. Usually the operator meant something else.
func shadowed(r rules.Rules, report rules.Reporter) {
	shadowedImages(r, report)
	shadowedRegistries(r, report)
	shadowedPaths(r, report)
	shadowedLimits(r, report)
	shadowedNames(r, report)
	shadowedDefaults(r, report)
	egress.Shadowed(r, report)
}

func shadowedImages(r rules.Rules, report rules.Reporter) {
	for _, l := range []struct {
		key  string
		refs []string
	}{{"images", r.Images}, {"blocked_images", r.BlockedImages}} {
		for i, ref := range l.refs {
			for j, other := range l.refs {
				if i != j && coversImage(other, ref) && (j < i || !coversImage(ref, other)) {
					report(rules.Warning(rules.ElementAt(l.key, i), "%s %s changes nothing: %s %s holds it already", rules.ElementAt(l.key, i), rules.Quote(ref), rules.ElementAt(l.key, j), rules.Quote(other)).
						WithHint("leave one of them out"))
					break
				}
			}
		}
	}
	for i, ref := range r.Images {
		for j, block := range r.BlockedImages {
			if coversImage(block, ref) {
				report(rules.Warning(rules.ElementAt("images", i), "%s %s grants nothing: %s %s blocks all of it", rules.ElementAt("images", i), rules.Quote(ref), rules.ElementAt("blocked_images", j), rules.Quote(block)).
					WithHint("leave one of them out"))
				break
			}
		}
	}
	for _, from := range slices.Sorted(maps.Keys(r.ImageAliases)) {
		for j, block := range r.BlockedImages {
			if coversImage(block, r.ImageAliases[from]) {
				report(rules.Warning(rules.KeyAt("image_aliases", from), "%s leads to an image that %s blocks", rules.Quote(from), rules.ElementAt("blocked_images", j)).
					WithHint("let it stand for another image"))
				break
			}
		}
	}
}

// coversImage reports whether a pattern matches everything that another matches, judged by their
// text.
func coversImage(wide, narrow string) bool {
	prefix, open := strings.CutSuffix(wide, "*")
	rest, star := strings.CutSuffix(narrow, "*")
	switch {
	case open && star:
		return strings.HasPrefix(normalPrefix(rest), normalPrefix(prefix))
	case star:
		return false
	}
	n, err := rules.ParseImage(narrow)
	return err == nil && matchImage(wide, &n)
}

func shadowedRegistries(r rules.Rules, report rules.Reporter) {
	for _, name := range slices.Sorted(maps.Keys(r.Registries)) {
		field, host := "registries."+rules.Shorten(name), rules.RegistryName(name)
		only := len(r.OnlyRegistries) == 0 || slices.ContainsFunc(r.OnlyRegistries, func(o string) bool { return rules.RegistryName(o) == host })
		switch rule := r.Registries[name]; {
		case rule.Blocked && (len(rule.Mirrors) > 0 || rule.Insecure):
			report(rules.Warning(field, "%s is blocked, so that its other keys change nothing", field).WithHint("leave them out, or blocked"))
		case !only && !rule.Blocked && !isMirror(r, host):
			report(rules.Warning(field, "%s changes nothing: only_registries does not have %s", field, host).WithHint("add it there, or leave it out here"))
		}
	}
	for i, name := range r.OnlyRegistries {
		if _, rule, ok := r.Registry(rules.RegistryName(name)); ok && rule.Blocked {
			report(rules.Warning(rules.ElementAt("only_registries", i), "%s %s is of no use: registries blocks it", rules.ElementAt("only_registries", i), rules.Quote(name)).WithHint("leave one of them out"))
		}
	}
}

func isMirror(r rules.Rules, host string) bool {
	for _, rule := range r.Registries {
		for _, m := range rule.Mirrors {
			name, _, _ := strings.Cut(m, "/")
			if rules.RegistryName(name) == host {
				return true
			}
		}
	}
	return false
}

func shadowedPaths(r rules.Rules, report rules.Reporter) {
	blocked := (&decision{rules: rules.Rules{BlockedPaths: r.BlockedPaths}}).blocked()
	for i, m := range r.Mounts {
		field, root := rules.ElementAt("mounts", i), path.Clean(m.Root)
		if rule := blocksAllOf(blocked, root); rule != "" {
			report(rules.Warning(field+".root", "%s grants nothing: %s blocks %s", field, rule, rules.Quote(root)).WithHint("name another directory"))
			continue
		}
		for j, other := range r.Mounts {
			if i != j && other.Covers(m) && (j < i || !m.Covers(other)) {
				report(rules.Warning(field+".root", "%s changes nothing: %s grants all of it", field, rules.ElementAt("mounts", j)).WithHint("leave one of them out"))
				break
			}
		}
	}
	for i, p := range r.BlockedPaths {
		field, rest := rules.ElementAt("blocked_paths", i), slices.Delete(slices.Clone(r.BlockedPaths), i, i+1)
		for j, other := range rest {
			if rules.Within(path.Clean(p), path.Clean(other)) && (j < i || path.Clean(p) != path.Clean(other)) {
				report(rules.Warning(field, "%s %s changes nothing: %s is blocked already", field, rules.Quote(p), rules.Quote(other)).WithHint("leave it out"))
				break
			}
		}
	}
}

// blocksAllOf returns the rule that blocks all of a directory.
func blocksAllOf(blocked []blockedPath, root string) string {
	for _, b := range blocked {
		if !b.exact && rules.Within(root, b.path) {
			return b.name()
		}
	}
	return inBlockedName(root)
}

func shadowedLimits(r rules.Rules, report rules.Reporter) {
	for _, name := range slices.Sorted(maps.Keys(r.Profiles)) {
		rule, field := r.Profiles[name], "profiles."+rules.Shorten(name)
		p, _ := rules.ResolveProfile(name, r)
		for _, l := range rules.Limits() {
			if _, ok := l.Ruled(&rule.Ceilings); ok && p.Locks(l.Field) {
				report(rules.Warning(field+".ceilings."+l.Key, "%s.ceilings.%s changes only the default: %s is locked", field, l.Key, l.Field).
					WithHint("set %s.defaults.%s, or unlock it", field, l.Key))
			}
		}
		if rule.Clamp != nil {
			for i, f := range *rule.Clamp {
				l := limitOf(f)
				if l.Get != nil && (l.Get(&p.Ceilings) == 0 || p.Locks(f)) {
					report(rules.Warning(rules.ElementAt(field+".clamp", i), "%s changes nothing: %s has no ceiling, or is locked", rules.ElementAt(field+".clamp", i), f).
						WithHint("set %s.ceilings.%s, or leave it out", field, l.Key))
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Tenants)) {
		if t := r.Tenants[name]; t.MaxSandboxes != nil && r.MaxSandboxes > 0 && *t.MaxSandboxes > r.MaxSandboxes {
			report(rules.Warning("tenants."+rules.Shorten(name)+".max_sandboxes", "tenant %s may have %d sandboxes, and all tenants together only %d", name, *t.MaxSandboxes, r.MaxSandboxes).
				WithHint("lower it, or raise max_sandboxes"))
		}
	}
}
