//go:build linux

package main

import (
	"context"
	"fmt"
	"time"
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
