//go:build linux

package role

import (
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	sentryfilter "gvisor.dev/gvisor/runsc/boot/filter"
	goferfilter "gvisor.dev/gvisor/runsc/fsgofer/filter"
)

//go:generate go run ./seccompgen -o seccomp_amd64.go

// gVisor keeps compiled seccomp programs in these tables and falls back to
// compiling when a name is missing, so that a table of another version or none
// costs time and nothing else: names hold every option, and a program is only
// used for exactly its own.
//
//go:linkname sentryTable gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var sentryTable map[string]precompiledseccomp.Program

//go:linkname goferTable gvisor.dev/gvisor/runsc/fsgofer/filter.precompiledPrograms
var goferTable map[string]precompiledseccomp.Program

func fillSentryPrograms() {
	sentryfilter.ListPrecompiled() // makes the table
	if sentryTable != nil {
		sentryPrograms(sentryTable)
	}
}

func fillGoferPrograms() {
	goferfilter.ListPrecompiled()
	if goferTable != nil {
		goferPrograms(goferTable)
	}
}
