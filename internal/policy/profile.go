package policy

import (
	"github.com/cloche-dev/cloche/api"
)

func checkProfile(d *decision) *api.Error {
	p, ok := resolveProfile(d.spec.Profile, d.rules)
	if !ok {
		return noProfile(d.spec.Profile, d.rules)
	}
	d.profile = p
	d.because("profile", d.rules.profileBy(p.name))
	d.spec.Profile = p.name
	if d.spec.ReadOnlyRoot == nil {
		d.spec.ReadOnlyRoot = new(p.readOnlyRoot)
	}
	if d.spec.Workspace == nil {
		d.spec.Workspace = &api.Workspace{ReadOnly: p.workspaceReadOnly}
	}
	if d.spec.Image == "" {
		d.spec.Image = p.image
	}
	return nil
}
