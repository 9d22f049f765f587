package lease

import (
	"fmt"
	"time"

	"github.com/cloche-dev/cloche/api"
)

const (
	// A sandbox is said to be expiring so long before its end, and again shortly
	// before it; of a lease that is too short for a notice, the last comes at half.
	expiringEarly, expiringNotice = 5 * time.Minute, time.Minute
	// The last use is on record at most every tenth of the idle time, within these
	// bounds: a restart of the daemon forgets no more use than that.
	minSaveEvery, maxSaveEvery = 500 * time.Millisecond, 10 * time.Second
)

// Lease is the arithmetic of when a sandbox ends by itself. Its times are on the
// wall clock, so that they mean the same after a restart of the daemon or of the
// machine. It is not safe for concurrent use.
type Lease struct {
	// Began is when the sandbox began to run.
	Began          time.Time
	Lifetime, Idle time.Duration // 0 is no bound
	// LastUse is when the idle time began, unless something is using the sandbox.
	LastUse time.Time
	// uses counts what holds the idle time: calls under way, streams, attaches.
	uses int
	// Paused means that the idle time is paused at spent.
	Paused bool
	Spent  time.Duration
	// warned is the end for which a warning was sent, and early the end for which an early
	// warning was sent.
	warned, early time.Time
	// Saved is the last use that is on record.
	Saved time.Time
}

// New makes the lease of a sandbox that began to run at some time and of
// which lastUse is the last known use.
func New(began time.Time, limits api.Limits, lastUse time.Time) Lease {
	return Lease{
		Began: began, Lifetime: millis(limits.LifetimeMS), Idle: millis(limits.IdleMS),
		LastUse: lastUse, Saved: lastUse,
	}
}

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// Begin makes the lease run from now on, whatever uses the sandbox already.
func (l *Lease) Begin(now time.Time) {
	l.Began = now
	l.Touch(now)
}

// Use counts one use.
func (l *Lease) Use(now time.Time) {
	l.uses++
	l.Touch(now)
}

// Release ends one use.
func (l *Lease) Release(now time.Time) {
	l.uses--
	l.Touch(now)
}

// Touch begins the idle time anew.
func (l *Lease) Touch(now time.Time) { l.LastUse, l.Spent = now, 0 }

// Pause pauses the idle time.
func (l *Lease) Pause(now time.Time) {
	if !l.Paused {
		l.Paused, l.Spent = true, max(0, now.Sub(l.Used(now)))
	}
}

// Resume lets the idle time go on from where it stood.
func (l *Lease) Resume(now time.Time) {
	if l.Paused {
		l.Paused, l.LastUse, l.Spent = false, now.Add(-l.Spent), 0
	}
}

// Used is when the sandbox was last used: now, if it is being used.
func (l *Lease) Used(now time.Time) time.Time {
	if l.uses > 0 {
		return now
	}
	return l.LastUse
}

// Term is the bound that ends the lease first.
type Term struct {
	At     time.Time
	length time.Duration
	Reason string
	Cause  api.TerminalReason
}

// End returns when the lease ends if the sandbox is not used from now on, and the limit that causes
// it. False means never.
func (l *Lease) End(now time.Time) (t Term, ok bool) {
	if l.Lifetime > 0 {
		t, ok = Term{l.Began.Add(l.Lifetime), l.Lifetime, fmt.Sprintf("its lifetime of %s is over", l.Lifetime), api.EndedTTL}, true
	}
	if l.Idle > 0 && !l.Paused {
		if at := l.Used(now).Add(l.Idle); !ok || at.Before(t.At) {
			t, ok = Term{at, l.Idle, fmt.Sprintf("its idle time of %s is over", l.Idle), api.EndedIdle}, true
		}
	}
	return t, ok
}

// notice is when the end of t is to be told of.
func (t Term) notice() time.Time { return t.At.Add(-min(expiringNotice, t.length/2)) }

// early is when the end of t is to be told of for the first time, if the lease is
// long enough that this is news.
func (t Term) early() (time.Time, bool) {
	return t.At.Add(-expiringEarly), t.length > 2*expiringEarly
}

// Warn reports whether the end of t must be told of now. It does so twice for
// each end, or once where the lease is short: a lease that was renewed has another.
func (l *Lease) Warn(t Term, now time.Time) bool {
	if l.warned.Equal(t.At) {
		return false
	}
	if !now.Before(t.notice()) {
		l.warned = t.At
		return true
	}
	if at, ok := t.early(); ok && !now.Before(at) && !l.early.Equal(t.At) {
		l.early = t.At
		return true
	}
	return false
}

// SaveEvery is how old the use on record may be while the sandbox is used.
func (l *Lease) SaveEvery() time.Duration { return min(max(l.Idle/10, minSaveEvery), maxSaveEvery) }

// Unsaved reports whether the use on record is too old.
func (l *Lease) Unsaved(now time.Time) bool {
	return l.Idle > 0 && l.Used(now).Sub(l.Saved) >= l.SaveEvery()
}

// Next is when the lease must be looked at again; false is never.
func (l *Lease) Next(now time.Time) (at time.Time, ok bool) {
	t, ok := l.End(now)
	if ok {
		at = t.At
		if n := t.notice(); n.After(now) && !l.warned.Equal(t.At) {
			at = n
		}
		if n, long := t.early(); long && n.After(now) && !l.early.Equal(t.At) {
			at = n
		}
	}
	if l.Idle > 0 && l.uses > 0 {
		if save := l.Saved.Add(l.SaveEvery()); !ok || save.Before(at) {
			at, ok = save, true
		}
	}
	return at, ok
}
