package policy

import "github.com/cloche-dev/cloche"

// checkMountSockets tells of directories of the host in which the engine does not keep
// programs from unix sockets.
func checkMountSockets(d *decision) *cloche.Error {
	tell := func(field string, readOnly bool) {
		key := cloche.EnforcesMountSockets
		if readOnly {
			key = cloche.EnforcesReadOnlyMountSockets
		}
		if can, said := d.engine.Enforces[key]; said && !can.OK {
			d.unenforced = append(d.unenforced, cloche.Unenforced{Field: field, Reason: can.Reason})
		}
	}
	for i := range d.spec.Mounts {
		tell(at("mounts", i)+".sockets", d.spec.Mounts[i].ReadOnly)
	}
	if d.workspace != nil {
		tell("workspace.dir.sockets", d.spec.Workspace.ReadOnly)
	}
	return nil
}
