package claim

import (
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/cloche-dev/cloche/internal/engine/gvisor/refusal"
)

// LateFlag begins the argument that has a sentry take a Late after it has booted: the number of the descriptor of a
// socket follows, on which it serves CallLate. It comes first of all arguments.
const LateFlag = "--cloche-late="

// CallLate is the only call of that socket, and is made once.
const CallLate = "Late.Claim"

// Late is what a sandbox that has booted gets when it is claimed. Its payload has a connection to a gofer for each of
// Mounts; then, with Rules, the pipe and the count of refusal.Argument; then, with Link, the link's end and the far end.
type Late struct {
	urpc.FilePayload
	// Title is the command line that others are shown from then on.
	Title    []string
	Hostname string
	Mounts   []Mount
	Rules    *refusal.Rules
	// Link is what gVisor's call for the network takes, as JSON with one link; empty is no link. The sandbox has its
	// loopback already.
	Link string
}

// Mount is a mount of the host's files.
type Mount struct {
	Target   string
	ReadOnly bool
	// Exclusive: what the sandbox has looked up is not looked up again. Otherwise the host may change it.
	Exclusive bool
}
