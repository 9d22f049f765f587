package policy

import (
	"slices"

	"github.com/cloche-dev/cloche/api"
)

// checkUnbounded tells of a workspace that a sandbox can fill the disk through: one that is
// named and was given no size, and the layer over it. A private one without a bound is what
// the operator chose, and a directory of the host what the caller did.
func checkUnbounded(d *decision) *api.Error {
	w := d.spec.Workspace
	if w.Name == "" || w.ReadOnly || w.SizeBytes > 0 || d.isUnenforced(fieldWorkspaceSize) {
		return nil
	}
	reason := "nothing bounds a named workspace that has no size"
	if w.Layered {
		reason = "nothing bounds the layer over a named workspace that has no size"
	}
	d.unenforced = append(d.unenforced, api.Unenforced{Field: fieldWorkspaceSize, Reason: reason})
	return nil
}

// isUnenforced is true for a field of which it is told already that nothing holds it.
func (d *decision) isUnenforced(field string) bool {
	return slices.ContainsFunc(d.unenforced, func(u api.Unenforced) bool { return u.Field == field })
}
