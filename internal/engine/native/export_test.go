//go:build linux

package native

import (
	"time"

	"github.com/cloche-dev/cloche/internal/engine"
)

// Fill makes all spares of a plan's kind now, and reports whether there is one. From then
// on nobody else makes any.
func (e *Engine) Fill(p engine.Plan) bool {
	k, ok := kindOf(p)
	if !ok {
		return false
	}
	// Whoever makes some already is waited for: one that is half made is no spare yet, and
	// nobody would know of it.
	for begun := false; !begun; time.Sleep(time.Millisecond) {
		e.pool.mu.Lock()
		if begun = !e.pool.making; begun {
			e.pool.making = true
			e.pool.turn(k)
		}
		e.pool.mu.Unlock()
	}
	for e.pool.one() {
	}
	e.pool.mu.Lock()
	e.pool.making = true
	e.pool.mu.Unlock()
	return len(e.Spares()) > 0
}

// Spares are the processes of those that wait.
func (e *Engine) Spares() (pids []int) {
	e.pool.mu.Lock()
	defer e.pool.mu.Unlock()
	for _, c := range e.pool.ready {
		pids = append(pids, c.child.ID.PID)
	}
	return pids
}
