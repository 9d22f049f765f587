//go:build linux

package native

import (
	"context"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/internal/engine"
)

// refillPause is how long a new sandbox has the machine for itself before a spare is
// made for the one after it.
const refillPause = 20 * time.Millisecond

// pool keeps some agents ready, all of the kind of the last sandbox that was created. It makes none
// before the first sandbox. It is safe for concurrent use.
type pool struct {
	e      *Engine
	want   int
	ctx    context.Context // ends with the pool
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	kind   kind
	ready  []*creation // the oldest first
	names  map[string]bool
	making bool
	closed bool
}

func newPool(e *Engine, want int) *pool {
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // ends with close
	return &pool{e: e, want: want, ctx: ctx, cancel: cancel, names: map[string]bool{}}
}

// take returns an agent that is alive and of the plan's kind, or nil. It belongs to the caller, which
// says when it is used up.
func (s *pool) take(p engine.Plan) *creation {
	if s.want == 0 || len(p.Agent.Config) > maxTold {
		return nil
	}
	k, ok := kindOf(p)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.kind != k {
		return nil
	}
	for len(s.ready) > 0 {
		c := s.ready[0]
		s.ready = s.ready[1:]
		if !c.child.Dead() {
			return c
		}
		s.wg.Go(func() { s.drop(c) })
	}
	return nil
}

// drop ends an unused agent.
func (s *pool) drop(c *creation) {
	c.rollback()
	s.forget(c.rec.ID)
}

// forget says that a spare is an instance now, or gone.
func (s *pool) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, id)
}

// holds reports whether there is a spare of that name, or one on its way.
func (s *pool) holds(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[name]
}

// fill makes spares of a plan's kind after a pause until there are enough. It does not
// wait.
func (s *pool) fill(p engine.Plan) {
	if s.want == 0 {
		return
	}
	k, ok := kindOf(p)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.turn(k)
	if s.making || len(s.ready) >= s.want {
		return
	}
	s.making = true
	s.wg.Go(func() {
		pause := time.NewTimer(refillPause)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-s.ctx.Done():
		}
		for s.one() {
		}
	})
}

// turn has the spares be of a kind from now on. The caller holds mu.
func (s *pool) turn(k kind) {
	if s.kind == k {
		return
	}
	for _, c := range s.ready {
		s.wg.Go(func() { s.drop(c) })
	}
	s.kind, s.ready = k, nil
}

// one makes a spare, if one is missing.
func (s *pool) one() bool {
	s.mu.Lock()
	s.clearDead()
	if s.closed || len(s.ready) >= s.want {
		s.making = false
		s.mu.Unlock()
		return false
	}
	k, name := s.kind, warmName()
	s.names[name] = true
	s.mu.Unlock()
	c, err := s.e.newWarm(s.ctx, k, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		// Who creates a sandbox next meets the same, and is told.
		delete(s.names, name)
		s.making = false
		return false
	}
	if s.closed || s.kind != k {
		s.wg.Go(func() { s.drop(c) })
		return true
	}
	s.ready = append(s.ready, c)
	return true
}

// clearDead drops the spares that have died. The caller holds mu.
func (s *pool) clearDead() {
	alive := s.ready[:0:0]
	for _, c := range s.ready {
		if c.child.Dead() {
			s.wg.Go(func() { s.drop(c) })
			continue
		}
		alive = append(alive, c)
	}
	s.ready = alive
}

// close ends all spares and waits for them. It may be called more than once.
func (s *pool) close() {
	s.mu.Lock()
	s.closed = true
	left := s.ready
	s.ready = nil
	s.mu.Unlock()
	s.cancel()
	for _, c := range left {
		s.drop(c)
	}
	s.wg.Wait()
}
