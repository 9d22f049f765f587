package e2bapi

import (
	"context"
	"sync"
)

// forwards are the requests that are being forwarded to ports of sandboxes. The zero value is ready, and
// it is safe for concurrent use.
type forwards struct {
	mu   sync.Mutex
	next int
	live map[string]map[int]context.CancelFunc // by core's ID
}

// begin registers a request. Its context ends when the sandbox's connections are cut. The caller calls
// end.
func (f *forwards) begin(ctx context.Context, ref string) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.live == nil {
		f.live = map[string]map[int]context.CancelFunc{}
	}
	if f.live[ref] == nil {
		f.live[ref] = map[int]context.CancelFunc{}
	}
	n := f.next
	f.next++
	f.live[ref][n] = cancel
	return ctx, func() {
		cancel()
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.live[ref], n)
		if len(f.live[ref]) == 0 {
			delete(f.live, ref)
		}
	}
}

// cut ends the requests to ports of a sandbox.
func (f *forwards) cut(ref string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, cancel := range f.live[ref] {
		cancel()
	}
}

// cut breaks every connection to a sandbox off.
func (s *Server) cut(ref string) {
	s.data.Cut(ref)
	s.forward.cut(ref)
}
