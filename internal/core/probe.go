package core

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/engine"
)

// probeTTL is how long a report is good for: an operator who mended something
// should not have to restart the daemon.
const probeTTL = 30 * time.Second

// Prober keeps the engines' reports. It is safe for concurrent use.
type Prober struct {
	engines []engine.Engine

	mu      sync.Mutex
	reports []cloche.EngineReport
	at      time.Time
}

// NewProber makes a Prober; nothing is probed before it is asked.
func NewProber(engines []engine.Engine) *Prober { return &Prober{engines: engines} }

// Reports returns every engine's report, probing when the last is too old.
func (p *Prober) Reports(ctx context.Context) []cloche.EngineReport {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reports == nil || time.Since(p.at) > probeTTL {
		p.probe(ctx)
	}
	return p.reports
}

// Refresh probes now.
func (p *Prober) Refresh(ctx context.Context) []cloche.EngineReport {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.probe(ctx)
	return p.reports
}

// probe replaces the reports. The caller holds p.mu.
func (p *Prober) probe(ctx context.Context) {
	// A caller that goes away must not leave a half-made report for the next.
	ctx = context.WithoutCancel(ctx)
	reports := make([]cloche.EngineReport, 0, len(p.engines))
	for _, e := range p.engines {
		reports = append(reports, e.Probe(ctx))
	}
	p.reports, p.at = reports, time.Now()
}

// Host describes the machine for a doctor.
func (p *Prober) Host() map[string]string {
	return map[string]string{"os": runtime.GOOS, "arch": runtime.GOARCH, "kernel": kernelRelease()}
}
