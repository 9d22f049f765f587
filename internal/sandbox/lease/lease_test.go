package lease

import (
	"slices"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// t0 is when everything in this file begins.
var t0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return t0.Add(d) }

func limits(lifetime, idle time.Duration) api.Limits {
	return api.Limits{LifetimeMS: lifetime.Milliseconds(), IdleMS: idle.Milliseconds()}
}

func TestLeaseEnd(t *testing.T) {
	for name, c := range map[string]struct {
		lifetime, idle time.Duration
		do             func(*Lease)
		now, end       time.Duration
		never          bool
		reason         string
	}{
		"no bounds":                          {now: time.Hour, never: true},
		"lifetime counts from the creation":  {lifetime: time.Hour, now: 50 * time.Minute, end: time.Hour, reason: "its lifetime of 1h0m0s is over"},
		"idle counts from the last use":      {idle: 10 * time.Minute, do: func(l *Lease) { l.Touch(at(5 * time.Minute)) }, now: 6 * time.Minute, end: 15 * time.Minute, reason: "its idle time of 10m0s is over"},
		"the earlier bound ends it":          {lifetime: time.Hour, idle: 10 * time.Minute, now: 0, end: 10 * time.Minute, reason: "its idle time of 10m0s is over"},
		"use does not reach beyond lifetime": {lifetime: time.Hour, idle: 10 * time.Minute, do: func(l *Lease) { l.Use(at(0)) }, now: 55 * time.Minute, end: time.Hour, reason: "its lifetime of 1h0m0s is over"},
		"a use under way holds the idle time": {
			idle: 10 * time.Minute, do: func(l *Lease) { l.Use(at(0)) }, now: 3 * time.Hour, end: 3*time.Hour + 10*time.Minute, reason: "its idle time of 10m0s is over",
		},
		"the idle time begins when the last use ends": {
			idle: 10 * time.Minute,
			do: func(l *Lease) {
				l.Use(at(0))
				l.Use(at(time.Minute))
				l.Release(at(2 * time.Minute))
				l.Release(at(time.Hour))
			},
			now: time.Hour + time.Minute, end: time.Hour + 10*time.Minute, reason: "its idle time of 10m0s is over",
		},
		"idle time stands still while paused": {idle: 10 * time.Minute, do: func(l *Lease) { l.Pause(at(time.Minute)) }, now: 9 * time.Hour, never: true},
		"lifetime goes on while paused":       {lifetime: time.Hour, idle: time.Minute, do: func(l *Lease) { l.Pause(at(0)) }, now: 9 * time.Hour, end: time.Hour, reason: "its lifetime of 1h0m0s is over"},
		"idle time goes on from where it stood": {
			idle: 10 * time.Minute,
			do: func(l *Lease) {
				l.Pause(at(4 * time.Minute))
				l.Pause(at(5 * time.Minute)) // again is nothing new
				l.Resume(at(time.Hour))
				l.Resume(at(2 * time.Hour))
			},
			now: time.Hour, end: time.Hour + 6*time.Minute, reason: "its idle time of 10m0s is over",
		},
		"a heartbeat while paused gives all of it back": {
			idle: 10 * time.Minute,
			do: func(l *Lease) {
				l.Pause(at(4 * time.Minute))
				l.Touch(at(30 * time.Minute))
				l.Resume(at(time.Hour))
			},
			now: time.Hour, end: time.Hour + 10*time.Minute, reason: "its idle time of 10m0s is over",
		},
		"what happened before it ran does not count": {
			lifetime: time.Hour, idle: 2 * time.Hour,
			do: func(l *Lease) {
				l.Use(at(0)) // a call that waits for the creation
				l.Begin(at(10 * time.Minute))
				l.Release(at(11 * time.Minute))
			},
			now: time.Hour, end: 70 * time.Minute, reason: "its lifetime of 1h0m0s is over",
		},
		"a use that goes on over a pause holds it": {
			idle: 10 * time.Minute,
			do: func(l *Lease) {
				l.Use(at(0))
				l.Pause(at(4 * time.Minute))
				l.Resume(at(time.Hour))
			},
			now: 2 * time.Hour, end: 2*time.Hour + 10*time.Minute, reason: "its idle time of 10m0s is over",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := New(t0, limits(c.lifetime, c.idle), t0)
			if c.do != nil {
				c.do(&l)
			}
			got, ok := l.End(at(c.now))
			if ok == c.never || ok && (!got.At.Equal(at(c.end)) || got.Reason != c.reason) {
				t.Errorf("it ends at %s (%v), %q; want %s, %q", got.At.Sub(t0), ok, got.Reason, c.end, c.reason)
			}
		})
	}
}

