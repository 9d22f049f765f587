//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// The subjects of the group create.
const (
	imageWarm      = "cloche engine, image"
	imageFresh     = "cloche engine, image, nothing ready"
	imageOnce      = "cloche process, image"
	daemonHost     = "cloche daemon, host"
	cliHost        = "cloche run, host"
	runscImage     = "runsc run, image"
	runscImageTrue = "runsc run true, image"
	runscHost      = "runsc run, host"
	runscHostTrue  = "runsc run true, host"
	dockerRun      = "docker run"
	bwrapRun       = "bwrap"
)

// create compares the way from nothing to the first output, and whole processes.
func (b *bench) create(ctx context.Context) error {
	p, err := b.need(ctx)
	if err != nil {
		return err
	}
	subjects, err := b.createSubjects(p)
	if err != nil {
		return err
	}
	series, err := rounds(ctx, b.n, subjects, b.missing)
	if err != nil {
		return err
	}
	b.report.Series = append(b.report.Series, series...)
	b.report.judge(goals())
	if b.trace {
		return b.traceCreate(ctx, p)
	}
	return nil
}

func (b *bench) createSubjects(p *peers) ([]subject, error) {
	var all []subject
	add := func(name, how string, run func(context.Context) (measure, error)) {
		all = append(all, subject{name: name, how: how, run: run})
	}
	said := word + "\n"
	echo := []string{"/bin/echo", word}
	if p.image != nil {
		add(imageWarm, "engine and agent in a living process, without the packages above; collected over a pipe; a sentry without a sandbox is ready, as in the daemon",
			func(context.Context) (measure, error) { return p.image.run(said, echo...) })
	}
	if p.fresh != nil {
		add(imageFresh, "the same when none is ready: the engine's first sandbox, or one right after another",
			func(context.Context) (measure, error) { return p.fresh.run(said, echo...) })
	}
	if p.runsc != nil && p.image != nil {
		bundle, err := p.runsc.imageBundle("image-echo", echo...)
		if err != nil {
			return nil, err
		}
		add(runscImage, "`runsc run`, echo", func(ctx context.Context) (measure, error) { return p.runsc.run(ctx, bundle, said) })
	}
	if p.app != nil {
		add(daemonHost, "one call over the unix socket, echo", func(ctx context.Context) (measure, error) { return p.app.run(ctx, said, echo...) })
	}
	if p.runsc != nil && p.host != nil {
		bundle, err := p.runsc.hostBundle("host-echo", *p.host, p.app.workspace, echo...)
		if err != nil {
			return nil, err
		}
		add(runscHost, "`runsc run`, echo, same image, binds and masks", func(ctx context.Context) (measure, error) { return p.runsc.run(ctx, bundle, said) })
	}
	if p.docker != nil && p.app != nil {
		add(dockerRun, "`docker run --rm`, echo, workspace", func(ctx context.Context) (measure, error) {
			return p.docker.run(ctx, p.app.workspace, said, echo...)
		})
	}
	return b.processSubjects(p, all)
}

// processSubjects adds the whole processes, which run true.
func (b *bench) processSubjects(p *peers, all []subject) ([]subject, error) {
	add := func(name, how string, run func(context.Context) (measure, error)) {
		all = append(all, subject{name: name, how: how, run: run})
	}
	if p.image != nil {
		add(imageOnce, "whole process: engine and agent without the packages above, true",
			func(ctx context.Context) (measure, error) { return p.image.once(ctx, "", "/bin/true") })
	}
	if p.runsc != nil && p.image != nil {
		bundle, err := p.runsc.imageBundle("image-true", "/bin/true")
		if err != nil {
			return nil, err
		}
		add(runscImageTrue, "whole process, true", func(ctx context.Context) (measure, error) { return p.runsc.run(ctx, bundle, "") })
	}
	if p.app != nil {
		add(cliHost, "whole process `cloche run -- true`, no daemon", func(ctx context.Context) (measure, error) { return p.app.cli(ctx, "", "true") })
	}
	if p.runsc != nil && p.host != nil {
		bundle, err := p.runsc.hostBundle("host-true", *p.host, p.app.workspace, "/bin/true")
		if err != nil {
			return nil, err
		}
		add(runscHostTrue, "whole process, true, same image, binds and masks", func(ctx context.Context) (measure, error) { return p.runsc.run(ctx, bundle, "") })
	}
	if p.bwrap != "" {
		add(bwrapRun, "namespaces only, no limits, /usr read-only, echo", func(ctx context.Context) (measure, error) {
			return process(ctx, word+"\n", nil, p.bwrap, "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
				"--symlink", "usr/bin", "/bin", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "/bin/echo", word)
		})
	}
	return all, nil
}

