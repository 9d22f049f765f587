//go:build linux

package native

import (
	"sync"
	"time"

	"github.com/cloche-dev/cloche/internal/engine"
)

// filled has the engines whose spares only Fill makes: it keeps their pools' making set.
var filled sync.Map

// Fill makes all spares of a plan's kind now, and reports whether there is one. From then
// on only Fill makes spares of this engine. Calls for one engine must not overlap.
func (e *Engine) Fill(p engine.Plan) bool {
	k, ok := kindOf(p)
	if !ok {
		return false
	}
	// The pool's own goroutine is waited for: a spare that it has half made is not yet in
	// Pool, and would be missed.
	_, begun := filled.LoadOrStore(e, true)
	for ; !begun; time.Sleep(time.Millisecond) {
		e.pool.mu.Lock()
		begun = !e.pool.making
		e.pool.making = true
		e.pool.mu.Unlock()
	}
	e.pool.mu.Lock()
	e.pool.turn(k)
	e.pool.mu.Unlock()
	for e.pool.one() {
	}
	e.pool.mu.Lock()
	e.pool.making = true
	e.pool.mu.Unlock()
	return len(e.Pool()) > 0
}

// Pool are the processes of those that wait.
func (e *Engine) Pool() (pids []int) {
	e.pool.mu.Lock()
	defer e.pool.mu.Unlock()
	for _, c := range e.pool.ready {
		pids = append(pids, c.child.ID.PID)
	}
	return pids
}
