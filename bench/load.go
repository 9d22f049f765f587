//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

const (
	// burstOf are created at once, and sustained one after the other by as many makers as processors can use.
	burstOf, sustained = 100, 60
	// denseMakers fill the machine; denseProbes are execs in sandboxes of a full one.
	denseMakers, denseProbes = 8, 50
	denseLimit               = 15 * time.Minute
	// loadEvery is the pause between two requests to a pool, and loadOf their number.
	loadEvery, loadOf = 250 * time.Millisecond, 80
)

// load measures many sandboxes: created at once, one after the other, for a pool at a steady rate, and a machine that
// is full of them.
func (b *bench) load(ctx context.Context) error {
	p, err := b.need(ctx)
	if err != nil || p.app == nil {
		return err
	}
	for _, engine := range []string{"gvisor", "native"} {
		b.once("a burst, "+engine, func() ([]counted, error) { return p.app.burst(ctx, engine) })
	}
	b.once("creates one after the other", func() ([]counted, error) { return b.sustain(ctx, p) })
	b.once("a pool under load", func() ([]counted, error) { return b.pooledLoad(ctx) })
	for _, engine := range []string{"native", "gvisor"} {
		b.once("a full machine, "+engine, func() ([]counted, error) { return p.app.density(ctx, engine, b.dense) })
	}
	return ctx.Err()
}

// fleet are sandboxes that are removed together.
type fleet struct {
	mu  sync.Mutex
	all []*client.Sandbox
}

func (f *fleet) add(sb *client.Sandbox) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, sb)
}

func (f *fleet) remove(ctx context.Context) error {
	return together(len(f.all), denseMakers, func(i int) error { return f.all[i].Remove(ctx) })
}

// idleSpec is a sandbox with a private workspace, and no limit on the disk that would reserve any.
func (h *app) idleSpec(engine string) api.SandboxSpec {
	return api.SandboxSpec{Engine: engine, Limits: h.spec().Limits}
}

// burst creates many sandboxes at once, each of which has to answer.
func (h *app) burst(ctx context.Context, engine string) (rows []counted, err error) {
	var f fleet
	defer func() { err = errors.Join(err, f.remove(context.WithoutCancel(ctx))) }()
	took := make([]float64, burstOf)
	began := time.Now()
	err = together(burstOf, burstOf, func(i int) error {
		began := time.Now()
		sb, err := h.client.Create(ctx, h.idleSpec(engine))
		if err != nil {
			return err
		}
		f.add(sb)
		_, err = h.execTrue(ctx, sb, "/bin/true")
		took[i] = time.Since(began).Seconds() * 1000
		return err
	})
	if err != nil {
		return nil, err
	}
	all := time.Since(began).Seconds()
	name := fmt.Sprintf("%d creates and an exec in each at once, %s", burstOf, engine)
	return []counted{
		{What: name + ", all", Value: all, Unit: "s"},
		{What: name + ", p50", Value: median(took), Unit: "ms"},
		{What: name + ", p99", Value: quantile(took, 0.99), Unit: "ms"},
	}, nil
}

// sustain compares whole runs by as many makers as there are processors.
func (b *bench) sustain(ctx context.Context, p *peers) ([]counted, error) {
	rate := func(run func(ctx context.Context, i int) error) (float64, error) {
		began := time.Now()
		err := together(sustained, limitCPUs, func(i int) error { return run(ctx, i) })
		return sustained / time.Since(began).Seconds(), err
	}
	ours, err := rate(func(ctx context.Context, _ int) error {
		_, err := p.app.run(ctx, word+"\n", "/bin/echo", word)
		return err
	})
	if err != nil {
		return nil, err
	}
	rows := []counted{{What: "runs of an echo, one after the other by 2 makers, gvisor by the daemon", Value: ours, Unit: "a second"}}
	if p.runsc == nil || p.host == nil {
		return rows, nil
	}
	var ids sync.Mutex
	stock, err := rate(func(ctx context.Context, i int) error {
		ids.Lock()
		id := p.runsc.nextID()
		bundle, err := p.runsc.hostBundle(fmt.Sprint("sustained-", i), *p.host, p.app.workspace, "/bin/echo", word)
		ids.Unlock()
		if err != nil {
			return err
		}
		_, err = process(ctx, word+"\n", nil, p.runsc.argv("run", "--bundle", bundle, id)...)
		return err
	})
	return append(rows,
		counted{What: "the same by `runsc run`, with the same root and workspace", Value: stock, Unit: "a second"},
		counted{What: "`runsc run` by gvisor (4 times as many)", Value: stock / ours, Unit: "", Goal: 0.25}), err
}

