package policy

import "github.com/cloche-dev/cloche/api"

// checkKernel reports, for an engine that does not prevent it, that a sandbox can use up resources
// that the kernel counts per user or machine, or can see in kernel files what others do.
func checkKernel(d *decision) *api.Error {
	for _, field := range []string{api.EnforcesKernelTables, api.EnforcesKernelFiles} {
		if can, said := d.engine.Enforces[field]; said && !can.OK {
			d.unenforced = append(d.unenforced, api.Unenforced{Field: field, Reason: can.Reason})
		}
	}
	return nil
}
