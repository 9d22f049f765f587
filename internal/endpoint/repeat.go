package endpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// maxRepeats and maxRepeatBytes bound the answers that are kept for repeated requests,
	// maxRepeatOne one of them, repeatAge how long it is kept.
	maxRepeats     = 64
	maxRepeatBytes = 4 << 20
	maxRepeatOne   = 1 << 20
	repeatAge      = 5 * time.Minute
	// maxRepeatBody bounds the body of a request that may be repeated.
	maxRepeatBody = 8 << 20
	// repeatGrace is how long a request goes on for which no client waits: an SDK retries
	// after a few seconds.
	repeatGrace = 30 * time.Second
	// maxRepeatKey bounds what a client names a request.
	maxRepeatKey = 256
)

// repeatKey names requests that are the same one.
type repeatKey struct {
	digest [sha256.Size]byte
	// named: the client has given it a name. One that only counts its attempts is the
	// same as another like it as long as that one's answer did not arrive.
	named bool
}

// repeatBook has the requests of an endpoint that may be repeated. The zero value is
// empty.
type repeatBook struct {
	mu      sync.Mutex
	entries []*repeated // oldest first
	bytes   int
}

// repeated is a request that may be repeated.
type repeated struct {
	key   repeatKey
	begun time.Time
	// ctx is the context of the request to the target.
	ctx  context.Context
	stop context.CancelCauseFunc
	// done is closed when what follows is known.
	done chan struct{}
	res  *http.Response
	body []byte
	err  error
	// alone: the answer is only for the client that sent the first request: a failure, or an
	// answer that cannot be kept.
	alone bool

	// Guarded by the book's mu. waiters is how many wait for it.
	waiters   int
	delivered bool
	grace     *time.Timer
}

// repeatOf returns the key of a request; ok is false if the request does not say that it may be
// repeated. again: it says that it is a repeat. The body is put back.
func (x *exchange) repeatOf(r *http.Request) (key repeatKey, again, ok bool, err error) {
	spec := x.up.spec.HTTP
	if spec == nil || !spec.Once || len(r.Header["Upgrade"]) > 0 || r.ContentLength < 0 || r.ContentLength > maxRepeatBody {
		return key, false, false, nil
	}
	if m := r.Method; m != http.MethodPost && m != http.MethodPut && m != http.MethodPatch && m != http.MethodDelete {
		return key, false, false, nil
	}
	name, count := r.Header["Idempotency-Key"], r.Header["X-Stainless-Retry-Count"]
	switch {
	case len(name) == 1 && name[0] != "" && len(name[0]) <= maxRepeatKey:
		key.named, again = true, true
	case len(count) == 1:
		again = strings.Trim(count[0], "0") != ""
	default:
		return key, false, false, nil
	}
	var body []byte
	if r.Body != nil && r.Body != http.NoBody {
		if body, err = x.buffered(r); err != nil {
			return key, false, false, err
		}
		r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	}
	h := sha256.New()
	for _, part := range []string{r.Method, x.target, strings.Join(name, "\n"), string(body)} {
		sum := sha256.Sum256([]byte(part))
		h.Write(sum[:])
	}
	h.Sum(key.digest[:0])
	x.body = body
	return key, again, true, nil
}

// join finds a request that is the same, or begins one. The caller waits for it until
// leave. What it begins ends with ctx.
func (b *repeatBook) join(ctx context.Context, key repeatKey, again bool) (p *repeated, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(func(p *repeated) bool { return p.waiters == 0 && p.over() && time.Since(p.begun) > repeatAge })
	for _, p := range b.entries {
		if again && p.key == key && (key.named || !p.delivered) {
			p.waiters++
			if p.grace != nil {
				p.grace.Stop()
			}
			return p, false
		}
	}
	p = &repeated{key: key, begun: time.Now(), done: make(chan struct{}), waiters: 1}
	p.ctx, p.stop = context.WithCancelCause(ctx)
	b.entries = append(b.entries, p)
	for len(b.entries) > maxRepeats {
		// The oldest that no client waits for gives way. If clients wait for all of them, the new
		// one is not kept.
		i := slices.IndexFunc(b.entries, func(o *repeated) bool { return o.waiters == 0 })
		if i < 0 {
			i = len(b.entries) - 1
		}
		b.drop(i)
	}
	return p, true
}

// over says that its answer is known.
func (p *repeated) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// forget drops entries. The caller holds mu.
func (b *repeatBook) forget(which func(*repeated) bool) {
	for i := len(b.entries) - 1; i >= 0; i-- {
		if which(b.entries[i]) {
			b.drop(i)
		}
	}
}

func (b *repeatBook) drop(i int) {
	p := b.entries[i]
	b.entries = slices.Delete(b.entries, i, i+1)
	if p.over() {
		b.bytes -= len(p.body)
	}
	if p.waiters == 0 {
		p.stop(errAbandoned)
	}
}

