package pool_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/internal/engine/pool"
)

const (
	pause  = 100 * time.Millisecond
	takes  = 50 * time.Millisecond // to make a member
	memory = 10
)

// factory makes members and knows how many live.
type factory struct {
	mu   sync.Mutex
	live map[string]*member
	fail bool
}

type member struct {
	f       *factory
	name    string
	kind    string
	done    chan struct{}
	dropped bool
}

func (m *member) Done() <-chan struct{} { return m.done }
func (m *member) Usable() bool {
	select {
	case <-m.done:
		return false
	default:
		return true
	}
}
func (m *member) Memory() int64 { return memory }

func (m *member) Discard() {
	time.Sleep(10 * time.Millisecond)
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	if m.dropped {
		panic("a member was discarded twice")
	}
	m.dropped = true
	delete(m.f.live, m.name)
}

func (f *factory) demand(kind, user string, size pool.Size) pool.Demand[*member] {
	return pool.Demand[*member]{User: user, Size: size, Make: func(ctx context.Context, name string) (*member, error) {
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.fail {
			return nil, errors.New("no memory")
		}
		m := &member{f: f, name: name, kind: kind, done: make(chan struct{})}
		f.live[name] = m
		return m, nil
	}}
}

func (f *factory) count(kind string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.live {
		if m.kind == kind {
			n++
		}
	}
	return n
}

// all are the members that live.
func (f *factory) all() (all []*member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.live))
}

func (f *factory) failing(fail bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

func newPool(t *testing.T, o pool.Options[string]) (*pool.Pool[string, *member], *factory) {
	o.Prefix, o.Pause, o.Timeout, o.Log = "m-", pause, time.Second, slog.New(slog.DiscardHandler)
	p := pool.New[string, *member](o)
	t.Cleanup(p.Close)
	return p, &factory{live: map[string]*member{}}
}

// use is a request: it takes a member, which ends, or starts cold, and tells the pool.
func use(p *pool.Pool[string, *member], f *factory, kind, user string, size pool.Size) bool {
	m, name, ok := p.Take(kind, user)
	if ok {
		if m.kind != kind {
			panic("a member of another kind")
		}
		if !p.Holds(name) {
			panic("the name of a member that was taken is not held")
		}
		m.Discard()
		p.Forget(name)
	}
	p.Want(kind, f.demand(kind, user, size))
	return ok
}

// TestDemand: the first request makes one member, a burst makes more up to the ceiling, and members that lie
// unused go, down to the floor.
func TestDemand(t *testing.T) {
	for name, tc := range map[string]struct {
		size         pool.Size
		one, many    int
		later, gone  int
		burst, again int
	}{
		"no ceiling":        {size: pool.Size{}, burst: 8, again: 3},
		"one":               {size: pool.Size{Ceiling: 1}, one: 1, many: 1, later: 1, burst: 8, again: 3},
		"ceiling":           {size: pool.Size{Ceiling: 4}, one: 1, many: 4, later: 1, burst: 8, again: 3},
		"floor":             {size: pool.Size{Floor: 2, Ceiling: 4}, one: 2, many: 4, later: 2, gone: 2, burst: 8, again: 3},
		"floor is the roof": {size: pool.Size{Floor: 3, Ceiling: 3}, one: 3, many: 3, later: 3, gone: 3, burst: 8, again: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, f := newPool(t, pool.Options[string]{})
				if use(p, f, "a", "u", tc.size) {
					t.Error("a member before any was asked for")
				}
				time.Sleep(time.Second)
				if n := f.count("a"); n != tc.one {
					t.Errorf("%d members after one request, want %d", n, tc.one)
				}
				for range tc.again {
					for range tc.burst {
						use(p, f, "a", "u", tc.size)
					}
					time.Sleep(2 * time.Second)
				}
				if n := f.count("a"); n != tc.many {
					t.Errorf("%d members after bursts, want %d", n, tc.many)
				}
				time.Sleep(5 * time.Minute)
				if n := f.count("a"); n != tc.later {
					t.Errorf("%d members after a pause, want %d", n, tc.later)
				}
				time.Sleep(10 * time.Minute)
				if n := f.count("a"); n != tc.gone {
					t.Errorf("%d members after a long pause, want %d", n, tc.gone)
				}
				time.Sleep(24 * time.Hour)
				if n := f.count("a"); n != 0 {
					t.Errorf("%d members after a day", n)
				}
				use(p, f, "a", "u", tc.size)
				time.Sleep(time.Second)
				p.Close()
				if n := f.count("a"); n != 0 {
					t.Errorf("%d members after the end", n)
				}
				if p.Want("a", f.demand("a", "u", tc.size)); use(p, f, "a", "u", tc.size) {
					t.Error("a closed pool has a member")
				}
			})
		})
	}
}

// TestPause: a request has the machine for itself for a while, unless it has not come yet.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := newPool(t, pool.Options[string]{})
		p.Want("a", f.demand("a", "u", pool.Size{Ceiling: 1}))
		time.Sleep(pause + takes - time.Millisecond)
		if f.count("a") != 0 {
			t.Error("there was no pause")
		}
		time.Sleep(2 * time.Millisecond)
		if f.count("a") != 1 {
			t.Error("no member after the pause")
		}
		p.Prepare("b", f.demand("b", "u", pool.Size{Ceiling: 1}))
		time.Sleep(takes + time.Millisecond)
		if f.count("b") != 1 {
			t.Error("a pause before a request that has not come")
		}
	})
}

