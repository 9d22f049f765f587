//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// The subjects of the group endpoint: a program inside asks a service of the host's, on
// each engine; the same program on the host asks it directly; and by files that are polled.
const (
	endpointPost   = "endpoint, POST"
	endpointEvent  = "endpoint, event stream"
	endpointBeside = "endpoint, beside 63 that hang"
	endpointDown   = "endpoint, download"
	endpointUp     = "endpoint, upload"
	endpointTurns  = "endpoint, evaluation"
	byFiles        = "by polled files"
	direct         = "direct"

	endpointPosts = 500
	pollPosts     = 3
	endpointBytes = 32 << 20
	uploadBytes   = 16 << 20
	// An evaluation: so many programs at once, each so many turns with a model that
	// takes thoughtMS to answer.
	evaluations, evaluationTurns, thoughtMS = 16, 6, 500
	// What takes seconds is done in fewer rounds.
	eventRounds, evaluationRounds = 4, 2
)

// endpointEngines are those whose endpoints are measured.
func endpointEngines() []string { return []string{"gvisor", "native"} }

// through is a subject of one engine, or of a peer; slowest is the slowest hundredth of
// what it measures.
func through(name, by string) string { return name + ", " + by }

func slowest(subject string) string { return subject + ", slowest hundredth" }

// endpoints compares what goes through an endpoint with the same without a sandbox.
func (b *bench) endpoints(ctx context.Context) (err error) {
	app, err := b.daemon(ctx)
	if err != nil {
		return err
	}
	caller := filepath.Join(b.dir, "caller")
	if err := b.goBuild(ctx, caller, "./test/caller"); err != nil {
		return err
	}
	target, stop, err := startTarget(ctx, caller)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	program, err := os.ReadFile(caller)
	if err != nil {
		return fmt.Errorf("read the caller: %w", err)
	}
	e := &endpointBench{app: app, caller: caller, target: target, program: program, bridged: map[string]*client.Sandbox{}}
	defer func() { err = errors.Join(err, e.close(context.WithoutCancel(ctx))) }()
	if err := e.open(ctx, b.missing); err != nil {
		return err
	}
	series, err := rounds(ctx, b.n, e.subjects(), b.missing)
	if err != nil {
		return err
	}
	b.report.Series = append(b.report.Series, series...)
	e.endPolling() // it would be what goes on where nothing does
	for engine, sb := range e.bridged {
		b.once("1 GiB through an endpoint of "+engine, func() ([]counted, error) { return e.large(ctx, engine, sb) })
	}
	b.once("unused endpoints", func() ([]counted, error) { return e.idle(ctx) })
	for engine := range e.bridged {
		b.once("64 evaluations at once on "+engine, func() ([]counted, error) { return e.crowds(ctx, engine) })
	}
	b.report.judge(goals())
	return ctx.Err()
}

// startTarget starts the service that everybody asks.
func startTarget(ctx context.Context, caller string) (url string, stop func() error, err error) {
	cmd := command(context.WithoutCancel(ctx), caller, "serve", strconv.Itoa(thoughtMS))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", nil, fmt.Errorf("start the target: %w", err)
	}
	stop = func() error {
		err := cmd.Process.Signal(os.Interrupt)
		werr := cmd.Wait()
		if _, ended := errors.AsType[*exec.ExitError](werr); ended {
			werr = nil // it was told to
		}
		return errors.Join(err, werr)
	}
	line, err := bufio.NewReader(io.LimitReader(out, 4096)).ReadString('\n')
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("read where the target listens: %w", err), stop())
	}
	addr, _, _ := strings.Cut(strings.TrimPrefix(line, "http="), " ")
	return "http://" + addr, stop, nil
}

// endpointBench is the sandboxes of the group.
type endpointBench struct {
	app            *app
	caller, target string
	program        []byte
	// bridged have an endpoint, one for each engine; polled has files.
	bridged map[string]*client.Sandbox
	polled  *client.Sandbox
	// judged are for evaluations, all is every one that there is.
	judged, all []*client.Sandbox
	poller      *poller
}

const (
	callerInside = "/root/caller"
	insideURL    = "http://" + api.DefaultEndpointListen
)