// leave ends the wait for a request. A request without an answer for which no client waits is canceled
// after a while.
func (b *repeatBook) leave(p *repeated, delivered bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.waiters--
	p.delivered = p.delivered || delivered
	if p.waiters > 0 {
		return
	}
	if p.over() {
		p.stop(nil) // of an answer that is not kept
		return
	}
	if !slices.Contains(b.entries, p) {
		p.stop(errAbandoned)
		return
	}
	p.grace = time.AfterFunc(repeatGrace, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if p.waiters == 0 {
			p.stop(errAbandoned)
		}
	})
}

// settle says what became of a request. An answer is kept as long as the bounds allow.
func (b *repeatBook) settle(p *repeated) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.grace != nil {
		p.grace.Stop()
	}
	known := slices.Contains(b.entries, p)
	b.bytes += len(p.body)
	close(p.done)
	if !known {
		b.bytes -= len(p.body)
		return
	}
	if p.alone {
		b.forget(func(o *repeated) bool { return o == p })
		return
	}
	for b.bytes > maxRepeatBytes {
		i := slices.IndexFunc(b.entries, func(o *repeated) bool { return o.over() && len(o.body) > 0 })
		b.drop(i)
	}
}

// once is a transport that sends a repeated request to the target once.
type once struct {
	x     *exchange
	key   repeatKey
	again bool
	on    http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (o *once) RoundTrip(r *http.Request) (*http.Response, error) {
	x, e := o.x, o.x.e
	if r.Body != nil {
		// Who notes what goes on sees it here; what is sent is what was read before.
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return nil, err
		}
	}
	for {
		p, first := e.repeats.join(e.ctx, o.key, o.again)
		if first && !e.ask(o, p, r) {
			e.repeats.leave(p, false)
			return nil, &codedError{codeDraining, errDetached}
		}
		select {
		case <-p.done:
		case <-r.Context().Done():
			e.repeats.leave(p, false)
			return nil, context.Cause(r.Context())
		}
		if p.alone && !first {
			e.repeats.leave(p, false)
			continue // it was for another client alone
		}
		x.repeated = p
		if p.err != nil {
			return nil, p.err
		}
		if !first {
			x.record.Repeated = true
		}
		if p.alone {
			context.AfterFunc(r.Context(), func() { p.stop(context.Cause(r.Context())) })
			return p.res, nil
		}
		res := *p.res
		res.Request, res.Header, res.Trailer = r, p.res.Header.Clone(), p.res.Trailer.Clone()
		res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(p.body)), int64(len(p.body))
		if len(p.body) == 0 {
			res.Body = http.NoBody
		}
		return &res, nil
	}
}

// ask sends the request to the target, also when its client leaves meanwhile; false means that the
// endpoint ends.
func (e *Endpoint) ask(o *once, p *repeated, r *http.Request) bool {
	e.mu.Lock()
	if e.ctx.Err() != nil {
		e.mu.Unlock()
		p.err, p.alone = &codedError{codeDraining, errDetached}, true
		e.repeats.settle(p)
		return false
	}
	e.wg.Add(1)
	e.mu.Unlock()
	// Nothing of the request's own context: who asked may be gone when something is told.
	r = r.Clone(p.ctx)
	r.Body = http.NoBody
	if len(o.x.body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(o.x.body))
	}
	go func() {
		defer e.wg.Done()
		p.res, p.err = o.on.RoundTrip(r) //nolint:bodyclose // below, or by whoever is given the answer
		p.alone = p.err != nil || !keepable(p.res)
		if !p.alone {
			p.body, p.err = io.ReadAll(io.LimitReader(p.res.Body, maxRepeatOne+1))
			switch {
			case p.err != nil:
				p.res.Body.Close()
				p.alone, p.body = true, nil
			case len(p.body) > maxRepeatOne:
				p.res.Body = &joined{io.MultiReader(bytes.NewReader(p.body), p.res.Body), p.res.Body}
				p.alone, p.body = true, nil
			default:
				p.res.Body.Close()
			}
		}
		live := p.alone && p.err == nil
		e.repeats.settle(p)
		if live && !e.repeats.awaited(p) {
			p.res.Body.Close() // no client takes it
		}
	}()
	return true
}

// awaited reports whether a client waits for a request.
func (b *repeatBook) awaited(p *repeated) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return p.waiters > 0
}

var errAbandoned = errors.New("no client waits for the answer any more")

// joined is a body of which a part was read already.
type joined struct {
	io.Reader
	io.Closer
}

// keepable reports whether an answer may be given twice: it has an end, and does not ask the client to
// retry.
func keepable(res *http.Response) bool {
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") || res.ContentLength > maxRepeatOne {
		return false
	}
	switch s := res.StatusCode; s {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusSwitchingProtocols:
		return false
	default:
		return s < 500
	}
}
