package core

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

const (
	// probeTTL is how long a report is good for: an operator who mended something
	// should not have to restart the daemon.
	probeTTL = 5 * time.Second
	// probePatience is how long a request waits for a report. An engine that takes
	// longer is one that does not answer, until it does.
	probePatience = 4 * time.Second
	// probeTimeout bounds a probe that nobody waits for any more.
	probeTimeout = 30 * time.Second
)

// Prober keeps the engines' reports. Engines are probed side by side, and one that
// hangs holds up a request once. It is safe for concurrent use.
type Prober struct {
	engines []*probed
	host    []HostCheck
	life    context.Context
	end     context.CancelFunc
	wg      sync.WaitGroup
}

// probed is what is known of one engine.
type probed struct {
	engine engine.Engine

	mu     sync.Mutex
	report *api.EngineReport // nil before the first
	at     time.Time
	// running is closed when the probe in progress has ended; nil is none.
	running chan struct{}
	// hangs: nobody waits for the probe in progress.
	hangs bool
}

// HostCheck tries what the daemon does with this machine's files for each sandbox, whatever
// the engine, and returns what fails; nil is nothing. It may be called at the same time by
// several engines' probes.
type HostCheck func() *api.Problem

// NewProber makes a Prober; nothing is probed before it is asked. An engine that shares
// this machine's files is usable where the checks of the host find nothing.
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

// Reports returns every engine's report. One of an engine that was usable is
// returned when it is old too, while a new one is made: should it not be usable any
// more, it says so itself.
func (p *Prober) Reports(ctx context.Context) []api.EngineReport {
	return p.ask(ctx, func(e *probed) (probe, wait bool) {
		old := time.Since(e.at) > probeTTL
		return old, e.report == nil || old && !e.report.Usable
	})
}

// Refresh probes now.
func (p *Prober) Refresh(ctx context.Context) []api.EngineReport {
	return p.ask(ctx, func(*probed) (probe, wait bool) { return true, true })
}

// ask starts the probes that need says, which is called with the engine's lock held,
// and waits for those that it says to wait for.
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

// start starts a probe if one is needed, and returns what to wait for; nil is
// nothing.
func (p *Prober) start(e *probed, need func(*probed) (probe, wait bool)) chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	probe, wait := need(e)
	if probe && e.running == nil {
		done := make(chan struct{})
		e.running = done
		p.wg.Go(func() {
			// A caller that goes away must not leave a half-made report for the next.
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

// examine is an engine's own report, with what is wrong with the host for it.
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

// latest is the report there is. What was waited for in vain is an engine that does
// not answer, and is not waited for again until it does.
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
	if e.report == nil || e.hangs {
		r.Name, r.Usable = e.engine.Name(), false
		r.Problems = []api.Problem{{What: "it has not said yet what it can do here", Mend: "ask again; if it stays so, look at the log of what it depends on"}}
	}
	return r
}

// Host describes the machine for a doctor.
func (p *Prober) Host() map[string]string {
	return map[string]string{"os": runtime.GOOS, "arch": runtime.GOARCH, "kernel": kernelRelease()}
}
