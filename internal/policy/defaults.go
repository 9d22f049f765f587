package policy

import (
	"maps"
	"slices"
)

// shadowedDefaults warns of defaults of a profile that a setting for all profiles overrides.
func shadowedDefaults(r Rules, report reporter) {
	for _, name := range slices.Sorted(maps.Keys(r.Profiles)) {
		rule, field := r.Profiles[name], "profiles."+bounded(name)
		p, _ := resolveProfile(name, r)
		for _, l := range limits() {
			_, own := l.ruled(&rule.Defaults)
			if _, all := l.ruled(&r.Defaults.Limits); own && all && !p.locks(l.field) {
				report(warning(field+".defaults."+l.key, "%s.defaults.%s changes nothing: defaults.limits.%s goes before it", field, l.key, l.key).
					WithHint("leave one of them out, or lock %s in the profile", l.field))
			}
		}
		if rule.Image != "" && r.Defaults.Image != "" && !p.locks(fieldImage) {
			report(warning(field+".image", "%s.image changes nothing: defaults.image goes before it", field).WithHint("leave one of them out, or lock image in the profile"))
		}
	}
}
