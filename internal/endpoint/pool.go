package endpoint

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
)

// pool holds the connections to a target to as many as are needed at once. Alone, an
// http.Transport opens one for each request that finds none idle, and goes on to open it
// although another has come back meanwhile: a few requests at a slow target end up with
// many connections.
type pool struct {
	*http.Transport

	mu sync.Mutex
	// need is how many requests need a connection now, open how many there are or are
	// being opened.
	need, open int
	// changed is closed when one of them changes.
	changed chan struct{}
}

var errUnneeded = errors.New("no request needs the connection any more")

// upgrading is in the context of a request that wants to become something else than
// HTTP, and of the dial for it.
type upgrading struct{}

// RoundTrip implements http.RoundTripper. A request for an upgrade is no part of the
// count: an http.Transport gives it none of the connections that others left, and others
// none of those that were opened for it.
func (p *pool) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Upgrade") != "" {
		return p.Transport.RoundTrip(r.WithContext(context.WithValue(r.Context(), upgrading{}, true)))
	}
	p.add(&p.need, 1)
	res, err := p.Transport.RoundTrip(r)
	if err != nil {
		p.add(&p.need, -1)
		return nil, err
	}
	done := sync.OnceFunc(func() { p.add(&p.need, -1) })
	if res.Body == http.NoBody {
		done()
		return res, nil
	}
	res.Body = &pooled{ReadCloser: res.Body, done: done}
	return res, nil
}

func (p *pool) add(to *int, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*to += n
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// enter waits until a request would have no connection without one more. It is
// called by a dial, whose request may have found another meanwhile.
func (p *pool) enter(ctx context.Context) error {
	for {
		p.mu.Lock()
		if p.open < p.need {
			p.open++
			p.mu.Unlock()
			return nil
		}
		if p.need == 0 {
			p.mu.Unlock()
			return errUnneeded
		}
		if p.changed == nil {
			p.changed = make(chan struct{})
		}
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// leave says that a connection that was let in is no more.
func (p *pool) leave() { p.add(&p.open, -1) }

// pooled is the body of a response, at whose end its connection is free: the end is
// told before the client sees it and asks again.
type pooled struct {
	io.ReadCloser
	done func()
}

// Read implements io.Reader.
func (b *pooled) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.done()
	}
	return n, err
}

// Close implements io.Closer.
func (b *pooled) Close() error {
	err := b.ReadCloser.Close()
	b.done()
	return err
}

// pooledConn is a connection of a pool.
type pooledConn struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *pooledConn) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