// An expiring lease is told of once, a minute before its end or at half of a
// short one, and again when it was renewed in between.
func TestLeaseNotice(t *testing.T) {
	l := New(t0, limits(0, 10*time.Minute), t0)
	var told []time.Duration
	look := func(now time.Duration) {
		if end, ok := l.End(at(now)); ok && l.Warn(end, at(now)) {
			told = append(told, now)
		}
	}
	for s := range 600 {
		look(time.Duration(s) * time.Second)
	}
	l.Touch(at(10*time.Minute - time.Second))
	for s := range 600 {
		look(10*time.Minute + time.Duration(s)*time.Second)
	}
	if want := []time.Duration{9 * time.Minute, 19*time.Minute - time.Second}; !slices.Equal(told, want) {
		t.Errorf("told at %v, want %v", told, want)
	}

	short := New(t0, limits(30*time.Second, 0), t0)
	end, _ := short.End(t0)
	if n := end.notice(); !n.Equal(at(15 * time.Second)) {
		t.Errorf("a lease of 30 s is told of at %s, want 15 s", n.Sub(t0))
	}
}

// A caller that sleeps until next misses nothing: the notice, the end, and the use
// that must be on record.
func TestLeaseNext(t *testing.T) {
	l := New(t0, limits(time.Hour, 10*time.Minute), t0)
	next := func(now time.Duration) time.Duration {
		n, ok := l.Next(at(now))
		if !ok {
			t.Fatal("never")
		}
		return n.Sub(t0)
	}
	if got := next(0); got != 9*time.Minute {
		t.Errorf("first look at %s, want 9m", got)
	}
	end, _ := l.End(at(9 * time.Minute))
	l.Warn(end, at(9*time.Minute))
	if got := next(9 * time.Minute); got != 10*time.Minute {
		t.Errorf("after the notice %s, want 10m", got)
	}
	l.Use(at(9 * time.Minute))
	if got := next(9 * time.Minute); got != 10*time.Second {
		t.Errorf("in use %s, want what was saved plus 10s", got)
	}
	if !l.Unsaved(at(9 * time.Minute)) {
		t.Error("a use that is nine minutes old needs no record")
	}
	l.Saved = at(9 * time.Minute)
	if l.Unsaved(at(9*time.Minute + 9*time.Second)) {
		t.Error("a use on record is written again after 9s")
	}
	none := New(t0, api.Limits{}, t0)
	none.Use(t0)
	if n, ok := none.Next(at(time.Hour)); ok || none.Unsaved(at(time.Hour)) {
		t.Errorf("a sandbox without a lease is looked at, at %s", n)
	}
}

// A long lease is told of twice: five minutes before its end, and one.
func TestLongLeaseIsToldOfTwice(t *testing.T) {
	l := New(t0, limits(time.Hour, 0), t0)
	var told []time.Duration
	for now := t0; now.Before(t0.Add(time.Hour)); {
		if end, ok := l.End(now); ok && l.Warn(end, now) {
			told = append(told, now.Sub(t0))
		}
		next, ok := l.Next(now)
		if !ok || !next.After(now) {
			t.Fatalf("at %s it wants to be looked at again at %s", now.Sub(t0), next.Sub(t0))
		}
		now = next
	}
	if want := []time.Duration{55 * time.Minute, 59 * time.Minute}; !slices.Equal(told, want) {
		t.Errorf("told at %v, want %v", told, want)
	}
}
