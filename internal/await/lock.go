package await

import (
	"context"
	"sync"
)

// Lock is a lock that a call waits for until its context ends. Its zero value is free.
type Lock struct {
	once sync.Once
	held chan struct{}
}

// Lock takes the lock, or returns the error of ctx.
func (l *Lock) Lock(ctx context.Context) error {
	l.once.Do(func() { l.held = make(chan struct{}, 1) })
	select {
	case l.held <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unlock frees the lock. The caller holds it.
func (l *Lock) Unlock() { <-l.held }
