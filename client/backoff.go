package client

import (
	"context"
	"math/rand/v2"
	"time"
)

// The waits between two attempts to come back to a daemon.
const (
	backoffMin = 3 * time.Second
	backoffMax = 60 * time.Second
	// backoffJitter is how far a wait strays to either side, so that the clients
	// of a daemon that comes back do not all come at once.
	backoffJitter = 0.2
)

// backoff is how long to wait before the next attempt: backoffMin, doubling up
// to backoffMax, each strayed by the jitter. The zero value begins at the first.
type backoff struct{ last time.Duration }

// next is the wait before the next attempt, not shorter than least.
func (b *backoff) next(least time.Duration) time.Duration {
	b.last = min(max(2*b.last, backoffMin), backoffMax)
	stray := 1 - backoffJitter + 2*backoffJitter*rand.Float64()
	return max(time.Duration(float64(b.last)*stray), least)
}

// reset begins at the first wait again, after an attempt that succeeded.
func (b *backoff) reset() { b.last = 0 }

// pause waits for d or the end of ctx, whichever is first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
