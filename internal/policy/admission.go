package policy

import (
	"cmp"
	"runtime"
)

// Admission says how many sandboxes are made at once. Who has to wait does so in
// its turn, tenant by tenant, so that a burst of one holds up nobody else.
type Admission struct {
	// Starting is how many are made at once; 0 is DefaultStarting.
	Starting int
	// Queued is how many may wait; 0 is DefaultQueued. One tenant may fill half of it.
	Queued int
}

// DefaultQueued is how many creations may wait.
const DefaultQueued = 2048

// DefaultStarting is how many sandboxes are made at once: making one is processors'
// work for the most part.
func DefaultStarting() int {
	const least, most = 4, 128
	return min(max(4*runtime.GOMAXPROCS(0), least), most)
}

// Filled has the defaults in the place of zeros.
func (a Admission) Filled() Admission {
	return Admission{Starting: cmp.Or(a.Starting, DefaultStarting()), Queued: cmp.Or(a.Queued, DefaultQueued)}
}
