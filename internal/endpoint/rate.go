package endpoint

import (
	"context"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/cloche-dev/cloche/api"
)

// maxSandboxConns is how many connections all endpoints of a sandbox have at once.
const maxSandboxConns = 512

// Share is what the endpoints of one sandbox have together. The zero value is ready.
type Share struct {
	conns atomic.Int64
	// buffered is how much of bodies is kept in memory.
	buffered atomic.Int64
}

// maxBuffered bounds the bodies of one sandbox that are in memory at once.
const maxBuffered = 64 << 20

// buffer takes n bytes of memory, which the caller gives back with a negative n; false
// is that there is no more, and nothing was taken.
func (s *Share) buffer(n int64) bool {
	if s.buffered.Add(n) > maxBuffered && n > 0 {
		s.buffered.Add(-n)
		return false
	}
	return true
}

// take takes a connection; false means that none is left.
func (s *Share) take() bool {
	if s.conns.Add(1) > maxSandboxConns {
		s.conns.Add(-1)
		return false
	}
	return true
}

func (s *Share) release() { s.conns.Add(-1) }

// Sockets bounds the connections to targets that all endpoints of a process have, so that
// they leave it descriptors for everything else. A nil one bounds nothing.
type Sockets struct {
	most int64
	open atomic.Int64
}

// NewSockets lets most be open at once.
func NewSockets(most int64) *Sockets { return &Sockets{most: most} }

// take takes one; false means that none is left.
func (s *Sockets) take() bool {
	if s != nil && s.open.Add(1) > s.most {
		s.open.Add(-1)
		return false
	}
	return true
}

func (s *Sockets) release() {
	if s != nil {
		s.open.Add(-1)
	}
}

// farConn is a connection to a target, which takes a descriptor.
type farConn struct {
	net.Conn
	free func() // more than once is fine
}

// Close implements net.Conn.
func (c *farConn) Close() error {
	err := c.Conn.Close()
	c.free()
	return err
}

// CloseWrite ends what is sent.
func (c *farConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Reset ends the connection so that the target sees that it broke off.
func (c *farConn) Reset() {
	reset(c.Conn)
	c.free()
}

// rates bound how often and how much. A nil limiter is no bound.
type rates struct {
	requests, bytes *rate.Limiter
}

// minByteBurst lets small answers go at once, whatever the rate.
const minByteBurst = 4 << 10

func ratesOf(l api.EndpointLimits) rates {
	var r rates
	if n := l.RequestsPerSecond; n > 0 {
		r.requests = rate.NewLimiter(rate.Limit(n), max(1, int(math.Ceil(n))))
	}
	if n := l.BytesPerSecond; n > 0 {
		r.bytes = rate.NewLimiter(rate.Limit(n), int(max(minByteBurst, min(n, math.MaxInt32))))
	}
	return r
}

// ask says how long a request has to wait; 0 is that it may go on.
func (r rates) ask() time.Duration {
	if r.requests == nil || r.requests.Allow() {
		return 0
	}
	// What is asked for here is given back: who is refused takes nothing.
	v := r.requests.Reserve()
	defer v.Cancel()
	return max(v.Delay(), time.Millisecond)
}

// piece shortens a buffer to what goes at once, so that a slow rate is even.
func (r rates) piece(b []byte) []byte {
	if r.bytes == nil {
		return b
	}
	return b[:min(len(b), max(512, r.bytes.Burst()/16))]
}

// pay waits for the turn of n bytes.
func (r rates) pay(ctx context.Context, n int) error {
	if r.bytes == nil || n <= 0 {
		return nil
	}
	return r.bytes.WaitN(ctx, n)
}

// retryAfter says in whole seconds when the next request may come.
func retryAfter(h http.Header, d time.Duration) {
	h.Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(d.Seconds())))))
}

// paced notes that n bytes moved, and waits for their turn.
func (x *exchange) paced(n int) error {
	return x.e.paced(x.ctx, x.idle, x.up.spec.Limits.IdleMS, n)
}

// paced waits for the turn of n bytes, which moved: what waits for that is not idle.
func (e *Endpoint) paced(ctx context.Context, idle *time.Timer, idleMS int64, n int) error {
	if e.rates.bytes != nil {
		idle.Stop()
	}
	err := e.rates.pay(ctx, n)
	idle.Reset(ms(idleMS))
	return err
}

// switched is the target's side of a connection that became something else than
// HTTP, such as a WebSocket.
type switched struct {
	io.ReadWriteCloser
	x *exchange
}

// Read implements io.Reader.
func (s *switched) Read(b []byte) (int, error) {
	n, err := s.ReadWriteCloser.Read(s.x.e.rates.piece(b))
	s.x.out.Add(int64(n))
	s.x.e.bytesOut.Add(int64(n))
	if perr := s.x.e.rates.pay(s.x.ctx, n); perr != nil && err == nil {
		err = perr
	}
	return n, err
}

// Write implements io.Writer.
func (s *switched) Write(b []byte) (int, error) {
	done := 0
	for {
		n, err := s.ReadWriteCloser.Write(s.x.e.rates.piece(b[done:]))
		done += n
		s.x.in.Add(int64(n))
		s.x.e.bytesIn.Add(int64(n))
		if err == nil {
			err = s.x.e.rates.pay(s.x.ctx, n)
		}
		if err != nil || done == len(b) {
			return done, err
		}
	}
}
