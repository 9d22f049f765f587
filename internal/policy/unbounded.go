package policy

import (
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// checkUnbounded reports a workspace through which a sandbox can fill the disk: a named one without
// a size, and the layer over it. The operator chose a private workspace without a limit, and the
// caller chose a directory of the host, so those are not reported.
func checkUnbounded(d *decision) *api.Error {
	w := d.spec.Workspace
	if w.Name == "" || w.ReadOnly || w.SizeBytes > 0 || d.isUnenforced(rules.FieldWorkspaceSize) {
		return nil
	}
	reason := "nothing bounds a named workspace that has no size"
	if w.Layered {
		reason = "nothing bounds the layer over a named workspace that has no size"
	}
	d.unenforced = append(d.unenforced, api.Unenforced{Field: rules.FieldWorkspaceSize, Reason: reason})
	return nil
}

// isUnenforced reports whether a field is already listed as unenforced.
func (d *decision) isUnenforced(field string) bool {
	return slices.ContainsFunc(d.unenforced, func(u api.Unenforced) bool { return u.Field == field })
}
