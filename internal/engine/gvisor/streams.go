//go:build linux

package gvisor

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
)

const (
	// forwardTime bounds how long the sentry may take to connect to the agent. A caller waits as long as its context.
	forwardTime = time.Minute
	// quietTime is how long the sentry gets to end what carried a connection that was closed.
	quietTime = 20 * time.Millisecond
	// busyTime bounds the wait for connections that the sentry is making.
	busyTime = 5 * time.Second
)

// streams are the connections of the host to an agent. While one is open or being made, a part of the sentry waits for it in a
// way that gVisor cannot save, and while one is being made the sentry saves nothing at all: it holds a lock. The zero value is
// ready to use, and safe for concurrent use.
type streams struct {
	mu     sync.Mutex
	shut   bool
	making int
	idle   chan struct{} // closed when making becomes 0; nil without a waiter
	open   map[*held]bool
}

// held is a connection that the sentry carries, which may keep what arrives until more
// does.
type held struct {
	net.Conn
	of *streams
}

// HoldsBack says so to who uses it.
func (*held) HoldsBack() {}

// Close closes the connection.
func (h *held) Close() error {
	h.of.mu.Lock()
	delete(h.of.open, h)
	h.of.mu.Unlock()
	return h.Conn.Close()
}

// begin reports whether a connection can be made. Then end is called when it is made, or not.
func (s *streams) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return false
	}
	s.making++
	return true
}

func (s *streams) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.making--; s.making == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// add takes in a connection that was made. It closes one that came too late.
func (s *streams) add(conn net.Conn) *held {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &held{conn, s}
	if s.shut {
		_ = conn.Close()
		return h
	}
	if s.open == nil {
		s.open = map[*held]bool{}
	}
	s.open[h] = true
	return h
}

// close closes every connection, and lets none be made until reopen. It returns when the sentry carries none.
func (s *streams) close(ctx context.Context) error {
	s.mu.Lock()
	s.shut = true
	for h := range s.open {
		_ = h.Conn.Close()
	}
	s.open = nil
	var idle chan struct{}
	if s.making > 0 {
		if s.idle == nil {
			s.idle = make(chan struct{})
		}
		idle = s.idle
	}
	s.mu.Unlock()
	if idle != nil {
		select {
		case <-idle:
		case <-time.After(busyTime):
			e := api.Errorf(api.CodeUnavailable, "the sandbox is busy: a connection to its agent is not made yet")
			e.Retryable = true
			return e.WithHint("try again")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case <-time.After(quietTime):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reopen lets connections be made again.
func (s *streams) reopen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut = false
}
