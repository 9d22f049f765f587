// Package pool keeps what engines start ahead of requests: members, each of one kind. A request
// takes a member of its kind, or gets none and starts cold. A member knows no request, and none
// comes back.
//
// A pool follows demand. A kind that is asked for gets one member; a request that finds none, or
// takes the last one, makes its kind want more, up to a ceiling; members that lie unused make it
// want fewer, down to a floor. All members together stay within a budget of memory, which the users
// of a pool share: a user with many members gives way to one with few, and one who takes member
// after member leaves the last one of a kind to others.
package pool

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// Member is what a pool keeps. Its methods are safe for concurrent use.
type Member interface {
	// Done is closed when it has ended by itself or cannot be used any more.
	Done() <-chan struct{}
	// Usable reports whether it can be given to a request. One that is about to end is not, although
	// Done may not be closed yet.
	Usable() bool
	// Discard ends it and frees what it has. It waits until that is done, and is called at most
	// once, and never for a member that was taken.
	Discard()
	// Memory is how much memory it has, in bytes.
	Memory() int64
}

// Size bounds how many members of a kind a pool keeps. Without a ceiling it keeps none.
type Size struct {
	// Floor is kept for a day after the last request, Ceiling is never exceeded.
	Floor, Ceiling int
}

// Demand is what a pool is told by a request.
type Demand[M Member] struct {
	// User shares the pool with others.
	User string
	Size Size
	// Make makes a member with a name. The next request meets the same error, and tells
	// its caller.
	Make func(ctx context.Context, name string) (M, error)
}

// Options say what a pool keeps.
type Options[K comparable] struct {
	// Prefix begins the names of members.
	Prefix string
	// Pause is how long a request has the machine for itself before members are made.
	Pause time.Duration
	// Timeout bounds how long one member takes to be made.
	Timeout time.Duration
	// Budget is how much memory all members have at most, in bytes; 0 is unlimited.
	Budget int64
	// Valid reports whether members of a kind are still of use; nil is always.
	Valid func(K) bool
	Log   *slog.Logger
}

const (
	// window is how long members must lie unused before their kind wants fewer.
	window = 30 * time.Second
	// keepFor is how long a kind is known that is not asked for, and floorFor one with a floor.
	keepFor  = 10 * time.Minute
	floorFor = 24 * time.Hour
	// recently is how long a user counts as one that shares a kind.
	recently = time.Minute
	// maxFailures is how often members are tried again that could not be made, between two requests.
	maxFailures = 3
	// maxKinds bounds how many kinds are known.
	maxKinds = 64
)

// Counts say what a pool did since it was made, and what it has.
type Counts struct {
	// Taken requests got a member, Missed ones found none of their kind.
	Taken, Missed int64
	// Made, Failed and Dropped count members: Failed could not be made, Dropped were never taken.
	Made, Failed, Dropped int64
	// Ready members wait, and have Memory bytes.
	Ready  int
	Memory int64
}

// Pool keeps members. It is safe for concurrent use.
type Pool[K comparable, M Member] struct {
	opts   Options[K]
	ctx    context.Context // ends with the pool
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	kinds  map[K]*kind[M]
	names  map[string]bool // of members, and of those on their way and just taken
	making bool
	ticks  bool
	closed bool
	counts Counts
}

// kind is what a pool knows of one kind.
type kind[M Member] struct {
	demand Demand[M]
	ready  []*kept[M] // the oldest first
	want   int
	// low is the smallest number of ready members since the last tick.
	low  int
	used time.Time // when it was last asked for
	// users are when each asked last; last asked most recently, streak times in turn.
	users  map[string]time.Time
	last   string
	streak int
	// failed is set when no member could be made, and failures is how often that was since the last request, which clears
	// both. The ticks in between clear failed a few times.
	failed   bool
	failures int
}

// kept is a ready member.
type kept[M Member] struct {
	name   string
	member M
	memory int64
	user   string
	left   chan struct{} // closed when it has left the pool
}

// New makes a pool, which makes no member before it is asked for one.
func New[K comparable, M Member](o Options[K]) *Pool[K, M] {
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // ends with Close
	return &Pool[K, M]{opts: o, ctx: ctx, cancel: cancel, kinds: map[K]*kind[M]{}, names: map[string]bool{}}
}

// Take returns a member of a kind and its name; ok is false without one for this user. The
// member belongs to the caller, who calls Forget when its name is of no more use.
func (p *Pool[K, M]) Take(k K, user string) (m M, name string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return m, "", false
	}
	of := p.kinds[k]
	if of == nil {
		p.counts.Missed++
		return m, "", false
	}
	now := time.Now()
	of.asked(user, now)
	for len(of.ready) > 0 && !of.reserved(user, now) {
		one := of.ready[0]
		of.ready = of.ready[1:]
		of.low = min(of.low, len(of.ready))
		close(one.left)
		if !one.member.Usable() {
			p.drop(one)
			continue
		}
		if len(of.ready) == 0 {
			of.want = min(of.want+1, of.demand.Size.Ceiling)
		}
		p.counts.Taken++
		return one.member, one.name, true
	}
	p.counts.Missed++
	of.want = min(max(2*of.want, 1), of.demand.Size.Ceiling)
	return m, "", false
}

