package policy

import "github.com/cloche-dev/cloche/api"

// checkKernel tells of an engine on which a sandbox can take what the kernel counts by user
// or for the whole machine, or sees in its files what others do.
func checkKernel(d *decision) *api.Error {
	for _, field := range []string{api.EnforcesKernelTables, api.EnforcesKernelFiles} {
		if can, said := d.engine.Enforces[field]; said && !can.OK {
			d.unenforced = append(d.unenforced, api.Unenforced{Field: field, Reason: can.Reason})
		}
	}
	return nil
}
