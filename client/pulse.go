package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// DefaultSilence is the default of Options.Silence.
const DefaultSilence = 30 * time.Second

// pulseProbes is how many times a silent daemon is probed before the client gives up.
const pulseProbes = 3

// errSilent is the error of an exchange with a daemon that did not answer.
var errSilent = errors.New("the daemon does not answer")

// pulse ends exchanges with a daemon that no longer answers. While an exchange waits, it requests
// GET /healthz, and any answer counts. It is safe for concurrent use.
type pulse struct {
	base    http.RoundTripper
	url     string
	silence time.Duration

	mu      sync.Mutex
	open    map[*exchange]struct{}
	beating bool
	asking  bool
	heard   time.Time
}

// exchange is one request until its answer is closed.
type exchange struct {
	begun time.Time
	// life has the values of the request's context, but does not end with it.
	life context.Context
	end  func()
}

// RoundTrip implements http.RoundTripper.
func (p *pulse) RoundTrip(req *http.Request) (*http.Response, error) {
	if p.silence <= 0 {
		return p.base.RoundTrip(req)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	x := &exchange{begun: time.Now(), life: context.WithoutCancel(req.Context()), end: func() { cancel(errSilent) }}
	p.enter(x)
	resp, err := p.base.RoundTrip(req.WithContext(ctx))
	if err != nil {
		p.leave(x)
		err = silent(ctx, err)
		cancel(nil)
		return nil, err
	}
	p.hear()
	b := &pulseBody{ReadCloser: resp.Body, ctx: ctx, p: p}
	b.left = sync.OnceFunc(func() {
		p.leave(x)
		cancel(nil)
	})
	resp.Body = b
	if rw, ok := resp.Body.(*pulseBody).ReadCloser.(io.Writer); ok {
		// A WebSocket outlives the context of its request.
		p.mu.Lock()
		x.end = func() {
			cancel(errSilent)
			_ = b.ReadCloser.Close() // the next read returns the reason
		}
		p.mu.Unlock()
		resp.Body = &pulseSocket{b, rw}
	}
	return resp, nil
}

// CloseIdleConnections is called by http.Client.
func (p *pulse) CloseIdleConnections() {
	if c, ok := p.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (p *pulse) enter(x *exchange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == nil {
		p.open = map[*exchange]struct{}{}
	}
	p.open[x] = struct{}{}
	if !p.beating {
		p.beating = true
		time.AfterFunc(p.silence/pulseProbes, p.beat)
	}
}

func (p *pulse) leave(x *exchange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, x)
}

// hear records that the daemon answered.
func (p *pulse) hear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = time.Now()
}

// beat probes the daemon as long as an exchange waits, and ends exchanges that have waited too
// long.
func (p *pulse) beat() {
	every := p.silence / pulseProbes
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.open) == 0 {
		p.beating = false
		return
	}
	next, ask, life := every, false, context.Context(nil)
	for x := range p.open {
		since := x.begun
		if p.heard.After(since) {
			since = p.heard
		}
		left := p.silence - time.Since(since)
		if left <= 0 {
			x.end()
			continue
		}
		next, ask, life = min(next, left), ask || left <= p.silence-every, x.life
	}
	if ask && !p.asking {
		p.asking = true
		go func() { // it returns after every at the latest
			answered := p.ask(life, every)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.asking = false
			if answered {
				p.heard = time.Now()
			}
		}()
	}
	time.AfterFunc(next, p.beat)
}

// ask reports whether the daemon sends any answer within this time.
func (p *pulse) ask(ctx context.Context, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return false
	}
	resp, err := p.base.RoundTrip(req)
	if err != nil {
		return false
	}
	drop(resp.Body)
	return true
}

// silent returns err, or an error that the daemon does not answer if that ended ctx.
func silent(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	return err
}

// pulseBody is the body of an answer.
type pulseBody struct {
	io.ReadCloser
	ctx  context.Context
	p    *pulse
	left func()
}

// Read implements io.Reader.
func (b *pulseBody) Read(data []byte) (int, error) {
	n, err := b.ReadCloser.Read(data)
	if n > 0 {
		b.p.hear()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = silent(b.ctx, err)
	}
	return n, err
}

// Close implements io.Closer.
func (b *pulseBody) Close() error {
	err := b.ReadCloser.Close()
	b.left()
	return err
}

// pulseSocket is the body of a WebSocket.
type pulseSocket struct {
	*pulseBody
	w io.Writer
}

// Write implements io.Writer.
func (s *pulseSocket) Write(data []byte) (int, error) {
	n, err := s.w.Write(data)
	return n, silent(s.ctx, err)
}
