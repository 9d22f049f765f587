package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/engine"
)

// probing is an engine that only probes.
type probing struct {
	engine.Engine
	name  string
	probe func(context.Context) bool
	times int
}

func (p *probing) Name() string { return p.name }

func (p *probing) Probe(ctx context.Context) engine.Report {
	p.times++
	return engine.Report{Name: p.name, Usable: p.probe(ctx)}
}

// TestProbesSideBySide: an engine that hangs delays no caller twice, and is asked again when it
// has answered.
func TestProbesSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		free := make(chan struct{})
		quick := &probing{name: "quick", probe: func(context.Context) bool { return true }}
		hangs := &probing{name: "hangs", probe: func(context.Context) bool { <-free; return true }}
		p := core.NewProber([]engine.Engine{hangs, quick})
		defer p.Close()

		began := time.Now()
		r := p.Reports(ctx)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("a probe that hangs held the first request up for %v", took)
		}
		if !r[1].Usable || r[0].Usable || r[0].Name != "hangs" || len(r[0].Problems) == 0 || r[0].Problems[0].Mend == "" {
			t.Errorf("reports: %+v", r)
		}
		began = time.Now()
		if r = p.Reports(ctx); time.Since(began) != 0 || !r[1].Usable {
			t.Errorf("it held up a second one for %v: %+v", time.Since(began), r)
		}
		close(free)
		synctest.Wait()
		if r = p.Reports(ctx); !r[0].Usable {
			t.Errorf("an engine that answered late is still not usable: %+v", r[0])
		}
	})
}

// TestProbesAreKept for five seconds; an engine that cannot be used is asked again then, and
// waited for.
func TestProbesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ok := false
		e := &probing{name: "e", probe: func(context.Context) bool { return ok }}
		p := core.NewProber([]engine.Engine{e})
		defer p.Close()
		for range 3 {
			if p.Reports(t.Context())[0].Usable {
				t.Error("usable too early")
			}
		}
		if e.times != 1 {
			t.Errorf("probed %d times", e.times)
		}
		ok = true
		time.Sleep(6 * time.Second)
		if !p.Reports(t.Context())[0].Usable {
			t.Error("what was mended is not seen after five seconds")
		}
		ok = false
		if p.Refresh(t.Context())[0].Usable {
			t.Error("a refresh is an old report")
		}
	})
}