// asked notes that a user asks for the kind.
func (of *kind[M]) asked(user string, now time.Time) {
	of.used, of.failed, of.failures = now, false, 0
	if of.last != user {
		of.last, of.streak = user, 0
	}
	of.streak++
	of.users[user] = now
	for u, at := range of.users {
		if now.Sub(at) > recently {
			delete(of.users, u)
		}
	}
}

// Want tells of a request for a kind, and has members made after a pause. It does not wait.
func (p *Pool[K, M]) Want(k K, d Demand[M]) { p.want(k, d, p.opts.Pause) }

// Prepare is Want without a pause, for a request that has not come yet.
func (p *Pool[K, M]) Prepare(k K, d Demand[M]) { p.want(k, d, 0) }

func (p *Pool[K, M]) want(k K, d Demand[M], pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || d.Size.Ceiling <= 0 {
		return
	}
	of := p.kinds[k]
	if of == nil {
		if len(p.kinds) >= maxKinds {
			p.forgetOldest()
		}
		of = &kind[M]{users: map[string]time.Time{}}
		of.asked(d.User, time.Now())
		p.kinds[k] = of
	}
	of.demand = d
	of.want = min(max(of.want, d.Size.Floor, 1), d.Size.Ceiling)
	p.tick()
	p.fill(pause)
}

// fill makes the members that are missing, one after the other, after a pause. The caller holds mu.
func (p *Pool[K, M]) fill(pause time.Duration) {
	if p.making || p.closed {
		return
	}
	p.making = true
	p.wg.Go(func() {
		wait := time.NewTimer(pause)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-p.ctx.Done():
		}
		for p.one() {
		}
	})
}

// one makes one member, if one is missing.
func (p *Pool[K, M]) one() bool {
	p.mu.Lock()
	k, of, ok := p.missing()
	if !ok || p.closed {
		p.making = false
		p.mu.Unlock()
		return false
	}
	d, name := of.demand, api.NewID(p.opts.Prefix)
	p.names[name] = true
	p.mu.Unlock()

	ctx, cancel := context.WithTimeout(p.ctx, p.opts.Timeout)
	m, err := d.Make(ctx, name)
	cancel()

	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		delete(p.names, name)
		of.failed = true
		of.failures++
		p.counts.Failed++
		if !errors.Is(err, context.Canceled) {
			p.opts.Log.Debug("no member of the pool could be made", "name", name, "error", err)
		}
		return true
	}
	p.counts.Made++
	one := &kept[M]{name: name, member: m, memory: m.Memory(), user: d.User, left: make(chan struct{})}
	if p.closed || p.kinds[k] != of || len(of.ready) >= of.want {
		close(one.left)
		p.drop(one)
		return true
	}
	of.ready = append(of.ready, one)
	p.wg.Go(func() { p.watch(k, one) })
	return true
}

// dropOne drops the oldest ready member of a kind. The caller holds mu.
func (p *Pool[K, M]) dropOne(of *kind[M]) {
	one := of.ready[0]
	of.ready = of.ready[1:]
	close(one.left)
	p.drop(one)
}

// drop ends a member that has left the pool. The caller holds mu.
func (p *Pool[K, M]) drop(one *kept[M]) {
	p.counts.Dropped++
	p.wg.Go(func() {
		one.member.Discard()
		p.Forget(one.name)
	})
}

// watch drops a ready member that ends by itself.
func (p *Pool[K, M]) watch(k K, one *kept[M]) {
	select {
	case <-one.left:
		return
	case <-one.member.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.kinds[k]
	if of == nil {
		return
	}
	for i, c := range of.ready {
		if c == one {
			of.ready = append(of.ready[:i:i], of.ready[i+1:]...)
			of.low = min(of.low, len(of.ready))
			close(one.left)
			p.drop(one)
			p.fill(p.opts.Pause)
			return
		}
	}
}

// Forget says that a name is of no more use.
func (p *Pool[K, M]) Forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.names, name)
}

// Holds reports whether a name is used: by a member, by one on its way, or by one that was taken and
// is not forgotten.
func (p *Pool[K, M]) Holds(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.names[name]
}

// Counts says what the pool did and has.
func (p *Pool[K, M]) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.counts
	for _, of := range p.kinds {
		for _, one := range of.ready {
			c.Ready++
			c.Memory += one.memory
		}
	}
	return c
}

// Close ends all members and waits for them. It may be called more than once.
func (p *Pool[K, M]) Close() {
	p.mu.Lock()
	p.closed = true
	p.cancel()
	for k, of := range p.kinds {
		for len(of.ready) > 0 {
			p.dropOne(of)
		}
		delete(p.kinds, k)
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// Ready returns how many members of a kind wait.
func (p *Pool[K, M]) Ready(k K) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of := p.kinds[k]; of != nil {
		return len(of.ready)
	}
	return 0
}

// Report adds the requests that asked for what a member has to start with.
func (c Counts) Report(unfit int64) api.PoolCounts {
	return api.PoolCounts{
		Ready: c.Ready, MemoryBytes: c.Memory, Taken: c.Taken, Missed: c.Missed, Unfit: unfit, Made: c.Made, Failed: c.Failed, Dropped: c.Dropped,
	}
}
