//go:build linux

package hostkernel

import (
	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche"
)

// resolves is the first version of Landlock by which the agent keeps programs from
// sockets of the host that have a path.
const resolves = 9

// LandlockVersion is the version of the kernel's Landlock; 0 is none.
func LandlockVersion() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// ReportSockets adds to a report what keeps programs from sockets of the host in what is
// mounted. ClosesReadOnly says that read-only mounts are closed to them, see Closes.
func ReportSockets(enforces map[string]cloche.Enforcement, closesReadOnly bool, landlock int) {
	ok := cloche.Enforcement{OK: true}
	enforces[cloche.EnforcesMountSockets], enforces[cloche.EnforcesReadOnlyMountSockets] = ok, ok
	if landlock >= resolves {
		return
	}
	const why = "programs can connect to unix sockets of the host that lie in it; that takes Linux 7.1 with Landlock"
	enforces[cloche.EnforcesMountSockets] = cloche.Enforcement{Reason: why}
	if !closesReadOnly {
		enforces[cloche.EnforcesReadOnlyMountSockets] = cloche.Enforcement{Reason: why + ", or root"}
	}
}
