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
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// The subjects of the group clients.
const (
	runCode       = "run_code 1+1"
	runCodeNative = "run_code 1+1, native"
	kernelInside  = "Jupyter's client inside, 1+1"
	kernelNative  = "Jupyter's client inside, 1+1, native"
	e2bCreate     = "Sandbox.create and commands.run, E2B's SDK"
	e2bRun        = "commands.run, E2B's SDK"
	ourCreate     = "create and exec, Go client"
	ourRun        = "exec, Go client"
)

// The directories with what this group needs, which the tests need too.
const (
	jupyterVar = "CLOCHE_TEST_JUPYTER"
	e2bVar     = "CLOCHE_TEST_E2B"
)

// kernelScript measures a kernel with Jupyter's own client, where the kernel is: the mean of ten in ms.
const kernelScript = `
import time
from jupyter_client.manager import start_new_kernel
manager, kernel = start_new_kernel()
def run():
    sent = kernel.execute("1+1")
    while True:
        m = kernel.get_iopub_msg()
        if m["parent_header"].get("msg_id") == sent and m["content"].get("execution_state") == "idle":
            return
for _ in range(5): run()
while input() == "run":
    began = time.perf_counter()
    for _ in range(10): run()
    print((time.perf_counter() - began) * 100, flush=True)
manager.shutdown_kernel(now=True)
`

// sdkScript measures E2B's SDK for JavaScript: a line for each line of its input, in ms.
const sdkScript = `
import { Sandbox } from 'e2b'
import { createInterface } from 'node:readline'
const live = await Sandbox.create()
for await (const line of createInterface({ input: process.stdin })) {
  const began = performance.now()
  const sandbox = line === 'create' ? await Sandbox.create() : live
  await sandbox.commands.run('true')
  console.log(performance.now() - began)
  if (line === 'create') await sandbox.kill()
}
await live.kill()
process.exit(0)
`

// clients compares code contexts with a kernel's own client, and E2B's SDK with the Go client.
func (b *bench) clients(ctx context.Context) (err error) {
	p, err := b.need(ctx)
	if err != nil {
		return err
	}
	var undo []func() error
	defer func() { err = errors.Join(err, unwind(&undo)) }()
	if p.app == nil {
		return nil
	}
	var subjects []subject
	for name, add := range map[string]func() ([]subject, error){
		runCode: func() ([]subject, error) { return codeSubjects(ctx, p.app, "gvisor", runCode, kernelInside, &undo) },
		runCodeNative: func() ([]subject, error) {
			return codeSubjects(ctx, p.app, "native", runCodeNative, kernelNative, &undo)
		},
		e2bCreate:   func() ([]subject, error) { return b.sdkSubjects(ctx, &undo) },
		pageURL:     func() ([]subject, error) { return portSubjects(ctx, p.app, &undo) },
		buildCached: func() ([]subject, error) { return buildSubject(ctx, p.app) },
	} {
		more, err := add()
		if err != nil {
			b.missing(name, err)
		}
		subjects = append(subjects, more...)
	}
	series, err := rounds(ctx, b.n, subjects, b.missing)
	if err != nil {
		return err
	}
	b.report.Series = append(b.report.Series, series...)
	if err := b.transfers(ctx, &undo); err != nil {
		return err
	}
	b.report.judge(goals())
	return nil
}

// transfers compares large files through E2B's API with a file server.
func (b *bench) transfers(ctx context.Context, undo *[]func() error) error {
	home := filepath.Join(b.dir, "transfer")
	if err := os.Mkdir(home, 0o755); err != nil {
		return err
	}
	a, err := newAppIn(ctx, b, b.bin, home, "--e2b", "127.0.0.1:0")
	if err != nil {
		return err
	}
	subjects, err := transferSubjects(ctx, a.client, home, undo)
	if err != nil {
		return err
	}
	series, err := rounds(ctx, min(b.n, transferRounds), subjects, b.missing)
	b.report.Series = append(b.report.Series, series...)
	return err
}

// lineConn is a program that answers each line with a number of ms.
type lineConn struct {
	w io.Writer
	r *bufio.Reader
}

func (l lineConn) ask(line string) (measure, error) {
	if _, err := io.WriteString(l.w, line+"\n"); err != nil {
		return measure{}, err
	}
	answer, err := l.r.ReadString('\n')
	if err != nil {
		return measure{}, err
	}
	return printedMS(answer)
}

