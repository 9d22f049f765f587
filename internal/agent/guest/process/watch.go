//go:build linux

package process

import (
	"sync"
	"time"

	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// quietTime is how often watchers are told of what changes all the time.
const quietTime = 250 * time.Millisecond

// feed tells watchers which managed processes have changed.
type feed struct {
	mu   sync.Mutex
	rev  uint64
	turn chan struct{} // closed at the next change
	// watchers are counted: without one, output changes nothing here.
	watchers int
	armed    bool
	// all returns every process on record.
	all func() []*process
}

func newFeed(all func() []*process) *feed { return &feed{turn: make(chan struct{}), all: all} }

// changed says that p has changed. It is called without p.mu.
func (f *feed) changed(p *process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changedLocked(p)
}

func (f *feed) changedLocked(ps ...*process) {
	if len(ps) == 0 {
		return
	}
	f.rev++
	for _, p := range ps {
		p.rev = f.rev
	}
	close(f.turn)
	f.turn = make(chan struct{})
}

// soon says that p has changed in what may wait.
func (f *feed) soon(p *process) {
	if !p.quiet.CompareAndSwap(false, true) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armLocked()
}

func (f *feed) armLocked() {
	if f.watchers > 0 && !f.armed {
		f.armed = true
		time.AfterFunc(quietTime, f.flush)
	}
}

// flush tells of all that may wait.
func (f *feed) flush() {
	var some []*process
	for _, p := range f.all() {
		if p.quiet.Swap(false) {
			some = append(some, p)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = false
	f.changedLocked(some...)
	for _, p := range some {
		if p.quiet.Load() { // again already, when the timer was armed still
			f.armLocked()
		}
	}
}

// since returns what has changed after rev, in order of start, and a channel that
// is closed at the next change.
func (f *feed) since(rev uint64) (some []*process, now uint64, turn <-chan struct{}) {
	f.mu.Lock()
	now, turn = f.rev, f.turn
	f.mu.Unlock()
	all := f.all() // after: who comes meanwhile is told of at the next turn
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range all {
		if p.managed != nil && p.rev > rev {
			some = append(some, p)
		}
	}
	return some, now, turn
}

func (f *feed) join() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers++
	f.armLocked()
}

func (f *feed) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers--
}

// Watch sends the record of each managed process, and again when it changes.
func (ps *Manager) Watch(p *session.Call) error {
	gone := p.Attend(nil)
	f := ps.feed
	f.join()
	defer f.leave()
	for rev := uint64(0); ; {
		some, now, turn := f.since(rev)
		for _, proc := range some {
			if err := p.JSON(wire.KindProcess, proc.record()); err != nil {
				return nil // the caller is gone
			}
		}
		rev = now
		select {
		case <-turn:
		case <-gone.Done():
			return nil
		}
	}
}