// pooledLoad asks a pool for sandboxes at a steady rate, of two kinds in turn.
func (b *bench) pooledLoad(ctx context.Context) ([]counted, error) {
	dir := filepath.Join(b.dir, "pool-load")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	h, err := newAppIn(ctx, b, b.bin, dir, "CLOCHE__POOL__CEILING=8")
	if err != nil {
		return nil, err
	}
	kinds := []api.SandboxSpec{h.idleSpec("gvisor"), h.idleSpec("gvisor")}
	kinds[1].Limits.MemoryBytes /= 2
	for _, spec := range kinds {
		if _, err := h.runSpec(ctx, spec, word+"\n", "/bin/echo", word); err != nil {
			return nil, err
		}
	}
	if err := h.ready(ctx); err != nil {
		return nil, err
	}
	before, err := h.poolCounts(ctx)
	if err != nil {
		return nil, err
	}
	took, errs := make([]float64, loadOf), make([]error, loadOf)
	var wg sync.WaitGroup
	tick := time.NewTicker(loadEvery)
	defer tick.Stop()
	for i := range loadOf {
		wg.Go(func() {
			m, err := h.runSpec(ctx, kinds[i%len(kinds)], word+"\n", "/bin/echo", word)
			took[i], errs[i] = float64(m.First.Microseconds())/1000, err
		})
		<-tick.C
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	after, err := h.poolCounts(ctx)
	name := fmt.Sprintf("%d creates at %g a second, two kinds, a pool of at most 8", loadOf, 1/loadEvery.Seconds())
	return []counted{
		{What: name + ", first output p50", Value: median(took), Unit: "ms"},
		{What: name + ", p99", Value: quantile(took, 0.99), Unit: "ms"},
		{What: name + ", from the pool", Value: 100 * float64(after.Taken-before.Taken) / loadOf, Unit: "%"},
	}, err
}

// density fills the machine with idle sandboxes, and asks some of them.
func (h *app) density(ctx context.Context, engine string, many int) (rows []counted, err error) {
	ctx, cancel := context.WithTimeout(ctx, denseLimit)
	defer cancel()
	var f fleet
	defer func() { err = errors.Join(err, f.remove(context.WithoutCancel(ctx))) }()
	before := availableKiB()
	began := time.Now()
	err = together(many, denseMakers, func(int) error {
		sb, err := h.client.Create(ctx, h.idleSpec(engine))
		if err == nil {
			f.add(sb)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create %d, %d are there: %w", many, len(f.all), err)
	}
	took := time.Since(began).Seconds()
	if err := wait(ctx, settle); err != nil {
		return nil, err
	}
	each := float64(before-availableKiB()) * 1024 / 1e6 / float64(many)
	var execs []float64
	for i := range denseProbes {
		m, err := h.execTrue(ctx, f.all[i*len(f.all)/denseProbes], "/bin/true")
		if err != nil {
			return nil, err
		}
		execs = append(execs, float64(m.Total.Microseconds())/1000)
	}
	name := fmt.Sprintf("%d idle sandboxes, %s", many, engine)
	return []counted{
		{What: name + ", created", Value: float64(many) / took, Unit: "a second"},
		{What: name + ", each by MemAvailable", Value: each, Unit: "MB"},
		{What: name + ", the first exec in one of them, p50", Value: median(execs), Unit: "ms"},
	}, nil
}
