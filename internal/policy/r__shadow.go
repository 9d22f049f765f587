package policy

import (
	"path"
	"slices"
)

// covers reports whether a grant includes all of another one. Rules on the content of a directory
// are not compared.
func (m MountRule) covers(o MountRule) bool {
	for _, t := range o.Tenants {
		if len(m.Tenants) > 0 && !slices.Contains(m.Tenants, t) {
			return false
		}
	}
	return within(path.Clean(o.Root), path.Clean(m.Root)) && (m.Write || !o.Write) && (len(m.Tenants) == 0 || len(o.Tenants) > 0) &&
		len(m.Rules) == 0 && len(o.Rules) == 0
}
