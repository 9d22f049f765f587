package client

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// silence is how long a daemon can send nothing on a stream before its connection counts as broken.
// The daemon sends something four times in that time.
const silence = 60 * time.Second

// errBroken marks an error of a connection that was made and then lost. The outcome of the request
// is unknown.
var errBroken = errors.New("the connection broke")

// broken is a cause that wraps both errBroken and the system's error.
type broken struct{ err error }

func (e broken) Error() string   { return e.err.Error() }
func (e broken) Unwrap() []error { return []error{errBroken, e.err} }

// callerError is an error of the caller's own function. It is returned to the caller unchanged.
type callerError struct{ err error }

func (e *callerError) Error() string { return e.err.Error() }

// passing reports whether the same request may succeed later.
func passing(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && (e.Code == api.CodeUnavailable || e.Retryable)
}

// follow calls once until it returns nil, which means that the stream has ended. If the connection
// is lost after connected was called, follow waits and calls once again, and once must continue
// where it was. If the first connection fails, follow returns the error.
func (c *Client) follow(ctx context.Context, once func(connected func()) error) error {
	var wait backoff
	was := false
	for {
		err := once(func() {
			was = true
			wait.reset()
		})
		if ce, ok := errors.AsType[*callerError](err); ok {
			return ce.err
		}
		if err == nil || !was || c.noReconnect || !passing(err) || ctx.Err() != nil {
			return err
		}
		if err := c.await(ctx, &wait, err); err != nil {
			return err
		}
	}
}

// await waits before the next attempt, after an attempt that failed with err.
func (c *Client) await(ctx context.Context, wait *backoff, err error) error {
	var least time.Duration
	if e, ok := errors.AsType[*api.Error](err); ok {
		least = e.RetryAfter()
	}
	d := wait.next(least)
	if c.onReconnect != nil {
		c.onReconnect(err, d)
	}
	if cerr := pause(ctx, d); cerr != nil {
		return c.failed(ctx, cerr)
	}
	return nil
}

// reconnecting is the error of a call on a stream that has no connection at present.
func (c *Client) reconnecting() *api.Error {
	e := api.Errorf(api.CodeUnavailable, "the connection to the daemon at %s is being made again", c.host).
		WithHint("ask again in a moment")
	e.Retryable = true
	return e
}

// watched is the body of an answer that sends data regularly. If it is silent for too long, hangUp
// ends its connection.
type watched struct {
	r      io.Reader
	hangUp func()
}

func (w *watched) Read(p []byte) (int, error) {
	// Only the time in Read counts: a slow reader does not make the daemon silent.
	t := time.AfterFunc(silence, w.hangUp)
	defer t.Stop()
	return w.r.Read(p)
}

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
