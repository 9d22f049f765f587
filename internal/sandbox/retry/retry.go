// Package retry says when something that failed is tried again, and tells those who wait for it.
package retry

import (
	"math/rand/v2"
	"time"
)

// Pace says when a teardown that failed is tried again.
type Pace struct {
	// First is the wait after the first attempt. It doubles up to Most.
	First, Most time.Duration
	// Burst is how many attempts are made before those who wait are told. Later attempts are Most apart.
	Burst int
}

// Teardown is the pace of every teardown, except in tests.
func Teardown() Pace {
	return Pace{First: 500 * time.Millisecond, Most: 30 * time.Second, Burst: 6}
}

// After is the wait after the n-th failed attempt, from 1. It is spread by a fifth, so that what failed
// together is not tried again together.
func (p Pace) After(n int) time.Duration {
	wait := p.Most
	if n <= p.Burst && n < 32 {
		wait = min(p.First<<(n-1), p.Most)
	}
	return time.Duration(float64(wait) * (0.8 + 0.4*rand.Float64()))
}

// Burst is some attempts in a row that callers wait for.
type Burst struct {
	done chan struct{}
	err  error
}

// NewBurst begins a burst.
func NewBurst() *Burst { return &Burst{done: make(chan struct{})} }

// Done is closed when an attempt has succeeded or all have failed.
func (b *Burst) Done() <-chan struct{} { return b.done }

// Err is the error of the last attempt, nil if one succeeded. It is valid once Done is closed.
func (b *Burst) Err() error { return b.err }

// End ends the burst, once. Callers serialise it.
func (b *Burst) End(err error) {
	if b.Over() {
		return
	}
	b.err = err
	close(b.done)
}

// Over reports whether the burst has ended.
func (b *Burst) Over() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}
