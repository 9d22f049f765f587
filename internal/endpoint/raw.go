package endpoint

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// rawConn is a connection whose bytes go through as they are.
type rawConn struct {
	e    *Endpoint
	near net.Conn
	ctx  context.Context
	stop context.CancelCauseFunc
	x    api.Exchange

	in, out atomic.Int64
}

// serveRaw takes connections from ln until it ends.
func (e *Endpoint) serveRaw(ln net.Listener) {
	for {
		near, err := ln.Accept()
		if err != nil {
			return
		}
		c := &rawConn{e: e, near: near}
		c.ctx, c.stop = context.WithCancelCause(e.ctx)
		e.mu.Lock()
		full := len(e.raw) >= e.o.Spec.Limits.Connections
		over := e.state == api.EndpointDraining || e.state == api.EndpointClosed
		code := codeBusy
		if !full && !over && e.rates.ask() > 0 {
			full, code = true, codeRate
		}
		if full = full || !over && !e.o.Share.take(); !full && !over {
			e.raw[c] = struct{}{}
			e.wg.Add(1)
			e.running.Add(1)
		}
		e.mu.Unlock()
		if full || over {
			reset(near)
			c.stop(nil)
			if full {
				e.failed(code)
			}
			continue
		}
		go c.run() // e.wg counts it
	}
}

// reset ends a connection so that the other side sees that it broke off.
func reset(c net.Conn) {
	switch c := c.(type) {
	case interface{ Reset() }:
		c.Reset()
	case *net.TCPConn:
		_ = c.SetLinger(0)
		c.Close()
	default:
		c.Close()
	}
}

// cut ends the connection at once.
func (c *rawConn) cut() { c.stop(errDetached) }

func (c *rawConn) run() {
	e := c.e
	e.conns.Add(1)
	e.requests.Add(1)
	c.x = e.exchange()
	c.x.Peer = peerOf(c.near)
	begun := time.Now()
	err := c.carry()
	code := ""
	if err != nil {
		code = codeOf(c.ctx, err)
	}
	c.stop(nil)
	e.mu.Lock()
	delete(e.raw, c)
	e.mu.Unlock()
	c.x.BytesIn, c.x.BytesOut = c.in.Load(), c.out.Load()
	c.x.DurationMS = time.Since(begun).Milliseconds()
	c.x.Code = code
	c.x.Outcome = outcomeOf(code, 0)
	if code != "" {
		e.failed(code)
	}
	e.o.Observer.Exchanged(c.x)
	e.conns.Add(-1)
	e.o.Share.release()
	e.end()
	e.wg.Done()
}

// carry moves the bytes until both sides have ended, or something is wrong.
func (c *rawConn) carry() error {
	up := c.e.upstream.Load()
	far, err := up.dial(c.ctx)
	if err != nil {
		reset(c.near)
		return err
	}
	c.e.worked()
	limits := up.spec.Limits
	idle := time.AfterFunc(ms(limits.IdleMS), func() { c.stop(&codedError{codeIdleTime, errIdle}) })
	defer idle.Stop()
	ended := make(chan struct{})
	unhook := context.AfterFunc(c.ctx, func() {
		defer close(ended)
		reset(c.near)
		reset(far)
	})
	count := func(own, all *atomic.Int64) func(int) error {
		return func(n int) error {
			own.Add(int64(n))
			all.Add(int64(n))
			return c.e.paced(c.ctx, idle, limits.IdleMS, n)
		}
	}
	results := make(chan error, 2)
	var wg sync.WaitGroup
	wg.Go(func() {
		results <- pipe(far, c.near, c.e.rates, count(&c.in, &c.e.bytesIn))
	})
	wg.Go(func() {
		results <- pipe(c.near, far, c.e.rates, count(&c.out, &c.e.bytesOut))
	})
	for range 2 {
		if e := <-results; e != nil && err == nil {
			err = e
			c.stop(&codedError{codeReset, e})
		}
	}
	wg.Wait()
	if !unhook() {
		<-ended
		if err == nil {
			err = context.Cause(c.ctx)
		}
	}
	c.near.Close()
	far.Close()
	return err
}

var errIdle = errors.New("nothing moved for too long")

// pipe copies one direction and hands its end on. moved is told of each step, and may
// take its time.
func pipe(to, from net.Conn, r rates, moved func(n int) error) error {
	buf := r.piece(make([]byte, 32<<10))
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return werr
			}
			if perr := moved(n); perr != nil {
				return perr
			}
		}
		if errors.Is(err, io.EOF) {
			if half, ok := to.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite() // the other side may be gone, which its reader tells
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}
