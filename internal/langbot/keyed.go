package langbot

import (
	"context"
	"sync"
)

// keyed is a lock for each name. The zero value is ready.
type keyed struct {
	mu   sync.Mutex
	held map[string]*slot
}

type slot struct {
	users int
	free  chan struct{}
}

// lock waits for the name, or for the end of ctx.
func (k *keyed) lock(ctx context.Context, name string) (unlock func(), err error) {
	k.mu.Lock()
	sl := k.slot(name)
	k.mu.Unlock()
	select {
	case <-sl.free:
		return func() { k.unlock(name, sl) }, nil
	case <-ctx.Done():
		k.leave(name, sl)
		return nil, context.Cause(ctx)
	}
}

// try is lock if no caller has the name or waits for it.
func (k *keyed) try(name string) (unlock func(), ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[name] != nil {
		return nil, false
	}
	sl := k.slot(name)
	<-sl.free
	return func() { k.unlock(name, sl) }, true
}

// slot is the name's, with one more user; for who holds mu.
func (k *keyed) slot(name string) *slot {
	if k.held == nil {
		k.held = map[string]*slot{}
	}
	sl := k.held[name]
	if sl == nil {
		sl = &slot{free: make(chan struct{}, 1)}
		sl.free <- struct{}{}
		k.held[name] = sl
	}
	sl.users++
	return sl
}

func (k *keyed) unlock(name string, sl *slot) {
	sl.free <- struct{}{}
	k.leave(name, sl)
}

func (k *keyed) leave(name string, sl *slot) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if sl.users--; sl.users == 0 {
		delete(k.held, name)
	}
}
