package client

import (
	"context"
	"math/rand/v2"
	"time"
)

// Waits between attempts to reconnect to a daemon.
const (
	backoffMin = 3 * time.Second
	backoffMax = 60 * time.Second
	// backoffJitter is the relative random deviation of a wait, so that the clients of a
	// restarted daemon do not all connect at once.
	backoffJitter = 0.2
)

// backoff is the wait before the next attempt: it starts at backoffMin and doubles up to
// backoffMax, each with jitter. The zero value is ready to use.
type backoff struct{ last time.Duration }

// next returns the wait before the next attempt, which is at least least.
func (b *backoff) next(least time.Duration) time.Duration {
	b.last = min(max(2*b.last, backoffMin), backoffMax)
	stray := 1 - backoffJitter + 2*backoffJitter*rand.Float64()
	return max(time.Duration(float64(b.last)*stray), least)
}

// reset starts again at the first wait. Call it after an attempt that succeeded.
func (b *backoff) reset() { b.last = 0 }

// pause waits for d, or until ctx ends.
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
