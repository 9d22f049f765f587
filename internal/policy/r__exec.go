package policy

import (
	"github.com/cloche-dev/cloche/api"
)

// lockedOrFit is fit, except that a limit that the profile locks keeps the sandbox's value.
func (l limit) lockedOrFit(p *profile, field string, asked, own float64, unlimited bool) (float64, *api.Adjustment, *api.Error) {
	if !p.locks(l.field) {
		return l.fit(p, field, asked, unlimited)
	}
	if asked == own {
		return own, nil, nil
	}
	return own, &api.Adjustment{
		Field: field, Asked: wire(asked), Used: wire(own), Rule: ruleName(p.name, "locked", l.field),
	}, nil
}
