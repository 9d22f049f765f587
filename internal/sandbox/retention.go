package sandbox

import (
	"cmp"
	"slices"
	"time"
)

// Retention says how long the records of ended sandboxes are kept, with their
// processes' records, their logs and their private workspaces. Named workspaces
// and directories of the host are never touched.
type Retention struct {
	// For is how long after its end it is kept; 0 is DefaultRetentionFor, and negative means
	// indefinitely.
	For time.Duration
	// Count is how many, the newest first; 0 is DefaultRetentionCount, negative
	// all of them.
	Count int
}

// The retention of a Manager that is told of none.
const (
	DefaultRetentionFor   = 24 * time.Hour
	DefaultRetentionCount = 1000
)

// filled has the defaults in the place of zeros.
func (r Retention) filled() Retention {
	return Retention{For: cmp.Or(r.For, DefaultRetentionFor), Count: cmp.Or(r.Count, DefaultRetentionCount)}
}

// endedAt is a sandbox that ended at some time.
type endedAt[T any] struct {
	at time.Time
	s  T
}

// retire selects what is no longer kept, oldest first, and returns when the retention of the next
// one is over. A zero time is never.
func retire[T any](r Retention, ended []endedAt[T], now time.Time) (gone []endedAt[T], next time.Time) {
	slices.SortStableFunc(ended, func(a, b endedAt[T]) int { return a.at.Compare(b.at) })
	over := 0
	if r.Count >= 0 {
		over = max(0, len(ended)-r.Count)
	}
	for over < len(ended) && r.For >= 0 && !now.Before(ended[over].at.Add(r.For)) {
		over++
	}
	if over < len(ended) && r.For >= 0 {
		next = ended[over].at.Add(r.For)
	}
	return ended[:over], next
}