// traceCreate takes the steps of further runs, apart from the timed ones.
func (b *bench) traceCreate(ctx context.Context, p *peers) error {
	if p.image != nil {
		var t steps
		p.image.onSteps = func(s map[string]float64) {
			for _, k := range []string{"engine", "connect", "exec", "close"} {
				t.add(k, s[k])
			}
		}
		for range b.n {
			if _, err := p.image.run(word+"\n", "/bin/echo", word); err != nil {
				return fmt.Errorf("trace image: %w", err)
			}
		}
		p.image.onSteps = nil
		b.report.Steps = append(b.report.Steps, stepsOfPart{imageWarm, t.medians()})
		var inEngine steps
		for range b.n {
			if err := p.image.trace(ctx, inEngine.add, "/bin/true"); err != nil {
				return fmt.Errorf("trace engine: %w", err)
			}
		}
		b.report.Steps = append(b.report.Steps, stepsOfPart{"the engine's part of that", inEngine.medians()})
	}
	if p.app != nil {
		var t steps
		p.app.onStep = func(step string, took time.Duration) { t.add(step, float64(took.Microseconds())/1000) }
		for range b.n {
			if _, err := p.app.run(ctx, word+"\n", "/bin/echo", word); err != nil {
				return fmt.Errorf("trace host: %w", err)
			}
		}
		p.app.onStep = nil
		b.report.Steps = append(b.report.Steps, stepsOfPart{daemonHost, t.medians()})
	}
	return nil
}

// steps collects the times of steps, in the order in which they first came.
type steps struct {
	order []string
	ms    map[string][]float64
}

func (s *steps) add(step string, ms float64) {
	if s.ms == nil {
		s.ms = map[string][]float64{}
	}
	if _, known := s.ms[step]; !known {
		s.order = append(s.order, step)
	}
	s.ms[step] = append(s.ms[step], ms)
}

func (s *steps) medians() []stepTime {
	var out []stepTime
	for _, k := range s.order {
		out = append(out, stepTime{k, median(s.ms[k])})
	}
	return out
}

// The subjects of the group pool.
const (
	poolTaken       = "create and echo, from the pool"
	poolCold        = "create and echo, no pool"
	poolMounts      = "the same with mounts and rules, from the pool"
	poolMountsCold  = "the same with mounts and rules, no pool"
	poolNetwork     = "the same with a network, from the pool"
	poolNetworkCold = "the same with a network, no pool"
	poolExec        = "echo in a sandbox that runs"
	poolCLI         = "cloche run true, daemon and pool"
)

// poolGoals are what a sandbox that is ready has to be worth.
func poolGoals() []goal {
	return []goal{
		{what: "from the pool → first output, against an exec", subject: poolTaken, metric: first, peer: poolExec, maxRatio: 1.5},
		{what: "the same against a create without the pool", subject: poolTaken, metric: first, peer: poolCold, maxRatio: 1.0 / 6},
		{what: "with mounts and rules, against one without the pool", subject: poolMounts, metric: first, peer: poolMountsCold, maxRatio: 1.0 / 3},
		{what: "with a network, against one without the pool", subject: poolNetwork, metric: first, peer: poolNetworkCold, maxRatio: 1.0 / 3},
		{what: "whole process, `cloche run -- true` with daemon and pool, against Docker", subject: poolCLI, metric: total, peer: dockerRun, maxRatio: 0.1},
	}
}

// pool compares sandboxes that were ready with others, and with an exec.
func (b *bench) pool(ctx context.Context) error {
	p, err := b.need(ctx)
	if err != nil || p.app == nil {
		return err
	}
	apps := map[bool]*app{}
	for ready, setting := range map[bool]string{true: "CLOCHE__POOL__CEILING=4", false: "CLOCHE__POOL__CEILING=0"} {
		dir := filepath.Join(b.dir, fmt.Sprint("pool-", ready))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if apps[ready], err = newAppIn(ctx, b, b.bin, dir, setting); err != nil {
			return err
		}
	}
	live, err := apps[true].client.Create(ctx, api.SandboxSpec{Limits: apps[true].spec().Limits})
	if err != nil {
		return err
	}
	subjects, err := poolSubjects(apps[true], apps[false], live)
	if err != nil {
		return errors.Join(err, live.Remove(ctx))
	}
	if p.docker != nil {
		subjects = append(subjects, subject{name: dockerRun, how: "`docker run --rm`, echo, workspace", run: func(ctx context.Context) (measure, error) {
			return p.docker.run(ctx, p.app.workspace, word+"\n", "/bin/echo", word)
		}})
	}
	series, err := rounds(ctx, b.n, subjects, b.missing)
	b.report.Series = append(b.report.Series, series...)
	b.report.judge(goals())
	return errors.Join(err, live.Remove(context.WithoutCancel(ctx)))
}