// create makes a sandbox with the caller in it, and with an endpoint.
func (e *endpointBench) create(ctx context.Context, engine string, bridged bool) (*client.Sandbox, error) {
	spec := api.SandboxSpec{Engine: engine}
	if bridged {
		spec.Endpoints = []api.Endpoint{{Name: "model", Target: e.target, Limits: api.EndpointLimits{RequestBytes: largeUp}}}
	}
	sb, err := e.app.client.Create(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	e.all = append(e.all, sb)
	return sb, sb.WriteFile(ctx, callerInside, e.program, 0o755)
}

// open makes the sandboxes; missing is told of an engine that has none.
func (e *endpointBench) open(ctx context.Context, missing func(string, error)) error {
	for _, engine := range endpointEngines() {
		sb, err := e.create(ctx, engine, true)
		if err != nil {
			missing("endpoints on "+engine, err)
			continue
		}
		e.bridged[engine] = sb
	}
	for range evaluations {
		sb, err := e.create(ctx, "gvisor", true)
		if err != nil {
			return err
		}
		e.judged = append(e.judged, sb)
	}
	var err error
	if e.polled, err = e.create(ctx, "gvisor", false); err != nil {
		return err
	}
	e.poller, err = newPoller(ctx, e.polled, e.target)
	return err
}

func (e *endpointBench) endPolling() {
	if e.poller != nil {
		e.poller.close()
		e.poller = nil
	}
}

func (e *endpointBench) close(ctx context.Context) error {
	var errs []error
	e.endPolling()
	for _, sb := range e.all {
		errs = append(errs, sb.Remove(ctx))
	}
	return errors.Join(errs...)
}

func (e *endpointBench) subjects() []subject {
	size, up := strconv.Itoa(endpointBytes), strconv.Itoa(uploadBytes)
	posts, few := strconv.Itoa(endpointPosts), strconv.Itoa(pollPosts)
	// from is what is asked from somewhere: run calls the caller there, url leads to the
	// target from there.
	from := func(by, url string, run func(ctx context.Context, args ...string) (string, error)) []subject {
		value := func(value string, args ...string) func(context.Context) (measure, error) {
			return func(ctx context.Context) (measure, error) { return measured(run(ctx, args...))(value) }
		}
		return []subject{
			{
				name: through(endpointPost, by), how: "median of 500 POSTs of 1 KiB, one after the other", limit: time.Minute,
				run: value("p50", "posts", posts, url+"/echo"), also: slowest(through(endpointPost, by)), alsoHow: "the slowest but 1 % of such 500",
			},
			{name: through(endpointEvent, by), how: "ten events in a second: the first byte, and the last", most: eventRounds, run: value("first", "sse", url+"/events")},
			{name: through(endpointBeside, by), how: "a GET while 63 requests of the same program get no answer", run: value("p50", "hung", "63", url+"/hang", url+"/echo")},
			{name: through(endpointDown, by), how: "32 MiB in chunks, summed by who receives them", limit: time.Minute, run: value("total", "down", size, url+"/bytes?n="+size)},
			{name: through(endpointUp, by), how: "16 MiB in chunks, summed on both sides", limit: time.Minute, run: value("total", "up", up, url+"/sum")},
		}
	}
	var all []subject
	for _, engine := range endpointEngines() {
		if sb := e.bridged[engine]; sb != nil {
			all = append(all, from(engine, insideURL, func(ctx context.Context, args ...string) (string, error) { return e.inside(ctx, sb, args...) })...)
		}
	}
	all = append(all, from(direct, e.target, func(ctx context.Context, args ...string) (string, error) {
		return output(ctx, append([]string{e.caller}, args...)...)
	})...)
	polled := func(value string, args ...string) func(context.Context) (measure, error) {
		return func(ctx context.Context) (measure, error) { return measured(e.inside(ctx, e.polled, args...))(value) }
	}
	return append(all, []subject{
		{
			name: through(endpointPost, byFiles), how: "median of 3; a proxy in a gVisor sandbox writes requests to files and looks for answers every 100 ms, the host finds and answers them by execs every 200 ms",
			limit: time.Minute, run: polled("p50", "posts", few, insideURL+"/echo"),
		},
		{name: through(endpointEvent, byFiles), how: "the same by polled files", most: eventRounds, run: polled("first", "sse", insideURL+"/events")},
		{
			name: through(endpointTurns, "gvisor"), how: "16 sandboxes at once, 6 turns each: a model that takes 0.5 s and streams, a tool, a stop check", most: evaluationRounds, limit: time.Minute,
			run: func(ctx context.Context) (measure, error) {
				return evaluate(evaluations, func(i int) (string, error) {
					return e.inside(ctx, e.judged[i], "turns", strconv.Itoa(evaluationTurns), insideURL)
				})
			},
		},
		{
			name: through(endpointTurns, direct), how: "16 processes of the host at once, the same", most: evaluationRounds, limit: time.Minute,
			run: func(ctx context.Context) (measure, error) {
				return evaluate(evaluations, func(int) (string, error) {
					return output(ctx, e.caller, "turns", strconv.Itoa(evaluationTurns), e.target)
				})
			},
		},
	}...)
}

func (e *endpointBench) inside(ctx context.Context, sb *client.Sandbox, args ...string) (string, error) {
	res, err := sb.Exec(ctx, append([]string{callerInside}, args...)...)
	if err != nil {
		return "", err
	}
	if !res.OK() {
		err = fmt.Errorf("the caller ended with status %d: %s", res.ExitStatus(), tail(string(res.Stderr)))
	}
	return string(res.Stdout), err
}

// evaluate is the mean of what n programs took that run at the same time, so that
// their starts, which are measured elsewhere, are left out.
func evaluate(n int, run func(i int) (string, error)) (measure, error) {
	took := make([]measure, n)
	err := together(n, n, func(i int) (err error) {
		took[i], err = measured(run(i))("total")
		return err
	})
	var sum time.Duration
	for _, m := range took {
		sum += m.Total
	}
	return measure{Total: sum / time.Duration(n)}, err
}

// together calls do for each of n, with so many calls under way at once.
func together(n, atOnce int, do func(i int) error) error {
	var (
		wg   sync.WaitGroup
		errs = make([]error, n)
		next = make(chan int)
	)
	for range atOnce {
		wg.Go(func() {
			for i := range next {
				errs[i] = do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// measured reads one of the values that the caller prints; the time to the first byte has
// the whole time beside it.
func measured(out string, err error) func(value string) (measure, error) {
	return func(value string) (measure, error) {
		if err != nil {
			return measure{}, err
		}
		values := map[string]time.Duration{}
		for _, word := range strings.Fields(out) {
			name, number, _ := strings.Cut(word, "=")
			ms, err := strconv.ParseFloat(number, 64)
			if err != nil {
				return measure{}, fmt.Errorf("read what the caller printed: %w", err)
			}
			values[name] = time.Duration(ms * float64(time.Millisecond))
		}
		if value == "first" {
			return measure{First: values["first"], Total: values["total"]}, nil
		}
		if values[value] == 0 {
			return measure{}, fmt.Errorf("the caller printed no %s: %q", value, tail(out))
		}
		return measure{Total: values[value], Also: values["p99"]}, nil
	}
}
