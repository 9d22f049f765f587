package policy

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// shadowed warns of rules without effect: another rule, or a built-in one of the daemon, takes
// precedence. Usually the operator meant something else.
func shadowed(r Rules, report reporter) {
	shadowedImages(r, report)
	shadowedRegistries(r, report)
	shadowedPaths(r, report)
	shadowedLimits(r, report)
	shadowedNames(r, report)
	shadowedDefaults(r, report)
	shadowedEgress(r, report)
}

func warning(field, format string, args ...any) *api.Error {
	return api.Invalid(field, format, args...)
}

func shadowedImages(r Rules, report reporter) {
	for _, l := range []struct {
		key  string
		refs []string
	}{{"images", r.Images}, {"blocked_images", r.BlockedImages}} {
		for i, ref := range l.refs {
			for j, other := range l.refs {
				if i != j && coversImage(other, ref) && (j < i || !coversImage(ref, other)) {
					report(warning(at(l.key, i), "%s %s changes nothing: %s %s holds it already", at(l.key, i), show(ref), at(l.key, j), show(other)).
						WithHint("leave one of them out"))
					break
				}
			}
		}
	}
	for i, ref := range r.Images {
		for j, block := range r.BlockedImages {
			if coversImage(block, ref) {
				report(warning(at("images", i), "%s %s grants nothing: %s %s blocks all of it", at("images", i), show(ref), at("blocked_images", j), show(block)).
					WithHint("leave one of them out"))
				break
			}
		}
	}
	for _, from := range slices.Sorted(maps.Keys(r.ImageAliases)) {
		for j, block := range r.BlockedImages {
			if coversImage(block, r.ImageAliases[from]) {
				report(warning(keyed("image_aliases", from), "%s leads to an image that %s blocks", show(from), at("blocked_images", j)).
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
	n, err := parseImage(narrow)
	return err == nil && matchImage(wide, &n)
}

func shadowedRegistries(r Rules, report reporter) {
	for _, name := range slices.Sorted(maps.Keys(r.Registries)) {
		field, host := "registries."+bounded(name), registryName(name)
		only := len(r.OnlyRegistries) == 0 || slices.ContainsFunc(r.OnlyRegistries, func(o string) bool { return registryName(o) == host })
		switch rule := r.Registries[name]; {
		case rule.Blocked && (len(rule.Mirrors) > 0 || rule.Insecure):
			report(warning(field, "%s is blocked, so that its other keys change nothing", field).WithHint("leave them out, or blocked"))
		case !only && !rule.Blocked && !isMirror(r, host):
			report(warning(field, "%s changes nothing: only_registries does not have %s", field, host).WithHint("add it there, or leave it out here"))
		}
	}
	for i, name := range r.OnlyRegistries {
		if _, rule, ok := r.registry(registryName(name)); ok && rule.Blocked {
			report(warning(at("only_registries", i), "%s %s is of no use: registries blocks it", at("only_registries", i), show(name)).WithHint("leave one of them out"))
		}
	}
}

func isMirror(r Rules, host string) bool {
	for _, rule := range r.Registries {
		for _, m := range rule.Mirrors {
			name, _, _ := strings.Cut(m, "/")
			if registryName(name) == host {
				return true
			}
		}
	}
	return false
}

func shadowedPaths(r Rules, report reporter) {
	blocked := (&decision{rules: Rules{BlockedPaths: r.BlockedPaths}}).blocked()
	for i, m := range r.Mounts {
		field, root := at("mounts", i), path.Clean(m.Root)
		if rule := blocksAllOf(blocked, root); rule != "" {
			report(warning(field+".root", "%s grants nothing: %s blocks %s", field, rule, show(root)).WithHint("name another directory"))
			continue
		}
		for j, other := range r.Mounts {
			if i != j && other.covers(m) && (j < i || !m.covers(other)) {
				report(warning(field+".root", "%s changes nothing: %s grants all of it", field, at("mounts", j)).WithHint("leave one of them out"))
				break
			}
		}
	}
	for i, p := range r.BlockedPaths {
		field, rest := at("blocked_paths", i), slices.Delete(slices.Clone(r.BlockedPaths), i, i+1)
		for j, other := range rest {
			if within(path.Clean(p), path.Clean(other)) && (j < i || path.Clean(p) != path.Clean(other)) {
				report(warning(field, "%s %s changes nothing: %s is blocked already", field, show(p), show(other)).WithHint("leave it out"))
				break
			}
		}
	}
}

// blocksAllOf returns the rule that blocks all of a directory.
func blocksAllOf(blocked []blockedPath, root string) string {
	for _, b := range blocked {
		if !b.exact && within(root, b.path) {
			return b.name()
		}
	}
	return inBlockedName(root)
}

func shadowedLimits(r Rules, report reporter) {
	for _, name := range slices.Sorted(maps.Keys(r.Profiles)) {
		rule, field := r.Profiles[name], "profiles."+bounded(name)
		p, _ := resolveProfile(name, r)
		for _, l := range limits() {
			if _, ok := l.ruled(&rule.Ceilings); ok && p.locks(l.field) {
				report(warning(field+".ceilings."+l.key, "%s.ceilings.%s changes only the default: %s is locked", field, l.key, l.field).
					WithHint("set %s.defaults.%s, or unlock it", field, l.key))
			}
		}
		if rule.Clamp != nil {
			for i, f := range *rule.Clamp {
				l := limitOf(f)
				if l.get != nil && (l.get(&p.ceilings) == 0 || p.locks(f)) {
					report(warning(at(field+".clamp", i), "%s changes nothing: %s has no ceiling, or is locked", at(field+".clamp", i), f).
						WithHint("set %s.ceilings.%s, or leave it out", field, l.key))
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Tenants)) {
		if t := r.Tenants[name]; t.MaxSandboxes != nil && r.MaxSandboxes > 0 && *t.MaxSandboxes > r.MaxSandboxes {
			report(warning("tenants."+bounded(name)+".max_sandboxes", "tenant %s may have %d sandboxes, and all tenants together only %d", name, *t.MaxSandboxes, r.MaxSandboxes).
				WithHint("lower it, or raise max_sandboxes"))
		}
	}
}