func poolSubjects(warm, cold *app, live *client.Sandbox) ([]subject, error) {
	said, echo := word+"\n", []string{"/bin/echo", word}
	plain := api.SandboxSpec{Limits: warm.spec().Limits}
	mounted, linked := plain, plain
	shared := filepath.Join(warm.home, "..", "shared")
	if err := os.MkdirAll(filepath.Join(shared, "keys"), 0o755); err != nil {
		return nil, err
	}
	mounted.Mounts = []api.Mount{{Source: shared, Target: "/srv/shared", Rules: []api.PathRule{{Path: "keys", Access: api.AccessNone}}}}
	linked.Network = api.NetworkOn
	linked.Egress = &api.Egress{Allow: []string{"localhost"}}
	all := []subject{{name: poolExec, how: "exec over the unix socket, host and private workspace", run: func(ctx context.Context) (measure, error) {
		began := time.Now()
		res, err := live.Exec(ctx, echo...)
		took := time.Since(began)
		if err == nil && string(res.Stdout) != said {
			err = fmt.Errorf("it wrote %q", res.Stdout)
		}
		return measure{First: took, Total: took}, err
	}}}
	for _, s := range []struct {
		spec        api.SandboxSpec
		taken, cold string
	}{{plain, poolTaken, poolCold}, {mounted, poolMounts, poolMountsCold}, {linked, poolNetwork, poolNetworkCold}} {
		all = append(all,
			subject{name: s.taken, how: "one call over the unix socket, host and private workspace; a sandbox of its kind is ready", run: func(ctx context.Context) (measure, error) {
				return warm.runReady(ctx, s.spec, said, echo...)
			}},
			subject{name: s.cold, how: "the same call, with `pool.ceiling: 0`", run: func(ctx context.Context) (measure, error) {
				return cold.runSpec(ctx, s.spec, said, echo...)
			}})
	}
	return append(all, subject{name: poolCLI, how: "whole process `cloche run -- true` with a daemon that has a sandbox ready", run: func(ctx context.Context) (measure, error) {
		if err := warm.ready(ctx); err != nil {
			return measure{}, err
		}
		return process(ctx, "", warm.env(), warm.bin, "run", "--", "true")
	}}), nil
}

// runReady is runSpec when a sandbox of the kind is ready, which the first of a kind is not.
func (h *app) runReady(ctx context.Context, spec api.SandboxSpec, want string, argv ...string) (measure, error) {
	if err := h.ready(ctx); err != nil {
		return measure{}, err
	}
	before, err := h.poolCounts(ctx)
	if err != nil {
		return measure{}, err
	}
	m, err := h.runSpec(ctx, spec, want, argv...)
	if err != nil {
		return measure{}, err
	}
	after, err := h.poolCounts(ctx)
	if err == nil && after.Taken == before.Taken {
		return h.runReady(ctx, spec, want, argv...)
	}
	return m, err
}

// ready waits until the pool is quiet: as many sandboxes are ready as it wants.
func (h *app) ready(ctx context.Context) error {
	last, since := "", time.Now()
	for {
		all, err := filepath.Glob(filepath.Join(h.home, "engines", "gvisor", "*-booted-*.json"))
		if err != nil {
			return err
		}
		if now := strings.Join(all, " "); now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) > poolQuiet {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// poolQuiet is more than a pool pauses before it makes a member, and than that takes.
const poolQuiet = 400 * time.Millisecond

func (h *app) poolCounts(ctx context.Context) (api.PoolCounts, error) {
	d, err := h.client.Doctor(ctx)
	if err != nil {
		return api.PoolCounts{}, err
	}
	for _, e := range d.Engines {
		if e.Name == "gvisor" && e.Pool != nil {
			return *e.Pool, nil
		}
	}
	return api.PoolCounts{}, errors.New("the engine has no pool")
}
