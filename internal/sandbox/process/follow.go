package process

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// follower reads the output of all processes of a sandbox as it comes, those
// that begin later included.
type follower struct {
	m *Runner
	s *Table
	o api.LogOptions
	// telling lets one reader at a time call fn.
	telling sync.Mutex
	fn      func(api.LogEntry) error

	mu sync.Mutex // guards what follows
	// at is how far each process was read before.
	at map[string]int64
	// known are the processes that were added, and waiting are those without a reader so far.
	known   map[string]bool
	waiting []source
	// ctx is set while readers are started.
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	closed bool
}

func newFollower(m *Runner, s *Table, o api.LogOptions, fn func(api.LogEntry) error) *follower {
	o.Follow, o.Tail, o.Since = true, 0, nil
	return &follower{m: m, s: s, o: o, fn: fn, at: map[string]int64{}, known: map[string]bool{}}
}

// subscribe tells f of every process that begins from now on.
func (t *Table) subscribe(f *follower) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.followers == nil {
		t.followers = map[*follower]struct{}{}
	}
	t.followers[f] = struct{}{}
}

func (t *Table) unsubscribe(f *follower) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.followers, f)
}

// tellFollowers tells those who follow everything of a process that begins.
func (t *Table) tellFollowers(src source) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for f := range t.followers {
		f.add(src)
	}
}

// passed is told of what was read before the following.
func (f *follower) passed(e api.LogEntry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at[e.ExecID] = max(f.at[e.ExecID], own(e, f.o.Stream)+int64(len(e.Data)))
}

// add begins to follow a process, or does so when f runs.
func (f *follower) add(src source) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.known[src.id] {
		return
	}
	f.known[src.id] = true
	if f.ctx == nil {
		f.waiting = append(f.waiting, src)
		return
	}
	f.start(src)
}

// start reads a process. The caller holds f.mu.
func (f *follower) start(src source) {
	ctx := f.ctx
	at := f.at[src.id]
	f.wg.Go(func() {
		err := f.read(ctx, src, at)
		f.mu.Lock()
		delete(f.known, src.id) // a later process can have the same name
		delete(f.at, src.id)
		f.mu.Unlock()
		if err != nil && !errors.Is(err, api.ErrNotFound) {
			f.cancel(err)
		}
	})
}

// read follows one process to its end.
func (f *follower) read(ctx context.Context, src source, at int64) error {
	tell := func(e api.LogEntry) error {
		if e.End != "" {
			return nil // of one process; the others go on
		}
		f.telling.Lock()
		defer f.telling.Unlock()
		if err := context.Cause(ctx); err != nil {
			return err
		}
		return f.fn(e)
	}
	o := f.o
	if src.managed != nil {
		o.Since = &at
		return f.m.processLogs(ctx, src.managed, o, tell)
	}
	return f.m.follow(ctx, f.s, &execReader{o: o, fn: tell, at: at}, src)
}

// run follows until the sandbox has ended, ctx has, or fn fails.
func (f *follower) run(ctx context.Context) error {
	if err := f.begin(ctx); err != nil {
		return err
	}
	defer f.wg.Wait()
	defer f.close()
	select {
	case <-f.ctx.Done():
		return f.why(ctx)
	case <-f.s.sandbox.Ended():
	}
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	late := time.AfterFunc(followEnd, func() { f.cancel(errEnough) })
	defer late.Stop()
	f.wg.Wait()
	if err := context.Cause(f.ctx); err != nil && !errors.Is(err, errEnough) {
		return f.why(ctx)
	}
	reason := f.s.sandbox.Ending().Reason
	return f.fn(api.LogEntry{Time: now(), End: reason})
}

// begin starts the readers of what there is.
func (f *follower) begin(ctx context.Context) error {
	if !f.s.sandbox.Over() && !f.s.sandbox.Info().State.Held() {
		execs, err := f.m.execRecords(ctx, f.s)
		if err != nil {
			return err
		}
		for _, rec := range execs {
			f.mu.Lock()
			more := rec.Running || rec.Position > f.at[rec.ExecID]
			f.mu.Unlock()
			if more {
				f.add(source{id: rec.ExecID})
			}
		}
	}
	for _, p := range f.s.every() {
		if p.shown() {
			f.add(source{id: p.id, managed: p})
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ctx, f.cancel = context.WithCancelCause(ctx)
	for _, src := range f.waiting {
		f.start(src)
	}
	f.waiting = nil
	return nil
}

// close lets no more readers begin and ends those that read.
func (f *follower) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.cancel(errEnough)
}

// why is the error of a following that was cut off.
func (f *follower) why(ctx context.Context) error {
	if ctx.Err() != nil {
		return CanceledCall(ctx.Err())
	}
	return context.Cause(f.ctx)
}
