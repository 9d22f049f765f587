package core

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core/hostfacts"
	"github.com/cloche-dev/cloche/internal/engine"
)

const (
	// probeTTL is how long a report is cached. It is short, so that an operator who fixes
	// something does not have to restart the daemon.
	probeTTL = 5 * time.Second
	// probePatience is how long a request waits for a report. An engine that takes longer counts
	// as not responding until it answers.
	probePatience = 4 * time.Second
	// probeTimeout limits a probe that no request waits for any more.
	probeTimeout = 30 * time.Second
)

// Prober caches the engines' reports. It probes engines in parallel, and an engine that hangs
// delays only one request. It is safe for concurrent use.
type Prober struct {
	engines []*probed
	host    []HostCheck
	life    context.Context
	end     context.CancelFunc
	wg      sync.WaitGroup
}

// probed is the state of one engine.
type probed struct {
	engine engine.Engine

	mu     sync.Mutex
	report *api.EngineReport // nil before the first report
	at     time.Time
	// running is closed when the probe in progress has ended. It is nil if none is in progress.
	running chan struct{}
	// hangs means that requests no longer wait for the probe in progress.
	hangs bool
}

// HostCheck checks what the daemon does with this machine's files for each sandbox, independent of
// the engine. It returns the problem, or nil. It can be called concurrently by the probes of
// several engines.
type HostCheck func() *api.Problem

// NewProber returns a Prober. It probes nothing until it is asked. An engine that shares this
// machine's files is usable only if the host checks find no problem.
func NewProber(engines []engine.Engine, host ...HostCheck) *Prober {
	p := &Prober{host: host}
	p.life, p.end = context.WithCancel(context.Background())
	for _, e := range engines {
		p.engines = append(p.engines, &probed{engine: e})
	}
	return p
}

// Close ends the probes in progress and waits for them.
func (p *Prober) Close() {
	p.end()
	p.wg.Wait()
}

// Reports returns every engine's report. If the old report says that the engine is usable, it is
// returned while a new one is made: an engine that is no longer usable reports that itself.
func (p *Prober) Reports(ctx context.Context) []api.EngineReport {
	return p.ask(ctx, func(e *probed) (probe, wait bool) {
		old := time.Since(e.at) > probeTTL
		return old, e.report == nil || old && !e.report.Usable
	})
}

// Refresh probes all engines now.
func (p *Prober) Refresh(ctx context.Context) []api.EngineReport {
	return p.ask(ctx, func(*probed) (probe, wait bool) { return true, true })
}

// ask starts the probes that need selects, and waits for those that it says to wait for. need is
// called with the engine's lock held.
func (p *Prober) ask(ctx context.Context, need func(*probed) (probe, wait bool)) []api.EngineReport {
	waits := make([]chan struct{}, len(p.engines))
	for i, e := range p.engines {
		waits[i] = p.start(e, need)
	}
	late := time.NewTimer(probePatience)
	defer late.Stop()
	over := false
	reports := make([]api.EngineReport, len(p.engines))
	for i, e := range p.engines {
		if waits[i] != nil && !over {
			select {
			case <-waits[i]:
			case <-late.C:
				over = true
			case <-ctx.Done():
				over = true
			}
		}
		reports[i] = e.latest(waits[i])
	}
	return reports
}

// start starts a probe if one is needed, and returns what to wait for, or nil.
func (p *Prober) start(e *probed, need func(*probed) (probe, wait bool)) chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	probe, wait := need(e)
	if probe && e.running == nil {
		done := make(chan struct{})
		e.running = done
		p.wg.Go(func() {
			// A caller that disconnects must not leave an incomplete report for the next one.
			ctx, cancel := context.WithTimeout(p.life, probeTimeout)
			defer cancel()
			r := p.examine(ctx, e.engine)
			e.mu.Lock()
			defer e.mu.Unlock()
			e.report, e.at, e.running, e.hangs = &r, time.Now(), nil, false
			close(done)
		})
	}
	if !wait || e.hangs {
		return nil
	}
	return e.running
}

// examine returns an engine's own report with the problems of the host added.
func (p *Prober) examine(ctx context.Context, e engine.Engine) api.EngineReport {
	r := e.Probe(ctx)
	if !r.SharesHostFS {
		return r
	}
	for _, check := range p.host {
		if problem := check(); problem != nil {
			r.Problems, r.Usable = append(slices.Clip(r.Problems), *problem), false
		}
	}
	return r
}

// pool returns the counts of the engine's pool; nil is an engine without a pool.
func (e *probed) pool() *api.PoolCounts {
	keeper, ok := e.engine.(engine.Pooler)
	if !ok {
		return nil
	}
	counts := keeper.PoolCounts()
	return &counts
}

// pools returns the counts of all pools, by the name of their engine.
func (p *Prober) pools() map[string]api.PoolCounts {
	found := map[string]api.PoolCounts{}
	for _, e := range p.engines {
		if counts := e.pool(); counts != nil {
			found[e.engine.Name()] = *counts
		}
	}
	return found
}

// latest returns the latest report. If the wait timed out, the engine does not respond, and later
// requests do not wait for it until it does.
func (e *probed) latest(waited chan struct{}) api.EngineReport {
	e.mu.Lock()
	defer e.mu.Unlock()
	if waited != nil && e.running == waited {
		e.hangs = true
	}
	var r api.EngineReport
	if e.report != nil {
		r = *e.report
	}
	r.Pool = e.pool()
	if e.report == nil || e.hangs {
		r.Name, r.Usable = e.engine.Name(), false
		r.Problems = []api.Problem{{What: "it has not said yet what it can do here", Mend: "ask again; if it stays so, look at the log of what it depends on"}}
	}
	return r
}

// Host returns facts about the machine for the doctor report.
func (p *Prober) Host() map[string]string {
	return map[string]string{"os": runtime.GOOS, "arch": runtime.GOARCH, "kernel": hostfacts.KernelRelease()}
}
