package sandbox

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

// lease is the arithmetic of when a sandbox ends by itself. Its times are on the
// wall clock, so that they mean the same after a restart of the daemon or of the
// machine. It is not safe for concurrent use.
type lease struct {
	// began is when the sandbox began to run.
	began          time.Time
	lifetime, idle time.Duration // 0 is no bound
	// lastUse is when the idle time began, unless something is using the sandbox.
	lastUse time.Time
	// uses counts what holds the idle time: calls under way, streams, attaches.
	uses int
	// paused means that the idle time is paused at spent.
	paused bool
	spent  time.Duration
	// warned is the end for which a warning was sent, and early the end for which an early
	// warning was sent.
	warned, early time.Time
	// saved is the last use that is on record.
	saved time.Time
}

// newLease makes the lease of a sandbox that began to run at some time and of
// which lastUse is the last known use.
func newLease(began time.Time, limits api.Limits, lastUse time.Time) lease {
	return lease{
		began: began, lifetime: millis(limits.LifetimeMS), idle: millis(limits.IdleMS),
		lastUse: lastUse, saved: lastUse,
	}
}

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// begin makes the lease run from now on, whatever uses the sandbox already.
func (l *lease) begin(now time.Time) {
	l.began = now
	l.touch(now)
}

// use counts one use.
func (l *lease) use(now time.Time) {
	l.uses++
	l.touch(now)
}

// release ends one use.
func (l *lease) release(now time.Time) {
	l.uses--
	l.touch(now)
}

// touch begins the idle time anew.
func (l *lease) touch(now time.Time) { l.lastUse, l.spent = now, 0 }

// pause pauses the idle time.
func (l *lease) pause(now time.Time) {
	if !l.paused {
		l.paused, l.spent = true, max(0, now.Sub(l.used(now)))
	}
}

// resume lets the idle time go on from where it stood.
func (l *lease) resume(now time.Time) {
	if l.paused {
		l.paused, l.lastUse, l.spent = false, now.Add(-l.spent), 0
	}
}

// used is when the sandbox was last used: now, if it is being used.
func (l *lease) used(now time.Time) time.Time {
	if l.uses > 0 {
		return now
	}
	return l.lastUse
}

// term is the bound that ends the lease first.
type term struct {
	at     time.Time
	length time.Duration
	reason string
	cause  api.TerminalReason
}

// end returns when the lease ends if the sandbox is not used from now on, and the limit that causes
// it. False means never.
func (l *lease) end(now time.Time) (t term, ok bool) {
	if l.lifetime > 0 {
		t, ok = term{l.began.Add(l.lifetime), l.lifetime, fmt.Sprintf("its lifetime of %s is over", l.lifetime), api.EndedTTL}, true
	}
	if l.idle > 0 && !l.paused {
		if at := l.used(now).Add(l.idle); !ok || at.Before(t.at) {
			t, ok = term{at, l.idle, fmt.Sprintf("its idle time of %s is over", l.idle), api.EndedIdle}, true
		}
	}
	return t, ok
}

// notice is when the end of t is to be told of.
func (t term) notice() time.Time { return t.at.Add(-min(expiringNotice, t.length/2)) }

// early is when the end of t is to be told of for the first time, if the lease is
// long enough that this is news.
func (t term) early() (time.Time, bool) {
	return t.at.Add(-expiringEarly), t.length > 2*expiringEarly
}

// warn reports whether the end of t must be told of now. It does so twice for
// each end, or once where the lease is short: a lease that was renewed has another.
func (l *lease) warn(t term, now time.Time) bool {
	if l.warned.Equal(t.at) {
		return false
	}
	if !now.Before(t.notice()) {
		l.warned = t.at
		return true
	}
	if at, ok := t.early(); ok && !now.Before(at) && !l.early.Equal(t.at) {
		l.early = t.at
		return true
	}
	return false
}

// saveEvery is how old the use on record may be while the sandbox is used.
func (l *lease) saveEvery() time.Duration { return min(max(l.idle/10, minSaveEvery), maxSaveEvery) }

// unsaved reports whether the use on record is too old.
func (l *lease) unsaved(now time.Time) bool {
	return l.idle > 0 && l.used(now).Sub(l.saved) >= l.saveEvery()
}

// next is when the lease must be looked at again; false is never.
func (l *lease) next(now time.Time) (at time.Time, ok bool) {
	t, ok := l.end(now)
	if ok {
		at = t.at
		if n := t.notice(); n.After(now) && !l.warned.Equal(t.at) {
			at = n
		}
		if n, long := t.early(); long && n.After(now) && !l.early.Equal(t.at) {
			at = n
		}
	}
	if l.idle > 0 && l.uses > 0 {
		if save := l.saved.Add(l.saveEvery()); !ok || save.Before(at) {
			at, ok = save, true
		}
	}
	return at, ok
}
