//go:build linux

package native

import (
	"context"
	"time"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
	"github.com/cloche-dev/cloche/internal/engine/pool"
)

// refillPause is how long a new sandbox has the machine for itself before an agent is
// started for the one after it.
const refillPause = 20 * time.Millisecond

// warmPrefix begins the names of agents that wait, which their groups keep.
const warmPrefix = "spare-"

// newPool makes the pool of agents that wait.
func newPool(e *Engine, budget int64) *pool.Pool[kind, *creation] {
	return pool.New[kind, *creation](pool.Options[kind]{
		Prefix: warmPrefix, Pause: refillPause, Timeout: lifecycle.BootTimeout, Budget: budget, Valid: kind.valid, Log: e.log,
	})
}

// Done implements pool.Member.
func (c *creation) Done() <-chan struct{} { return c.child.Done() }

// Usable implements pool.Member.
func (c *creation) Usable() bool { return c.child.Usable() }

// Discard implements pool.Member.
func (c *creation) Discard() { c.rollback() }

// Memory implements pool.Member.
func (c *creation) Memory() int64 { return pidfd.Memory(c.child.ID.PID) }

// kindFor returns the kind of a plan that agents wait for; false is one that starts its own.
func (e *Engine) kindFor(p engine.Plan) (kind, bool) {
	if e.rootless || e.jail != nil || p.Pool.Ceiling == 0 {
		return kind{}, false
	}
	k, ok := kindOf(p)
	if !ok || len(p.Agent.Config) > maxTold {
		e.unfit.Add(1)
		return k, false
	}
	return k, true
}

// fromPool makes the instance of an agent that waits. Without one, or where that failed so
// that another may be tried, ok is false.
func (e *Engine) fromPool(ctx context.Context, k kind, p engine.Plan) (i engine.Instance, err error, ok bool) {
	c, name, ok := e.pool.Take(k, p.Pool.User)
	if !ok {
		return nil, nil, false
	}
	defer e.pool.Forget(name)
	i, err = c.finish(ctx, p)
	return i, err, err == nil || ctx.Err() != nil || c.told
}

// want asks for agents that wait for plans like p.
func (e *Engine) want(k kind, p engine.Plan) { e.pool.Want(k, e.demand(k, p)) }

func (e *Engine) demand(k kind, p engine.Plan) pool.Demand[*creation] {
	return pool.Demand[*creation]{
		User: p.Pool.User, Size: pool.Size{Floor: p.Pool.Floor, Ceiling: p.Pool.Ceiling},
		Make: func(ctx context.Context, name string) (*creation, error) { return e.newWarm(ctx, k, name) },
	}
}

// PoolCounts implements engine.Pooler.
func (e *Engine) PoolCounts() engine.PoolCounts { return e.pool.Counts().Report(e.unfit.Load()) }
