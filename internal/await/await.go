// Package await notes what a call waits for, so that a deadline that passes can name the
// part that did not answer and for how long.
package await

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Notes are the parts that one call waits for now. They are safe for concurrent use.
type Notes struct {
	mu   sync.Mutex
	open []*note
	// last is what was waited for when the wait ended with its context.
	last *note
}

type note struct {
	part  func() string
	since time.Time
}

type notesKey struct{}

// With returns a context whose waits are noted.
func With(ctx context.Context) (context.Context, *Notes) {
	n := &Notes{}
	return context.WithValue(ctx, notesKey{}, n), n
}

// For notes that the call of ctx waits for a part, such as "the agent", until done is
// called. It does nothing for a context without notes.
func For(ctx context.Context, part string) (done func()) {
	return Of(ctx, func() string { return part })
}

// Of is For with a part whose name is made when it is asked for: it may say what the part
// does at that moment.
func Of(ctx context.Context, part func() string) (done func()) {
	n, ok := ctx.Value(notesKey{}).(*Notes)
	if !ok {
		return func() {}
	}
	w := &note{part, time.Now()}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open = append(n.open, w)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if ctx.Err() != nil {
			n.last = w
		}
		n.open = slices.DeleteFunc(n.open, func(o *note) bool { return o == w })
	}
}

// Last is the part that the call waits for now, or waited for when its context ended, and
// since when; part is empty if none was noted. Of several parts, Last returns the newest.
func (n *Notes) Last() (part string, since time.Time) {
	n.mu.Lock()
	w := n.last
	if len(n.open) > 0 {
		w = n.open[len(n.open)-1]
	}
	n.mu.Unlock()
	if w == nil {
		return "", time.Time{}
	}
	return w.part(), w.since
}
