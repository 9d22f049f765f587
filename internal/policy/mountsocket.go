package policy

import (
	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// FieldWorkspaceSockets names in Unenforced the sockets of the host in a workspace's
// directory.
const FieldWorkspaceSockets = "workspace.dir.sockets"

// FieldMountSockets names those in a mount, by its place in the request.
func FieldMountSockets(i int) string { return rules.ElementAt("mounts", i) + ".sockets" }

// checkMountSockets reports directories of the host in which the engine does not prevent programs
// from using unix sockets.
func checkMountSockets(d *decision) *api.Error {
	tell := func(field string, readOnly bool) {
		key := api.EnforcesMountSockets
		if readOnly {
			key = api.EnforcesReadOnlyMountSockets
		}
		if can, said := d.engine.Enforces[key]; said && !can.OK {
			d.unenforced = append(d.unenforced, api.Unenforced{Field: field, Reason: can.Reason})
		}
	}
	for i := range d.spec.Mounts {
		tell(FieldMountSockets(i), d.spec.Mounts[i].ReadOnly)
	}
	if d.workspace != nil {
		tell(FieldWorkspaceSockets, d.spec.Workspace.ReadOnly)
	}
	return nil
}
