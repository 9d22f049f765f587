package policy

import "github.com/cloche-dev/cloche"

// checkKernelTables tells of an engine on which a sandbox can take what the kernel counts
// by user or for the whole machine.
func checkKernelTables(d *decision) *cloche.Error {
	if can, said := d.engine.Enforces[cloche.EnforcesKernelTables]; said && !can.OK {
		d.unenforced = append(d.unenforced, cloche.Unenforced{Field: cloche.EnforcesKernelTables, Reason: can.Reason})
	}
	return nil
}
