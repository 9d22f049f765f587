//go:build linux

package native

import (
	"context"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/pool"
)

// Fill has agents wait for plans like p, as many as its pool's ceiling, and reports whether they do.
func (e *Engine) Fill(p engine.Plan) bool {
	k, ok := e.kindFor(p)
	if !ok {
		return false
	}
	d := e.demand(k, p)
	d.Size = pool.Size{Floor: p.Pool.Ceiling, Ceiling: p.Pool.Ceiling}
	before := e.pool.Counts().Failed
	e.pool.Prepare(k, d)
	for e.pool.Ready(k) < p.Pool.Ceiling {
		if e.pool.Counts().Failed > before {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// Pool are the processes of those that wait, the oldest first.
func (e *Engine) Pool() (pids []int) {
	recs, _ := e.records.All()
	for _, rec := range recs {
		if e.pool.Holds(rec.ID) && rec.Init.PID != 0 {
			pids = append(pids, rec.Init.PID)
		}
	}
	return pids
}

// CreateWaiting creates a plan's instance from an agent that waited. None is kept waiting after it.
func (e *Engine) CreateWaiting(ctx context.Context, p engine.Plan) (engine.Instance, error) {
	if err := e.validate(p); err != nil {
		return nil, err
	}
	p.Pool.Ceiling = 1
	k, ok := e.kindFor(p)
	p.Pool = engine.Pool{}
	if !ok {
		return e.Create(ctx, p)
	}
	c, err := e.newWarm(context.WithoutCancel(ctx), k, api.NewID(warmPrefix))
	if err != nil {
		return e.Create(ctx, p)
	}
	i, err := c.finish(ctx, p)
	if err == nil || ctx.Err() != nil || c.told {
		return i, err
	}
	return e.Create(ctx, p)
}
