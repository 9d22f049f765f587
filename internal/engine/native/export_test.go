//go:build linux

package native

import "github.com/cloche-dev/cloche/internal/engine"

// Fill makes all spares of a plan's kind now, and reports whether there is one. From then
// on nobody else makes any.
func (e *Engine) Fill(p engine.Plan) bool {
	k, ok := kindOf(p)
	if !ok {
		return false
	}
	e.pool.mu.Lock()
	e.pool.turn(k)
	e.pool.mu.Unlock()
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
