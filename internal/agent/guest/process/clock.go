//go:build linux

package process

import (
	"sync"
	"time"
)

// clock makes timers that do not run while it is held: those of timeouts,
// back-offs and readiness, which must not count the time of a pause.
type clock struct {
	mu     sync.Mutex
	held   bool
	timers map[*pausableTimer]struct{}
}

// pausableTimer closes C when its time has come.
type pausableTimer struct {
	C     chan struct{}
	clock *clock
	t     *time.Timer // nil while held
	due   time.Time
	left  time.Duration // while held
}

func newClock() *clock { return &clock{timers: map[*pausableTimer]struct{}{}} }

// timer makes a timer, which must be stopped.
func (c *clock) timer(d time.Duration) *pausableTimer {
	h := &pausableTimer{C: make(chan struct{}), clock: c, left: d}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timers[h] = struct{}{}
	if !c.held {
		h.armLocked()
	}
	return h
}

func (h *pausableTimer) armLocked() {
	h.due = time.Now().Add(h.left)
	h.t = time.AfterFunc(h.left, h.fire)
}

func (h *pausableTimer) fire() {
	h.clock.mu.Lock()
	defer h.clock.mu.Unlock()
	if _, ok := h.clock.timers[h]; ok && h.t != nil && !time.Now().Before(h.due) {
		delete(h.clock.timers, h)
		close(h.C)
	}
}

func (h *pausableTimer) stop() {
	h.clock.mu.Lock()
	defer h.clock.mu.Unlock()
	delete(h.clock.timers, h)
	if h.t != nil {
		h.t.Stop()
	}
}

// hold stops every timer, or lets it go on with the time that it had left.
func (c *clock) hold(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if on == c.held {
		return
	}
	c.held = on
	for h := range c.timers {
		if on {
			h.t.Stop()
			h.left, h.t = max(time.Until(h.due), 0), nil
		} else {
			h.armLocked()
		}
	}
}

// wait waits for d; false says that quit was closed first.
func (c *clock) wait(d time.Duration, quit <-chan struct{}) bool {
	t := c.timer(d)
	defer t.stop()
	select {
	case <-t.C:
		return true
	case <-quit:
		return false
	}
}
