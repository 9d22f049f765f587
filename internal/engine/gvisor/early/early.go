// Package early plays the smallest roles of the gVisor engine from its init:
// the helper that unmounts /proc in the sentry's root once the sentry needs it
// no more, and the first step of a sentry or a gofer, which gives up most
// capabilities and starts the second. The package imports next to nothing, so
// it is initialised before gVisor is, and a role costs a millisecond instead of
// seven.
package early

// The names, argv[0], of the first and the second step of each process, and of
// the trial that Probe makes. A first step's first argument is the number of the
// last descriptor that is meant for it. A sentry is called Pooled from its second
// step on; Sentry is the name under which it goes on when it is told
// whose it is.
const (
	FirstSentry = "cloche-sentry-first"
	Pooled      = "cloche-sentry-parked"
	Sentry      = "cloche-sentry"
	FirstGofer  = "cloche-gofer-first"
	Gofer       = "cloche-gofer"
	Probe       = "cloche-probe"
)

// Executable is the descriptor that the first step of every role is executed by:
// the file may be where the role's user cannot go. It ends with that step.
const Executable = 3

// What the trial writes to descriptor 4: one of these and an error number.
const (
	ProbeOK     byte = 1
	ProbeMount  byte = 2
	ProbePtrace byte = 3
)
