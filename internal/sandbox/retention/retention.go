// Package retention selects the records that are no longer kept.
package retention

import (
	"cmp"
	"slices"
	"time"
)

// Rule says how long the records of ended sandboxes are kept, with their processes' records, their
// logs and their private workspaces. Named workspaces and directories of the host are never removed.
type Rule struct {
	// For is how long after its end a record is kept; 0 is DefaultFor, and negative means
	// indefinitely.
	For time.Duration
	// Count is how many are kept, the newest first; 0 is DefaultCount, and negative means all.
	Count int
}

// The defaults of a rule.
const (
	DefaultFor   = 24 * time.Hour
	DefaultCount = 1000
)

// Filled has the defaults in the place of zeros.
func (r Rule) Filled() Rule {
	return Rule{For: cmp.Or(r.For, DefaultFor), Count: cmp.Or(r.Count, DefaultCount)}
}

// Ended is a thing that ended at some time.
type Ended[T any] struct {
	At    time.Time
	Thing T
}

// Select returns those that are no longer kept, oldest first, and when the retention of the next one
// is over. A zero time is never. It sorts ended.
func Select[T any](r Rule, ended []Ended[T], now time.Time) (gone []Ended[T], next time.Time) {
	slices.SortStableFunc(ended, func(a, b Ended[T]) int { return a.At.Compare(b.At) })
	over := 0
	if r.Count >= 0 {
		over = max(0, len(ended)-r.Count)
	}
	for over < len(ended) && r.For >= 0 && !now.Before(ended[over].At.Add(r.For)) {
		over++
	}
	if over < len(ended) && r.For >= 0 {
		next = ended[over].At.Add(r.For)
	}
	return ended[:over], next
}

// Suspended says what is done with the saved memory of a sandbox that stays suspended.
type Suspended struct {
	// CompressAfter is when it is compressed; 0 is never.
	CompressAfter time.Duration
	// KeepFor is when it is discarded and the sandbox stopped; 0 is never.
	KeepFor time.Duration
}

// Action is what is due for a suspended sandbox.
type Action int

// What can be due.
const (
	None Action = iota
	Compress
	Discard
)

// Due returns what is due for a sandbox that has been suspended since a time, and when to ask again. A zero time is never.
func (r Suspended) Due(since time.Time, compressed bool, now time.Time) (act Action, next time.Time) {
	if r.KeepFor > 0 {
		if next = since.Add(r.KeepFor); !now.Before(next) {
			return Discard, time.Time{}
		}
	}
	if compressed || r.CompressAfter <= 0 {
		return None, next
	}
	at := since.Add(r.CompressAfter)
	if !now.Before(at) {
		return Compress, next
	}
	if next.IsZero() || at.Before(next) {
		next = at
	}
	return None, next
}
