//go:build linux

package process

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

const (
	// MaxRepeats is how many results of repeatable execs are kept, and
	// maxRepeatBytes how much output they hold together.
	MaxRepeats     = 64
	maxRepeatBytes = 16 << 20
	// briefTime is how long a result of a brief exec is kept that was sent while its connection was being closed.
	briefTime = 10 * time.Second
)

// repeats are the repeatable execs that run, and the results of the last ones.
type repeats struct {
	mu    sync.Mutex
	byID  map[string]*repeat
	ended []*repeat // oldest first
	bytes int
}

// repeat is one repeatable exec.
type repeat struct {
	id, key string
	// begun is closed when proc or err is set, done when result is too.
	begun, done chan struct{}
	proc        *process
	err         error
	result      api.Result
}

func newRepeats() *repeats { return &repeats{byID: map[string]*repeat{}} }

// enter returns the exec of that id, and whether it is the caller's to run.
func (rs *repeats) enter(x *wire.Exec) (r *repeat, first bool, err error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r := rs.byID[x.ID]; r != nil {
		if r.key != x.Key {
			return nil, false, errExists(x.ID).WithHint("the request that had this id before was another one")
		}
		return r, false, nil
	}
	r = &repeat{id: x.ID, key: x.Key, begun: make(chan struct{}), done: make(chan struct{})}
	rs.byID[x.ID] = r
	return r, true, nil
}

// drop forgets an exec that was not executed.
func (rs *repeats) drop(r *repeat) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.byID, r.id)
}

// file keeps a result, and forgets the oldest where there are too many.
func (rs *repeats) file(r *repeat) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.ended = append(rs.ended, r)
	rs.bytes += r.size()
	for len(rs.ended) > MaxRepeats || rs.bytes > maxRepeatBytes {
		old := rs.ended[0]
		rs.ended = slices.Delete(rs.ended, 0, 1)
		rs.bytes -= old.size()
		delete(rs.byID, old.id)
	}
}

func (r *repeat) size() int { return len(r.result.Stdout) + len(r.result.Stderr) }

// forget drops the result of a process that is removed: its id is free again.
func (rs *repeats) forget(id string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	i := slices.IndexFunc(rs.ended, func(r *repeat) bool { return r.id == id })
	if i >= 0 {
		rs.bytes -= rs.ended[i].size()
		delete(rs.byID, id)
		rs.ended = slices.Delete(rs.ended, i, i+1)
	}
}

// repeatable carries out an exec that may be an earlier request, sent again. Each caller sends the
// input from its beginning, so that the next caller completes input that an earlier one could not.
func (ps *Manager) repeatable(p *session.Call, x *wire.Exec) error {
	r, first, err := ps.repeats.enter(x)
	if err != nil {
		return err
	}
	if first {
		ps.runRepeat(r, x)
	}
	<-r.begun
	if r.err != nil {
		return r.err
	}
	if x.Input {
		ps.wg.Go(func() { ps.control(p, r.proc, nil, 0) })
	}
	<-r.done
	err = sendResult(p, r.result)
	switch {
	case err != nil || !x.Brief:
	case p.Session.Holds == ps.Holds():
		ps.repeats.forget(x.ID) // the connection is closed only after the caller has read all that was sent on it before
	default:
		time.AfterFunc(briefTime, func() { ps.repeats.forget(x.ID) })
	}
	return err
}

// runRepeat starts r, and files its result when it has ended.
func (ps *Manager) runRepeat(r *repeat, x *wire.Exec) {
	defer close(r.begun)
	if r.proc, r.err = ps.start(x, nil); r.err != nil {
		ps.repeats.drop(r)
		return
	}
	if !x.Input {
		_, _ = r.proc.input.close(context.Background())
	}
	ps.wg.Go(func() {
		<-r.proc.done
		r.result = r.proc.result()
		r.proc.forgetCollected()
		ps.repeats.file(r)
		close(r.done)
	})
}
