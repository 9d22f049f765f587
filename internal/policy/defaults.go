package policy

import (
	"maps"
	"slices"

	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// shadowedDefaults warns of defaults of a profile that a setting for all profiles overrides.
func shadowedDefaults(r rules.Rules, report rules.Reporter) {
	for _, name := range slices.Sorted(maps.Keys(r.Profiles)) {
		rule, field := r.Profiles[name], "profiles."+rules.Shorten(name)
		p, _ := rules.ResolveProfile(name, r)
		for _, l := range rules.Limits() {
			_, own := l.Ruled(&rule.Defaults)
			if _, all := l.Ruled(&r.Defaults.Limits); own && all && !p.Locks(l.Field) {
				report(rules.Warning(field+".defaults."+l.Key, "%s.defaults.%s changes nothing: defaults.limits.%s goes before it", field, l.Key, l.Key).
					WithHint("leave one of them out, or lock %s in the profile", l.Field))
			}
		}
		if rule.Image != "" && r.Defaults.Image != "" && !p.Locks(rules.FieldImage) {
			report(rules.Warning(field+".image", "%s.image changes nothing: defaults.image goes before it", field).WithHint("leave one of them out, or lock image in the profile"))
		}
	}
}
