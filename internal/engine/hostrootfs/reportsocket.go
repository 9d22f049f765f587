package hostrootfs

import "github.com/cloche-dev/cloche/api"

// resolves is the first version of Landlock by which the agent keeps programs from
// sockets of the host that have a path.
const resolves = 9

// ClosesSockets says that this version of Landlock closes every mount.
func ClosesSockets(landlock int) bool { return landlock >= resolves }

// Closing is what keeps programs from sockets of the host in what is mounted.
type Closing struct {
	// Landlock is the version of the kernel's; negative is that it is not used.
	Landlock int
	// ReadOnly: read-only mounts are closed, see Closes.
	ReadOnly bool
	// Covers: sockets that are found when the sandbox is made are covered.
	Covers bool
}

// laterSockets is why covers are not all.
const laterSockets = "programs can connect to unix sockets of the host that come to lie in it later, or lie too deep in it to be found"

// ReportSockets adds what is closed to a report.
func ReportSockets(enforces map[string]api.Enforcement, closing Closing) {
	ok := api.Enforcement{OK: true}
	enforces[api.EnforcesMountSockets], enforces[api.EnforcesReadOnlyMountSockets] = ok, ok
	if ClosesSockets(closing.Landlock) {
		return
	}
	why := "programs can connect to unix sockets of the host that lie in it"
	if closing.Covers {
		why = laterSockets
	}
	if closing.Landlock >= 0 {
		why += "; to keep them from that takes Linux 7.1 with Landlock"
	}
	enforces[api.EnforcesMountSockets] = api.Enforcement{Reason: why}
	if !closing.ReadOnly {
		if closing.Landlock >= 0 {
			why += ", or root"
		} else {
			why += "; that takes root"
		}
		enforces[api.EnforcesReadOnlyMountSockets] = api.Enforcement{Reason: why}
	}
}
