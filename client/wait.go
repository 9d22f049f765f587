package client

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// maxWait is the longest wait of one request.
const maxWait = time.Minute

// WaitProcess waits until a process has ended, or is ready if that is requested, and returns its
// record. It waits for TimeoutMS or, if that is 0, until ctx ends. The record says whether the
// condition was met. A connection that breaks is replaced, as in calls that follow something. If
// the first connection fails, WaitProcess returns the error at once.
func (c *Client) WaitProcess(ctx context.Context, ref, id string, w api.WaitRequest) (api.Process, error) {
	path, err := processPath(ref, id, "/wait")
	if err != nil {
		return api.Process{}, err
	}
	if w.TimeoutMS < 0 {
		return api.Process{}, api.Invalid("timeout_ms", "a wait of %d ms was asked for", w.TimeoutMS).
			WithHint("0 waits as long as the context lasts")
	}
	k := waiting{c: c, path: path, w: w}
	if w.TimeoutMS > 0 {
		k.deadline = time.Now().Add(time.Duration(w.TimeoutMS) * time.Millisecond)
	}
	for {
		began := time.Now()
		p, over, err := k.once(ctx)
		switch {
		case err != nil:
			if err := k.again(ctx, err); err != nil {
				return p, err
			}
		case over:
			return p, nil
		default:
			// If the server answers early, ask again after a short pause.
			if err := pause(ctx, 100*time.Millisecond-time.Since(began)); err != nil {
				return p, c.failed(ctx, err)
			}
		}
	}
}

// waiting is the state of one wait over all its requests.
type waiting struct {
	c        *Client
	path     string
	w        api.WaitRequest
	deadline time.Time // zero is no deadline
	met      bool      // a daemon has answered
	back     backoff
}

// once sends one request, and reports whether the wait is over.
func (k *waiting) once(ctx context.Context) (p api.Process, over bool, err error) {
	one := api.WaitRequest{Ready: k.w.Ready, TimeoutMS: maxWait.Milliseconds()}
	if !k.deadline.IsZero() {
		left := max(1, time.Until(k.deadline).Milliseconds())
		over = left <= one.TimeoutMS
		one.TimeoutMS = min(one.TimeoutMS, left)
	}
	if err := k.c.call(ctx, http.MethodPost, k.path, nil, one, &p); err != nil {
		return p, false, err
	}
	k.met = true
	k.back.reset()
	return p, over || p.State.Ended() || k.w.Ready && settled(p), nil
}

// again waits before the next attempt, after an attempt that failed with err. It returns the error
// that ends the wait. No attempt is made after the deadline.
func (k *waiting) again(ctx context.Context, err error) error {
	e, ok := errors.AsType[*api.Error](err)
	// Only the daemon's own errors have a request ID.
	k.met = k.met || errors.Is(err, errBroken) || ok && e.Retryable && e.RequestID != ""
	if !k.met || k.c.noReconnect || !passing(err) || ctx.Err() != nil {
		return err
	}
	within := ctx
	if !k.deadline.IsZero() {
		var cancel context.CancelFunc
		within, cancel = context.WithDeadline(ctx, k.deadline)
		defer cancel()
	}
	if aerr := k.c.await(within, &k.back, err); ctx.Err() != nil {
		return aerr
	} else if aerr != nil {
		return err // more specific than an expired deadline
	}
	return nil
}

// settled reports whether the readiness of a process is decided. A process whose readiness check
// timed out continues, and its Reason says so.
func settled(p api.Process) bool {
	return p.State == api.ProcessReady || p.State == api.ProcessRunning && p.Reason != ""
}