// TestBudget: all members together stay within the budget; a kind that was not asked for recently gives way, and so does
// a user with many members.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := newPool(t, pool.Options[string]{Budget: 4*memory + memory/2})
		size := pool.Size{Floor: 8, Ceiling: 8}
		use(p, f, "a", "greedy", size)
		time.Sleep(2 * time.Second)
		if n := f.count("a"); n != 4 {
			t.Fatalf("%d members, and the budget is for 4", n)
		}
		use(p, f, "b", "modest", pool.Size{Ceiling: 1})
		time.Sleep(2 * time.Second)
		if a, b := f.count("a"), f.count("b"); a != 3 || b != 1 {
			t.Errorf("%d and %d members of the greedy and the modest user", a, b)
		}
		use(p, f, "a", "greedy", size)
		time.Sleep(2 * time.Second)
		if b := f.count("b"); b != 1 {
			t.Errorf("the greedy user took the member of the modest one")
		}
		if c := p.Counts(); c.Ready != 4 || c.Memory != 4*memory {
			t.Errorf("%+v", c)
		}
		time.Sleep(2 * time.Minute)
		use(p, f, "c", "greedy", pool.Size{Ceiling: 1})
		time.Sleep(2 * time.Second)
		if n := f.count("c"); n != 1 {
			t.Errorf("members of kinds that are not asked for did not give way")
		}
	})
}

// TestShared: a user who takes one member after the other leaves the last one to others who share the kind.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := newPool(t, pool.Options[string]{})
		size := pool.Size{Ceiling: 2}
		use(p, f, "a", "modest", size)
		time.Sleep(time.Second)
		for range 50 {
			use(p, f, "a", "greedy", size)
			time.Sleep(takes)
		}
		time.Sleep(time.Second)
		for range 5 {
			use(p, f, "a", "greedy", size)
		}
		if !use(p, f, "a", "modest", size) {
			t.Error("a user who took all members left none to another")
		}
		// Alone, it gets all.
		time.Sleep(2 * time.Minute)
		use(p, f, "a", "greedy", size)
		time.Sleep(time.Second)
		got := 0
		for range 2 {
			if use(p, f, "a", "greedy", size) {
				got++
			}
		}
		if got == 0 {
			t.Error("a user who is alone got nothing")
		}
	})
}

// TestDead: a member that ends by itself is dropped and replaced, and is given to no request.
func TestDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, f := newPool(t, pool.Options[string]{})
		size := pool.Size{Ceiling: 1}
		use(p, f, "a", "u", size)
		time.Sleep(time.Second)
		first := f.all()[0]
		close(first.done)
		time.Sleep(time.Second)
		if all := f.all(); len(all) != 1 || all[0] == first {
			t.Errorf("%d members", len(all))
		}
		for _, m := range f.all() {
			close(m.done) // and at once:
		}
		if _, _, ok := p.Take("a", "u"); ok {
			t.Error("a request got a member that has ended")
		}
	})
}

// TestUseless: members of a kind that is not valid any more go. What could not be made is tried again, but not endlessly
// without a request.
func TestUseless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		valid := true
		var mu sync.Mutex
		p, f := newPool(t, pool.Options[string]{Valid: func(string) bool {
			mu.Lock()
			defer mu.Unlock()
			return valid
		}})
		size := pool.Size{Floor: 1, Ceiling: 1}
		use(p, f, "a", "u", size)
		time.Sleep(time.Second)
		mu.Lock()
		valid = false
		mu.Unlock()
		time.Sleep(time.Minute)
		if n := f.count("a"); n != 0 {
			t.Errorf("%d members of no use", n)
		}
		mu.Lock()
		valid = true
		mu.Unlock()
		f.failing(true)
		use(p, f, "b", "u", size)
		time.Sleep(5 * time.Minute)
		if c := p.Counts(); c.Failed != 4 {
			t.Errorf("%d failures without a request, want the first and 3 more", c.Failed)
		}
		use(p, f, "b", "u", size)
		time.Sleep(time.Second)
		f.failing(false)
		time.Sleep(time.Minute)
		if n := f.count("b"); n != 1 {
			t.Errorf("%d members a minute after a failure is over", n)
		}
		use(p, f, "b", "u", size)
		time.Sleep(time.Second)
		if n := f.count("b"); n != 1 {
			t.Errorf("%d members after a failure is over", n)
		}
	})
}

// TestCloseMeanwhile closes a pool at random moments of random use: nothing is left.
func TestCloseMeanwhile(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			p, f := newPool(t, pool.Options[string]{Budget: 5 * memory})
			var wg sync.WaitGroup
			for range 3 {
				kinds, delay := r.IntN(3), time.Duration(r.IntN(100))*time.Millisecond
				wg.Go(func() {
					for n := range 10 {
						use(p, f, string(rune('a'+n%(kinds+1))), string(rune('x'+kinds)), pool.Size{Floor: kinds % 2, Ceiling: 3})
						time.Sleep(delay)
					}
				})
			}
			time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
			p.Close()
			wg.Wait()
			if len(f.all()) != 0 {
				t.Errorf("seed %d: %d members are left", seed, len(f.all()))
			}
			if c := p.Counts(); c.Ready != 0 || c.Made != c.Taken+c.Dropped {
				t.Errorf("seed %d: %+v", seed, c)
			}
		})
	}
}
