package agent

import (
	"context"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// shortTime is how long a save waits for the calls in progress that usually end soon.
const shortTime = time.Second

// shortCalls counts the calls in progress that usually end soon: all that wait for no program.
type shortCalls struct {
	mu    sync.Mutex
	count int
	// none is closed when count becomes 0. It is nil if nothing waits for that.
	none chan struct{}
}

// begin counts a call until over is called.
func (s *shortCalls) begin(op wire.Op) (over func()) {
	switch op {
	case wire.OpExec, wire.OpStdin, wire.OpListen, wire.OpTerminate, wire.OpSuspend:
		return func() {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.count--; s.count == 0 && s.none != nil {
			close(s.none)
			s.none = nil
		}
	}
}

// settle waits until no call is in progress, for shortTime at most.
func (s *shortCalls) settle(ctx context.Context) {
	s.mu.Lock()
	if s.count > 0 && s.none == nil {
		s.none = make(chan struct{})
	}
	none := s.none
	s.mu.Unlock()
	if none == nil {
		return
	}
	select {
	case <-none:
	case <-time.After(shortTime):
	case <-ctx.Done():
	}
}
