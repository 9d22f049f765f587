package admission

import (
	"context"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// maxQueueTime is how long a creation waits at most.
const maxQueueTime = 10 * time.Minute

// Limiter lets so many in at a time. It is safe for concurrent use.
type Limiter struct {
	limits policy.Admission

	mu      sync.Mutex
	running int
	queued  int
	// queues are the waiting creations of each tenant, in their order; turns are the
	// tenants that have any, in the order in which they are served.
	queues map[string][]*ticket
	turns  []string
	// took is how long a creation takes, as a moving mean.
	took time.Duration
}

// ticket is a waiting creation. in is closed when its turn has come.
type ticket struct{ in chan struct{} }

// New returns a limiter with the bounds of a policy.
func New(a policy.Admission) *Limiter {
	return &Limiter{limits: a, queues: map[string][]*ticket{}}
}

// Enter waits until the caller is admitted, and returns the function that leaves. If it has to
// wait, it first calls waits, which reports the progress.
func (g *Limiter) Enter(ctx context.Context, tenant string, waits func()) (leave func(), err error) {
	g.mu.Lock()
	if g.running < g.limits.Starting && g.queued == 0 {
		g.running++
		g.mu.Unlock()
		return g.leaver(), nil
	}
	if full := g.full(tenant); full != nil {
		g.mu.Unlock()
		return nil, full
	}
	t := &ticket{in: make(chan struct{})}
	if len(g.queues[tenant]) == 0 {
		g.turns = append(g.turns, tenant)
	}
	g.queues[tenant] = append(g.queues[tenant], t)
	g.queued++
	g.mu.Unlock()
	waits()
	patience := time.NewTimer(maxQueueTime)
	defer patience.Stop()
	select {
	case <-t.in:
		return g.leaver(), nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-patience.C:
		late := api.Errorf(api.CodeNoCapacity, "the sandbox waited %s for its turn to be made", maxQueueTime)
		late.Retryable, late.RetryAfterMS = true, maxRetryAfter.Milliseconds()
		err = late
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-t.in:
		// Its turn came in the same moment: the next one's has come.
		g.running--
		g.next()
		return nil, err
	default:
	}
	g.giveUp(tenant, t)
	return nil, err
}

// maxRetryAfter limits the retry delay that is returned.
const maxRetryAfter = 30 * time.Second

// full is the error for one tenant's creation that cannot even wait. The caller
// holds g.mu.
func (g *Limiter) full(tenant string) *api.Error {
	if g.queued < g.limits.Queued && len(g.queues[tenant]) < max(g.limits.Queued/2, 1) {
		return nil
	}
	err := api.Errorf(api.CodeTooMany, "%d sandboxes wait to be made already", g.queued).
		WithHint("retry when some of them run; the operator's setting max_queued bounds how many may wait")
	err.Rule, err.Retryable = "settings.max_queued", true
	wait := min(max(time.Duration(g.queued/max(g.limits.Starting, 1))*g.took, time.Second), maxRetryAfter)
	err.RetryAfterMS = wait.Milliseconds()
	return err
}

// giveUp takes one who waits out of its line. The caller holds g.mu.
func (g *Limiter) giveUp(tenant string, t *ticket) {
	line := g.queues[tenant]
	for i := range line {
		if line[i] == t {
			g.queues[tenant] = append(line[:i:i], line[i+1:]...)
			g.queued--
			break
		}
	}
	if len(g.queues[tenant]) > 0 {
		return
	}
	delete(g.queues, tenant)
	for i := range g.turns {
		if g.turns[i] == tenant {
			g.turns = append(g.turns[:i:i], g.turns[i+1:]...)
			return
		}
	}
}

// leaver counts who is inside from now until leave is called, once.
func (g *Limiter) leaver() (leave func()) {
	begun := time.Now()
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.running--
		if took := time.Since(begun); g.took == 0 {
			g.took = took
		} else {
			g.took += (took - g.took) / 8
		}
		g.next()
	})
}

// next lets in whose turn it is. The caller holds g.mu.
func (g *Limiter) next() {
	for g.running < g.limits.Starting && len(g.turns) > 0 {
		tenant := g.turns[0]
		g.turns = g.turns[1:]
		t := g.queues[tenant][0]
		if g.queues[tenant] = g.queues[tenant][1:]; len(g.queues[tenant]) > 0 {
			g.turns = append(g.turns, tenant)
		} else {
			delete(g.queues, tenant)
		}
		g.queued--
		g.running++
		close(t.in)
	}
}

// Counts are how many creations run, and how many wait.
func (g *Limiter) Counts() (running, queued int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running, g.queued
}
