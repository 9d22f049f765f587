package policy

import (
	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

func checkProfile(d *decision) *api.Error {
	p, ok := rules.ResolveProfile(d.spec.Profile, d.rules)
	if !ok {
		return rules.NoProfile(d.spec.Profile, d.rules)
	}
	d.profile = p
	d.because("profile", d.rules.ProfileBy(p.Name))
	d.spec.Profile = p.Name
	if d.spec.ReadOnlyRoot == nil {
		d.spec.ReadOnlyRoot = new(p.ReadOnlyRoot)
	}
	if d.spec.Workspace == nil {
		d.spec.Workspace = &api.Workspace{ReadOnly: p.WorkspaceReadOnly}
	}
	if d.spec.Image == "" {
		d.spec.Image = p.Image
	}
	return nil
}
