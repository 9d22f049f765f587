package policy

import (
	"cmp"
	"runtime"
)

// Admission limits how many sandboxes are created at once. The queue is fair: it serves tenants in
// turn, so that a burst of one tenant does not delay the others.
type Admission struct {
	// Starting is how many sandboxes are created at once; 0 is DefaultStarting.
	Starting int
	// Queued is how many creations can wait; 0 is DefaultQueued. One tenant can use half of the
	// queue.
	Queued int
}

// DefaultQueued is the default number of creations that can wait.
const DefaultQueued = 2048

// DefaultStarting returns the default number of sandboxes that are created at once. Creating a
// sandbox mostly needs CPU time.
func DefaultStarting() int {
	const least, most = 4, 128
	return min(max(4*runtime.GOMAXPROCS(0), least), most)
}

// Filled returns a with defaults in place of zeros.
func (a Admission) Filled() Admission {
	return Admission{Starting: cmp.Or(a.Starting, DefaultStarting()), Queued: cmp.Or(a.Queued, DefaultQueued)}
}