// codeSubjects are a run of code through the daemon, and the same by Jupyter's client in the sandbox.
func codeSubjects(ctx context.Context, a *app, engine, ours, inside string, undo *[]func() error) ([]subject, error) {
	packages := os.Getenv(jupyterVar)
	if packages == "" {
		return nil, fmt.Errorf("%s is not set", jupyterVar)
	}
	sb, err := a.client.Create(ctx, api.SandboxSpec{
		Engine: engine, Mounts: []api.Mount{{Source: packages, Target: "/packages", ReadOnly: true}}, Env: map[string]string{"PYTHONPATH": "/packages"},
	})
	if err != nil {
		return nil, err
	}
	*undo = append(*undo, func() error { return sb.Remove(context.WithoutCancel(ctx)) })
	run := func(ctx context.Context) (measure, error) {
		var value string
		began := time.Now()
		err := a.client.RunCode(ctx, sb.ID, api.CodeRequest{Code: "1+1"}, func(e api.CodeEvent) error {
			if e.Main {
				value = string(e.Data["text/plain"])
			}
			return nil
		})
		took := time.Since(began)
		if err == nil && value != `"2"` {
			err = fmt.Errorf("the code has the value %q", value)
		}
		return measure{Total: took}, err
	}
	if _, err := run(ctx); err != nil {
		return nil, err
	}
	stream, err := a.client.ExecStream(ctx, sb.ID, api.ExecRequest{Argv: []string{"python3", "-u", "-c", kernelScript}, TimeoutMS: new(int64(0))})
	if err != nil {
		return nil, err
	}
	*undo = append(*undo, stream.Close)
	lines := lineConn{stream, bufio.NewReader(stdoutOf{stream})}
	return []subject{
		{name: ours, how: "RunCode over the socket in a live context", run: run, row: execRow},
		{name: inside, how: "jupyter_client in the sandbox, mean of ten", run: func(context.Context) (measure, error) { return lines.ask("run") }, row: execRow},
	}, nil
}

// stdoutOf reads the output of a stream.
type stdoutOf struct{ *client.Stream }

// Read implements io.Reader.
func (s stdoutOf) Read(p []byte) (int, error) {
	for {
		e, err := s.Recv()
		if err != nil {
			return 0, err
		}
		if e.Exit != nil {
			return 0, io.EOF
		}
		if e.Stream == api.Stdout && len(e.Data) > 0 {
			return copy(p, e.Data), nil // a line is shorter than the buffer
		}
	}
}

// sdkSubjects are E2B's SDK for JavaScript and the Go client, with the same sandboxes and the same command.
func (b *bench) sdkSubjects(ctx context.Context, undo *[]func() error) ([]subject, error) {
	dir := os.Getenv(e2bVar)
	if dir == "" {
		return nil, fmt.Errorf("%s is not set", e2bVar)
	}
	home := filepath.Join(b.dir, "e2b")
	if err := os.Mkdir(home, 0o755); err != nil {
		return nil, err
	}
	a, err := newAppIn(ctx, b, b.bin, home, "--e2b", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	info, err := a.client.Info(ctx)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "node", "--input-type=module", "-e", sdkScript)
	cmd.Dir, cmd.Stderr = filepath.Join(dir, "js"), os.Stderr
	cmd.Env = append(os.Environ(), "E2B_API_URL="+info.E2BURL, "E2B_SANDBOX_URL="+info.E2BURL, "E2B_API_KEY=e2b_00")
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	*undo = append(*undo, func() error { return errors.Join(in.Close(), cmd.Wait()) })
	sdk := lineConn{in, bufio.NewReader(out)}
	spec := api.SandboxSpec{Workspace: &api.Workspace{Path: "/home/user"}, Env: map[string]string{"HOME": "/home/user"}}
	live, err := a.client.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	*undo = append(*undo, func() error { return live.Remove(context.WithoutCancel(ctx)) })
	command := []string{"/bin/bash", "-l", "-c", "true"} // what the SDK asks for
	return []subject{
		{name: e2bCreate, how: "npm e2b, until the command has ended", run: func(context.Context) (measure, error) { return sdk.ask("create") }},
		{name: ourCreate, how: "the same sandbox and command", run: func(ctx context.Context) (measure, error) {
			began := time.Now()
			sb, err := a.client.Create(ctx, spec)
			if err != nil {
				return measure{}, err
			}
			_, err = a.execTrue(ctx, sb, command...)
			took := time.Since(began)
			return measure{Total: took}, errors.Join(err, sb.Remove(ctx))
		}},
		{name: e2bRun, how: "npm e2b in a live sandbox", run: func(context.Context) (measure, error) { return sdk.ask("run") }, row: execRow},
		{name: ourRun, how: "the same command", run: func(ctx context.Context) (measure, error) { return a.execTrue(ctx, live, command...) }, row: execRow},
	}, nil
}

// clientGoals are the goals of the group clients.
func clientGoals() []goal {
	return []goal{
		{what: "run_code in a live context, against the kernel's own round trip", subject: runCode, metric: total, peer: kernelInside, maxRatio: 2},
		{what: "the same, native", subject: runCodeNative, metric: total, peer: kernelNative, maxRatio: 2},
		{what: "Sandbox.create and commands.run of E2B's SDK, against the Go client", subject: e2bCreate, metric: total, peer: ourCreate, maxRatio: 1.3},
		{what: "commands.run of E2B's SDK, against the Go client", subject: e2bRun, metric: total, peer: ourRun, maxRatio: 1.3},
		{what: "a page by the URL of its port, over a forwarded port", subject: pageURL, metric: total, peer: pageForward, maxMS: 1},
		{what: "1 GiB up by E2B's API, at half the rate of a file server", subject: fileUp, metric: total, peer: serverUp, maxRatio: 2},
		{what: "1 GiB down by E2B's API, at half the rate of a file server", subject: fileDown, metric: total, peer: serverDown, maxRatio: 2},
		{what: "image build of ten cached steps", subject: buildCached, metric: total, maxMS: 1000},
	}
}
