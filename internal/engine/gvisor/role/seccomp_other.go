//go:build linux && !amd64

package role

import "gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"

// No table for this architecture: the programs are compiled at every start.

func sentryPrograms(map[string]precompiledseccomp.Program) {}

func goferPrograms(map[string]precompiledseccomp.Program) {}
